// The reference, and what a CPU without anything better runs.
#define TUNAN_VECTOR_BYTES 16
#include "attention/vectors.h"

namespace tunan {
namespace {

inline FloatVector fma(FloatVector a, FloatVector b, FloatVector c) { return a * b + c; }

}  // namespace
}  // namespace tunan

#include "attention/body.h"

namespace tunan {
namespace {

inline AttentionKernels best_attention_kernels() { return attention_kernels_of<VectorOps>(); }

}  // namespace
}  // namespace tunan
