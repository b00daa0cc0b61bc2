#!/usr/bin/env bash
# Creates .venv-ascend: the published torch_npu, vllm-ascend and vLLM 0.23 on torch's CPU build, and this
# project. The emulator is built into it afterwards (make setup-ascend). VENV_ASCEND and TORCH_INDEX come
# from the Makefile; torch_npu 2.13.0 and vllm-ascend 0.23.0 have a wheel in common for Python 3.11 only.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    echo "setup-ascend: $*" >&2
    exit 3
}

PYTHON=python3.11
command -v "$PYTHON" >/dev/null || die "no $PYTHON found; install Python 3.11 and run make again"
command -v g++ >/dev/null || die "no g++ found; install a C++17 compiler and run make again"
if [ ! -x "$VENV_ASCEND/bin/pip" ]; then
    "$PYTHON" -m venv "$VENV_ASCEND" || die "$PYTHON cannot make a virtual environment"
fi
pip=("$VENV_ASCEND/bin/pip" --disable-pip-version-check)

echo "setup-ascend: installing torch"
if ! "${pip[@]}" install --quiet --no-deps -r requirements/torch.txt 2>/dev/null; then
    "${pip[@]}" install --quiet --no-deps --index-url "$TORCH_INDEX" -r requirements/torch.txt ||
        die "torch's CPU build was found neither by pip nor at $TORCH_INDEX"
fi
echo "setup-ascend: installing vLLM's requirements"
"${pip[@]}" install --quiet --no-deps --require-hashes -r requirements/ascend-emulated.lock ||
    die "the packages of requirements/ascend-emulated.lock could not be installed"
echo "setup-ascend: installing vLLM (its source, no kernels), torch_npu and vllm-ascend"
# --no-deps: vllm-ascend 0.23.0 declares torch 2.10.0, which this environment does not have.
# VLLM_VERSION_OVERRIDE: otherwise the build calls itself 0.23.0+empty, which pip refuses. The Rust
# front end is optional and not wanted.
VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.23.0 CARGO=false VLLM_REQUIRE_RUST_FRONTEND=0 \
    "${pip[@]}" install --quiet --no-deps --no-build-isolation --no-binary vllm vllm==0.23.0 ||
    die "vLLM 0.23.0 could not be built from its source"
"${pip[@]}" install --quiet --no-deps torch_npu==2.13.0 vllm_ascend==0.23.0 ||
    die "torch_npu or vllm-ascend could not be installed"
# vllm-ascend's and torch_npu's start-up hooks need a device; building needs neither.
export TORCH_DEVICE_BACKEND_AUTOLOAD=0
"${pip[@]}" install --quiet --no-deps --no-build-isolation --editable . ||
    die "this project could not be installed into $VENV_ASCEND"
echo "setup-ascend: done, $(du -sm "$VENV_ASCEND" | cut -f1) MB in $VENV_ASCEND"
