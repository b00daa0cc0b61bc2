#!/usr/bin/env bash
# Rewrites requirements/ascend-*.lock (pinned; hashed, but for ascend-hardware.lock). Needs uv on PATH. Run it when
# requirements/ascend-*.in change, then `make test-ascend`.
set -euo pipefail
cd "$(dirname "$0")/../requirements"

overrides=$(mktemp)
trap 'rm -f "$overrides"' EXIT
# A plain torch: the "+cpu" build is on no index that uv asks here.
printf 'torch==2.13.0\ntorchvision==0.28.0\n' >"$overrides"
for name in torchaudio torchcodec; do
    echo "$name ; sys_platform == 'never'" >>"$overrides"
done
compile=(uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
         --no-annotate --no-emit-index-url)
"${compile[@]}" --override "$overrides" --no-emit-package torch \
    ascend-emulated.in -o ascend-emulated.lock
"${compile[@]}" --no-deps ascend-published.in -o ascend-published.lock

# Constraints, so without hashes: pip builds vLLM and this project on the machine. triton-ascend is on the
# vendor's index only, and torch_npu's torch for x86-64 (+cpu) on PyTorch's, so aarch64 is what is resolved.
hardware=$(mktemp)
trap 'rm -f "$overrides" "$hardware"' EXIT
printf "torchvision==0.25.0\ntriton-ascend==3.2.2 ; sys_platform == 'never'\n" >"$hardware"
uv pip compile --quiet --python-platform aarch64-manylinux_2_34 --python-version 3.11 --no-header \
    --no-annotate --no-emit-index-url --override "$hardware" ascend-hardware.in -o ascend-hardware.lock
# No GPU build, no GPU compiler (vllm-ascend takes its presence for Triton on the device).
python3 - ascend-emulated.lock <<'PY'
import pathlib, re, sys
path = pathlib.Path(sys.argv[1])
entries = re.split(r"(?m)^(?=\S)", path.read_text())
dropped = r"(torchaudio|torchcodec|torch-c-dlpack-ext|nvidia-|cuda-|triton|pywin32|win32-|httpx2-jsfetch|colorama)"
path.write_text("".join(e for e in entries if not re.match(dropped, e)))
PY
