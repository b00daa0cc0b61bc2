// What one instruction set provides for products with weights that are not quantised.
#pragma once

#include "dense/dense.h"
#include "isa.h"

namespace tunan {

// Weights are read in steps of this many; a row of x as float32 is padded to a multiple with zeros.
constexpr int64_t kDenseStep = 32;

constexpr int64_t dense_padded(int64_t inputs) {
    return (inputs + kDenseStep - 1) / kDenseStep * kDenseStep;
}

struct DenseKernels {
    // One row of x as float32 [dense_padded(inputs)], in the order in which `run` wants it.
    void (*widen)(const DenseCall& call, int64_t batch, int64_t row, float* to);
    // Outputs [first, last) of all rows of a batch; x is what `widen` made of the batch's rows.
    void (*run)(const DenseCall& call, int64_t batch, const float* x, int64_t first, int64_t last);
};

}  // namespace tunan
