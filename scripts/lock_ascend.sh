#!/usr/bin/env bash
# Rewrites requirements/ascend-*.lock (pinned and hashed). Needs uv on PATH. Run it when
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

# For hardware: hashes of everything that the package index has as it is installed. Not of vllm-ascend, whose
# wheels for each chip are on the vendor's index only, nor of triton-ascend, which is nowhere else. torch is a
# file of its own: torch_npu's for x86-64 (+cpu) is on PyTorch's index, so aarch64 is what is resolved. vLLM is
# built from its source. The same versions come out for Python 3.12.
hardware=$(mktemp)
trap 'rm -f "$overrides" "$hardware"' EXIT
printf "torchvision==0.25.0\ntriton-ascend==3.2.2 ; sys_platform == 'never'\n" >"$hardware"
compile=(uv pip compile --quiet --python-platform aarch64-manylinux_2_34 --python-version 3.11
         --generate-hashes --no-header --no-annotate --no-emit-index-url)
"${compile[@]}" --override "$hardware" --no-emit-package torch --no-emit-package vllm-ascend \
    --no-emit-package pytest --no-emit-package pytest-asyncio --no-emit-package pytest-timeout \
    --no-emit-package hypothesis \
    ascend-hardware.in -o ascend-hardware.lock
grep '^torch==' ascend-hardware.in | "${compile[@]}" --no-deps - -o ascend-torch.lock
grep '^vllm==' ascend-published.in | "${compile[@]}" --no-deps --no-binary vllm - -o ascend-vllm.lock
# No GPU build, no GPU compiler (vllm-ascend takes its presence for Triton on the device).
python3 - ascend-emulated.lock <<'PY'
import pathlib, re, sys
path = pathlib.Path(sys.argv[1])
entries = re.split(r"(?m)^(?=\S)", path.read_text())
dropped = r"(torchaudio|torchcodec|torch-c-dlpack-ext|nvidia-|cuda-|triton|pywin32|win32-|httpx2-jsfetch|colorama)"
path.write_text("".join(e for e in entries if not re.match(dropped, e)))
PY
