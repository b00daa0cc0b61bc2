// A mixture of experts in one call: the rows of every token are gathered expert by expert, then
// gate and up, SwiGLU and quantise, down, and the weighted sum of a token's experts. The same
// operations as expert by expert, so the same bits: a token's result depends neither on the other
// tokens nor on the order its experts are listed in.
// Layouts of plain C: the Python side mirrors them field by field.
#pragma once

#include <cstdint>

#include "float_type.h"
#include "status.h"

namespace tunan {

// out[m] = sum over the experts e of token m, from the lowest e to the highest, of
// weight * down_e(swiglu(gate_up_e(x[m]))). x is quantised a row at a time, as is SwiGLU's result;
// gate_up's and down's results are rounded to the type; the sum is float32 and then rounded to it.
struct ExpertsCall {
    const void* x;           // [rows][hidden]
    const int32_t* experts;  // [rows][top_k], below `count`; a negative one adds nothing
    const float* weights;    // [rows][top_k]
    const void* gate_up;  // packed [2 intermediate][hidden], every gate_up_bytes that of the next
    const void* down;     // packed [hidden][intermediate], every down_bytes that of the next
    void* out;            // [rows][hidden], not x
    int64_t gate_up_bytes, down_bytes;
    int64_t x_stride, out_stride;  // elements
    int64_t rows;
    int32_t top_k, count;
    int32_t hidden, intermediate;
    int32_t type;  // FloatType of x and out
};

Status run_experts(const ExpertsCall& call);

// routed[i] = shared[i] + routed[i] * scale, or routed[i] * scale without shared experts: each step
// rounded to the type.
struct AddExpertsCall {
    void* routed;
    const void* shared;  // or null
    FloatType type;
    float scale;
    int64_t size;
};

void add_up_experts(const AddExpertsCall& call);

}  // namespace tunan

TUNAN_API int tunan_experts(const tunan::ExpertsCall* call);
