locked() {
    "$VENV/bin/pip" install --no-deps --requirement "$WHEELS/$1" "${@:2}"
}
get() {
    "$VENV/bin/pip" install --no-deps "$@"
}
