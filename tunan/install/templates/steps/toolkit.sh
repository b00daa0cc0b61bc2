# CANN @CANN@: the toolkit
install_cann @TOOLKIT@
[ -f "$ASCEND/ascend-toolkit/set_env.sh" ] || die "no $ASCEND/ascend-toolkit/set_env.sh: the toolkit is not there"
