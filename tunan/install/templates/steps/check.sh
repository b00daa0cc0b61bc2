# What is still missing
"$VENV/bin/tunan" doctor --target @TARGET@ || die "tunan doctor names what is missing, above"
echo "install: done. Edit $PREFIX/deploy.yaml, then: cp $PREFIX/systemd/*.service /etc/systemd/system/ && systemctl daemon-reload && systemctl enable --now tunan-serve tunan-monitor"
