# vLLM @VLLM@, vllm-ascend @VLLM_ASCEND@ and what belongs to them
locked ascend-hardware.lock || die "the packages of ascend-hardware.lock could not be installed"
@TORCH_STEP@ || die "torch @TORCH@ could not be installed"
# As vLLM's source builds without kernels; its own wheels have those for GPUs. The second name keeps "+empty" off its
# version.
export VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=@VLLM@ CARGO=false VLLM_REQUIRE_RUST_FRONTEND=0
export TORCH_DEVICE_BACKEND_AUTOLOAD=0
locked ascend-vllm.lock @FROM_SOURCE@--no-build-isolation || die "vllm @VLLM@ could not be installed"
get vllm-ascend==@VLLM_ASCEND@ --extra-index-url @VARIANT_INDEX@ --extra-index-url @ASCEND_INDEX@ ||
    die "vllm-ascend @VLLM_ASCEND@ could not be installed"
