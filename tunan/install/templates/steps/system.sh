# What the driver's module is built with
wanted=(@SYSTEM_DRIVER@)
{ @SYSTEM_REFRESH@ && @SYSTEM_INSTALL@ "${wanted[@]}"; } ||
    die "the system's packages could not be installed: @SYSTEM_INSTALL@ ${wanted[*]}"
