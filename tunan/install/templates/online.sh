
# The clone of this project.
SELF=@PROJECT@
LOCK=$SELF/requirements/ascend-hardware.lock
[ -f "$LOCK" ] || die "no $LOCK; set SELF in this script to the clone of this project"
# vLLM's own wheels have kernels for GPUs; its source builds without any.
export PIP_NO_BINARY=vllm
