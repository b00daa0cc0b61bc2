// What one instruction set provides for mixtures of experts.
#pragma once

#include <cstdint>

#include "float_type.h"
#include "isa.h"
#include "moe/moe.h"

namespace tunan {

struct ExpertKernels {
    // totals[i] += weight * row[i], each rounded to float32
    void (*add_weighted)(float* totals, const void* row, FloatType type, float weight,
                         int64_t size);
    void (*store)(const float* totals, void* row, FloatType type, int64_t size);
    // Elements [first, last) of both.
    void (*add_up)(const AddExpertsCall& call, int64_t first, int64_t last);
};

}  // namespace tunan
