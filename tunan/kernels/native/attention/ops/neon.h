// ARMv8.0: no integer dot product; the compiler vectorises the reference.
#include "attention/ops/neon_base.h"

namespace tunan {
namespace {

inline AttentionKernels best_attention_kernels() { return attention_kernels_of<VectorOps>(); }

}  // namespace
}  // namespace tunan
