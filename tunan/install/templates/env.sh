# To be sourced: the environment of Tunan's programs on @TARGET@.
# The vendor's scripts read variables that need not be set, and go on after commands that fail.
TUNAN_SHELL=$-
set +eu
# shellcheck disable=SC1091
{
@SOURCES@
}
case $TUNAN_SHELL in *e*) set -e ;; esac
case $TUNAN_SHELL in *u*) set -u ;; esac
unset TUNAN_SHELL
export PATH="@PREFIX@/venv/bin:$PATH"
