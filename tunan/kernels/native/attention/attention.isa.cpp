// The attention kernels of one instruction set.
#define TUNAN_QUOTED_(path) #path
#define TUNAN_QUOTED(path) TUNAN_QUOTED_(path)
// clang-format off: it would put spaces into the path
#include TUNAN_QUOTED(attention/ops/TUNAN_ISA.h)
// clang-format on

namespace tunan {
namespace TUNAN_ISA {

const AttentionKernels& attention_kernels() {
    static const AttentionKernels kernels = best_attention_kernels();
    return kernels;
}

}  // namespace TUNAN_ISA
}  // namespace tunan
