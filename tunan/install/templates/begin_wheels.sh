#!/usr/bin/env bash
# Fills the folder of Python packages for Tunan @VERSION@ on @TARGET@. Run it where there is a network, on the
# architecture (@MACHINE@) and the Python that the machine without one has. Copy the folder there and give
# the same command again: with a filled folder it installs.
set -euo pipefail

WHEELS=@WHEELS@
PREFIX=$WHEELS/building
VENV=$PREFIX/venv

die() {
    echo "install: $*" >&2
    exit 3
}
[ "$(uname -m)" = @MACHINE@ ] || die "this is $(uname -m); fill the folder on @MACHINE@"
mkdir -p "$WHEELS"
