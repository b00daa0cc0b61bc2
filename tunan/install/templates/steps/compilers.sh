# What the Python packages are built with, and the compiler that triton-ascend calls
wanted=(@SYSTEM_BUILD@)
{ @SYSTEM_REFRESH@ && @SYSTEM_INSTALL@ "${wanted[@]}" && @SYSTEM_AFTER@; } ||
    die "the system's packages could not be installed: @SYSTEM_INSTALL@ ${wanted[*]}"
