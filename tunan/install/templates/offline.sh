
# Nothing is asked of a network: all Python packages come from this folder, as they were when it was filled.
WHEELS=@WHEELS@
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$WHEELS
(cd "$WHEELS" && sha256sum --check --strict --quiet @SUMS@) >&2 || die "a file in $WHEELS is not as it was; fill the folder again"
