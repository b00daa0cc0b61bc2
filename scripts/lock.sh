#!/usr/bin/env bash
# Rewrites requirements/*.lock (pinned, hashed, for Linux x86-64 and aarch64, Python 3.11 and 3.12).
# Needs uv on PATH. Run it when requirements/*.in change, then `make test`.
set -euo pipefail
cd "$(dirname "$0")/../requirements"

mapfile -t unwanted < <(grep -v '^#' not-needed.txt)
skip=(--no-emit-package torch)
for name in "${unwanted[@]}"; do skip+=(--no-emit-package "$name"); done

overrides=$(mktemp)
trap 'rm -f "$overrides"' EXIT
# A plain torch, since the engine's "+cpu" build is on no index that uv asks here, and none of the
# packages that would drag a GPU build in.
echo 'torch==2.13.0' >"$overrides"
for name in torchvision torchaudio torchcodec triton; do
    echo "$name ; sys_platform == 'never'" >>"$overrides"
done

compile=(uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
         --no-annotate --no-emit-index-url)
"${compile[@]}" --override "$overrides" "${skip[@]}" engine-cpu.in -o engine-cpu.lock
# Nothing of a GPU build of torch, and no package that only other systems install.
python3 - engine-cpu.lock <<'PY'
import pathlib, re, sys
path = pathlib.Path(sys.argv[1])
entries = re.split(r"(?m)^(?=\S)", path.read_text())
kept = [e for e in entries if not re.match(r"(nvidia-|cuda-)", e)]
path.write_text("".join(kept))
PY
"${compile[@]}" -c engine-cpu.lock dev.in -o dev.lock
