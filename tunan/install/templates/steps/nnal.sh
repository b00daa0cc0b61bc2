# NNAL, whose libatb.so has the fused operators; its installer asks for the toolkit's environment
# That script reads variables that are not set.
set +eu
# shellcheck source=/dev/null
. "$(toolkit_set_env)"
set -eu
install_cann @NNAL@
