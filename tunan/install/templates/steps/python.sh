# Python 3.11 or 3.12, and an environment
find_python() {
    # Run, not looked up: a name on PATH may be a version manager's stub.
    for PYTHON in python3.11 python3.12 python3; do
        if "$PYTHON" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])' \
            2>/dev/null; then return; fi
    done
    PYTHON=
}
find_python
if [ -z "$PYTHON" ] && [ "$(id -u)" = 0 ]; then
    @SYSTEM_INSTALL@ @SYSTEM_PYTHON@ || true
    find_python
fi
[ -n "$PYTHON" ] || die "no Python 3.11 or 3.12 with venv; as root: @SYSTEM_INSTALL@ @SYSTEM_PYTHON@"
[ -x "$VENV/bin/pip" ] || "$PYTHON" -m venv "$VENV" || die "$PYTHON could not make $VENV"
