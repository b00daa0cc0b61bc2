
# The vendor's files, which need an account there and so are fetched by hand.
PACKAGES=@PACKAGES@
ASCEND=@ASCEND@
REBOOT=

# The only file in PACKAGES with that name, which may have a * for the version: `vendor_file NAME PAGE`.
vendor_file() {
    local found
    mapfile -t found < <(compgen -G "$PACKAGES/$1" || true)
    [ "${#found[@]}" -gt 0 ] || die "no $1 in $PACKAGES; get it at $2 (with an account there)"
    [ "${#found[@]}" -eq 1 ] || die "${#found[@]} files are called $1 in $PACKAGES; leave the one that is meant"
    echo "${found[0]}"
}

# The version that a version.info names.
version_in() {
    if [ -f "$1" ]; then sed -n 's/^[Vv]ersion=//p' "$1" | head -n 1; fi
}

# `is_installed FILE VERSION`: whether VERSION is what the name of FILE says.
is_installed() {
    [ -n "$2" ] && [[ ${1##*/} == *"_$2_"* || ${1##*/} == *"_$2.run" ]]
}

# The toolkit's environment; CANN 8.5 and newer are in cann, those before in ascend-toolkit.
toolkit_set_env() {
    local file
    for file in "$ASCEND/cann/set_env.sh" "$ASCEND/ascend-toolkit/set_env.sh"; do
        if [ -f "$file" ]; then
            echo "$file"
            return
        fi
    done
}

# A CANN package, once: `install_cann NAME`.
install_cann() {
    local file done_before
    done_before=$PREFIX/installed/$1
    if [ -e "$done_before" ]; then
        echo "$1: installed before"
        return
    fi
    file=$(vendor_file "$1" @CANN_PAGE@)
    bash "$file" --install --install-for-all --quiet
    mkdir -p "$PREFIX/installed"
    touch "$done_before"
}
