
# The clone of this project.
SELF=@PROJECT@
LOCKS=$SELF/requirements
[ -f "$LOCKS/ascend-hardware.lock" ] || die "no $LOCKS/ascend-hardware.lock; set SELF in this script to the clone of this project"
# What a lock lists, its hashes checked, to the folder; and installs it, since others are built with it. What is
# built here has a hash of its own, so the folder gets the list without any.
locked() {
    "$VENV/bin/pip" wheel --require-hashes --no-deps --wheel-dir "$WHEELS" --requirement "$LOCKS/$1" "${@:2}" &&
        sed -e '/^ *--hash=/d' -e 's/ *\\$//' "$LOCKS/$1" >"$WHEELS/$1" &&
        "$VENV/bin/pip" install --no-index --find-links "$WHEELS" --no-deps --requirement "$WHEELS/$1"
}
# Builds or downloads what no lock has, and installs it.
get() {
    "$VENV/bin/pip" wheel --no-deps --wheel-dir "$WHEELS" "$@" &&
        "$VENV/bin/pip" install --no-index --find-links "$WHEELS" --no-deps "$@"
}
