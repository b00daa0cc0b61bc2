
# The clone of this project.
SELF=@PROJECT@
LOCKS=$SELF/requirements
[ -f "$LOCKS/ascend-hardware.lock" ] || die "no $LOCKS/ascend-hardware.lock; set SELF in this script to the clone of this project"
# What a lock lists, with the hashes in it: `locked LOCK ARGUMENT_OF_PIP...`
locked() {
    "$VENV/bin/pip" install --require-hashes --no-deps --requirement "$LOCKS/$1" "${@:2}"
}
# What no lock has, without what it declares: `get ARGUMENT_OF_PIP...`
get() {
    "$VENV/bin/pip" install --no-deps "$@"
}
