# A new driver or firmware works after a restart of the machine only
[ -z "$REBOOT" ] || die "driver and firmware are in; restart the machine, then run this again"
npu-smi info >/dev/null || die "npu-smi info fails: the driver does not run; see its log in /var/log/ascend_seclog"
