#!/usr/bin/env bash
# Creates .venv-ascend: the published torch_npu, vllm-ascend and vLLM 0.23 on torch's CPU build, and this
# project. The emulator is built into it afterwards (make setup-ascend). VENV_ASCEND and TORCH_INDEX come
# from the Makefile; torch_npu 2.13.0 and vllm-ascend 0.23.0 have a wheel in common for Python 3.11 only.
set -euo pipefail
cd "$(dirname "$0")/.."
SETUP=setup-ascend
VENV=$VENV_ASCEND
. scripts/installing.sh

PYTHON=python3.11
# Run, not looked up: a name on PATH may be a version manager's stub.
"$PYTHON" -c '' 2>/dev/null || die "no $PYTHON found; install Python 3.11 and run make again"
command -v g++ >/dev/null || die "no g++ found; install a C++20 compiler and run make again"
if [ ! -x "$VENV/bin/pip" ]; then
    "$PYTHON" -m venv "$VENV" 2>/dev/null ||
        die "$PYTHON cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3.11-venv"
fi

install_torch
echo "$SETUP: installing what vLLM and vllm-ascend need"
install "requirements/ascend-emulated.lock" --require-hashes -r requirements/ascend-emulated.lock
echo "$SETUP: installing vLLM (its source, no kernels), torch_npu and vllm-ascend"
# Without what they declare: vllm-ascend 0.23.0 wants torch 2.10.0, which this environment does not
# have. VLLM_VERSION_OVERRIDE: otherwise the build calls itself 0.23.0+empty, which pip refuses. The
# Rust front end is optional and not wanted.
export VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.23.0 CARGO=false VLLM_REQUIRE_RUST_FRONTEND=0
install "requirements/ascend-published.lock" --no-build-isolation --no-binary vllm --require-hashes \
    -r requirements/ascend-published.lock
# vllm-ascend's and torch_npu's start-up hooks need a device; building needs neither.
export TORCH_DEVICE_BACKEND_AUTOLOAD=0
install "this project" --no-build-isolation --editable .
echo "$SETUP: done, $(du -sm "$VENV" | cut -f1) MB in $VENV"
