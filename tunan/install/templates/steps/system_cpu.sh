# What the CPU kernels are built with
if ! command -v g++ >/dev/null || ! command -v make >/dev/null || ! command -v cmake >/dev/null; then
    [ "$(id -u)" = 0 ] || die "g++, make or cmake is missing; as root: @SYSTEM_INSTALL@ @SYSTEM_CPU@"
    { @SYSTEM_REFRESH@ && @SYSTEM_INSTALL@ @SYSTEM_CPU@; } ||
        die "the system's packages could not be installed: @SYSTEM_INSTALL@ @SYSTEM_CPU@"
fi
