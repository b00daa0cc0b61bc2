// Root-mean-square norm and SwiGLU, each with the quantisation that the next linear layer needs.
// Rounding follows vLLM: what it keeps in the activations' type between two steps is rounded here.
// Layouts of plain C: the Python side mirrors them field by field.
#pragma once

#include <cstdint>

#include "float_type.h"
#include "status.h"

namespace tunan {

// Rows as linear.h's Activations has them; all null: not wanted.
struct QuantizedRows {
    int8_t* values;  // [rows][activation_stride(size)]
    float* scales;   // [rows]
    int32_t* sums;   // [rows][activation_sums(size)]
};

// x[size] / sqrt(mean(x^2) + epsilon) * weight; with a residual, of x + residual, which replaces
// it.
struct NormCall {
    const void* x;
    void* residual;      // or null
    const void* weight;  // [size], or null
    void* out;           // may be x; null: only quantised
    QuantizedRows quantized;
    int64_t x_stride, residual_stride, out_stride;  // elements
    int64_t rows, size;
    int32_t type;  // FloatType of everything above
    float epsilon;
};

// silu(x[0, size)) * x[size, 2 size)
struct SwigluCall {
    const void* x;
    void* out;  // null: only quantised
    QuantizedRows quantized;
    int64_t x_stride, out_stride;
    int64_t rows, size;
    int32_t type;
};

Status rms_norm(const NormCall& call);
Status swiglu(const SwigluCall& call);

}  // namespace tunan

TUNAN_API int tunan_rms_norm(const tunan::NormCall* call);
TUNAN_API int tunan_swiglu(const tunan::SwigluCall* call);
