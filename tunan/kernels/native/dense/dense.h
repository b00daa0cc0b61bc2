// Products with weights that are not quantised: the projection to the latents, a router's, and
// those into latent space and out of it. Sums are float32, in one order whatever the number of
// rows, threads or the instruction set: a row alone has the bits that it has among others.
#pragma once

#include <cstdint>

#include "float_type.h"
#include "status.h"

namespace tunan {

// out[b][m][n] = sum over k of x[b][m][k] * w[b][n][k], or, transposed, of x[b][m][k] * w[b][k][n].
// Strides are in elements; the last dimension of each is in one piece. Layout of plain C: the
// Python side mirrors it field by field.
struct DenseCall {
    const void* x;       // [batches][rows][inputs]
    const void* weight;  // [batches][outputs][inputs]; transposed: [batches][inputs][outputs]
    void* out;           // [batches][rows][outputs], not x
    int64_t x_stride, x_batch_stride;
    int64_t weight_stride, weight_batch_stride;
    int64_t out_stride, out_batch_stride;
    int64_t rows, inputs, outputs, batches;
    FloatType type;  // of all three: f32 or bf16
    int32_t transposed;
};

// Fails for another type, negative sizes and where there is no memory.
Status dense(const DenseCall& call);

}  // namespace tunan

TUNAN_API int tunan_dense(const tunan::DenseCall* call);
