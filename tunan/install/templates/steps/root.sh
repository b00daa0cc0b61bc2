# Only root may install a driver
[ "$(id -u)" = 0 ] || die "run it as root"
[ "$(uname -m)" = @MACHINE@ ] || die "this is $(uname -m), the steps are for @MACHINE@"
