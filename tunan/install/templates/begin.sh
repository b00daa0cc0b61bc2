#!/usr/bin/env bash
# Installs Tunan @VERSION@ for @TARGET@ on @SYSTEM@, @MACHINE@. Run it on that machine; it may be run again,
# and what is there already is left alone. A failure is one line on standard error and status 3.
set -euo pipefail

PREFIX=@PREFIX@
VENV=$PREFIX/venv

die() {
    echo "install: $*" >&2
    exit 3
}
