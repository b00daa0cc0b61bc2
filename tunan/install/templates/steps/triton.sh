# Triton for the NPU: last of the engine, as one that another package brought would hide it
"$VENV/bin/pip" uninstall -y triton triton-ascend
get triton-ascend==@TRITON_ASCEND@ --extra-index-url @ASCEND_INDEX@ ||
    die "triton-ascend @TRITON_ASCEND@ could not be installed"
