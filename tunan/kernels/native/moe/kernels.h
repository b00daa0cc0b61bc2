// What one instruction set provides for mixtures of experts.
#pragma once

#include <cstdint>

#include "float_type.h"
#include "isa.h"

namespace tunan {

struct ExpertKernels {
    // totals[i] += weight * row[i], each rounded to float32
    void (*add_weighted)(float* totals, const void* row, FloatType type, float weight,
                         int64_t size);
    void (*store)(const float* totals, void* row, FloatType type, int64_t size);
};

}  // namespace tunan
