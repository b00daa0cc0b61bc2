# vLLM @VLLM@, vllm-ascend @VLLM_ASCEND@ and what belongs to them, then this project
PINS=(torch==@TORCH@ torch-npu==@TORCH_NPU@)
get "setuptools>=77.0.3,<81" setuptools-rust "setuptools-scm>=8" wheel packaging jinja2 \
    scikit-build-core==1.1.2 "cmake>=3.26" ninja
get "${PINS[@]}" @TORCH_OPTIONS@ || die "torch @TORCH@ with torch-npu @TORCH_NPU@ could not be installed"
# As vLLM's source builds without kernels; the second name keeps "+empty" off its version.
export VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=@VLLM@ CARGO=false VLLM_REQUIRE_RUST_FRONTEND=0
export TORCH_DEVICE_BACKEND_AUTOLOAD=0
get --no-build-isolation "${PINS[@]}" vllm==@VLLM@ || die "vllm @VLLM@ could not be installed"
get "${PINS[@]}" vllm-ascend==@VLLM_ASCEND@ --extra-index-url @VARIANT_INDEX@ --extra-index-url @ASCEND_INDEX@ ||
    die "vllm-ascend @VLLM_ASCEND@ could not be installed"
# A triton that another package brought would hide the one for the NPU; so this one comes last.
"$VENV/bin/pip" uninstall -y triton triton-ascend
get --no-deps triton-ascend==@TRITON_ASCEND@ --extra-index-url @ASCEND_INDEX@ ||
    die "triton-ascend @TRITON_ASCEND@ could not be installed"
get --no-build-isolation "${PINS[@]}" "${SELF:-tunan==@VERSION@}" || die "this project could not be installed"
