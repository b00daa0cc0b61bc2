// AVX-512 with VNNI, and with bf16 products where the CPU has them.
#include "attention/ops/avx512_base.h"

namespace tunan {
namespace {

inline AttentionKernels best_attention_kernels() {
    return __builtin_cpu_supports("avx512bf16") ? attention_kernels_of<Avx512Bf16Ops>()
                                                : attention_kernels_of<Avx512VnniOps>();
}

}  // namespace
}  // namespace tunan
