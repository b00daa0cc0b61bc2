# No Triton: this chip can use neither package
"$VENV/bin/pip" uninstall -y triton triton-ascend
