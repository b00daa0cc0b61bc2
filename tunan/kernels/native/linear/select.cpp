#include "linear/select.h"

namespace tunan {

const LinearKernels& selected_linear_kernels() {
    switch (selected_isa()) {
#define TUNAN_CASE(isa) \
    case Isa::isa: return isa::linear_kernels();
        TUNAN_ISAS(TUNAN_CASE)
#undef TUNAN_CASE
        default: return scalar::linear_kernels();
    }
}

}  // namespace tunan
