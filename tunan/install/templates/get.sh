# A package with what it needs: `get ARGUMENT_OF_PIP...`
get() {
    "$VENV/bin/pip" install ${LOCK:+--constraint "$LOCK"} "$@"
}
