// What one instruction set provides for norms and SwiGLU: one row each. `work` holds `size` floats.
#pragma once

#include "isa.h"
#include "norm/norm.h"

namespace tunan {

struct NormKernels {
    void (*norm_row)(const NormCall& call, int64_t row, float* work);
    void (*swiglu_row)(const SwigluCall& call, int64_t row, float* work);
};

}  // namespace tunan
