# This project
get --no-build-isolation "${SELF:-tunan==@VERSION@}" || die "this project could not be installed"
