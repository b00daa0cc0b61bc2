# What the setup scripts share; sourced, not run. It needs SETUP (the script's name, for messages)
# and VENV (the environment's folder).

die() {
    echo "$SETUP: $*" >&2
    exit 3
}

# Installs with pip, quietly: `install WHAT ARGUMENT...`. A failure is one line with pip's own reason;
# all that pip said is in the log that it names.
install() {
    local what=$1 log="$VENV/install.log" reason
    shift
    "$VENV/bin/pip" --disable-pip-version-check install --quiet --no-deps "$@" >"$log" 2>&1 && return
    if grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|Name or service not known|Temporary failure' "$log"; then
        reason="the package index did not answer"
    else
        reason=$(grep -m1 '^ *ERROR: ' "$log" | sed 's/^ *ERROR: //; s/[.:]*$//')
    fi
    die "$what could not be installed: ${reason:-pip failed} (all of it: $log)"
}

# torch's CPU build: from the index that pip knows, else from TORCH_INDEX.
install_torch() {
    echo "$SETUP: installing torch (about 200 MB to download)"
    "$VENV/bin/pip" --disable-pip-version-check install --quiet --no-deps -r requirements/torch.txt 2>/dev/null ||
        "$VENV/bin/pip" --disable-pip-version-check install --quiet --no-deps --index-url "$TORCH_INDEX" \
            -r requirements/torch.txt 2>/dev/null ||
        die "torch's CPU build was found neither by pip nor at $TORCH_INDEX; put the wheel in a folder and set PIP_FIND_LINKS to it"
}
