# CANN @CANN@: the toolkit
install_cann @TOOLKIT@
[ -n "$(toolkit_set_env)" ] || die "no $ASCEND/cann/set_env.sh and no $ASCEND/ascend-toolkit/set_env.sh: the toolkit is not there"
