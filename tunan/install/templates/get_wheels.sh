
# The clone of this project.
SELF=@PROJECT@
LOCK=$SELF/requirements/ascend-hardware.lock
[ -f "$LOCK" ] || die "no $LOCK; set SELF in this script to the clone of this project"
# Builds or downloads a package and what it needs, and installs that, since others are built with it.
get() {
    PIP_NO_BINARY=vllm "$VENV/bin/pip" wheel --constraint "$LOCK" --wheel-dir "$WHEELS" "$@" &&
        "$VENV/bin/pip" install --no-index --find-links "$WHEELS" "$@"
}
