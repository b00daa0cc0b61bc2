// Linear layers of packed int8 or int4 weights and int8 activations, for other kernels to call.
#pragma once

#include <cstdint>

#include "float_type.h"
#include "linear/layout.h"
#include "status.h"

namespace tunan {

// Activations are read in rows of this many bytes, a multiple of 128; those beyond K are zero.
constexpr int64_t activation_stride(int64_t inputs) { return (inputs + 127) / 128 * 128; }
// Sums of the activations of every 32 inputs of a row.
constexpr int64_t activation_sums(int64_t inputs) { return activation_stride(inputs) / 32; }

// Rows quantised with a scale each: x[m][k] is about values[m][k] * scales[m]. Values are -127 ...
// 127.
struct Activations {
    const int8_t* values;  // [rows][activation_stride(inputs)], at a multiple of 4
    const float* scales;   // [rows]
    const int32_t* sums;   // [rows][activation_sums(inputs)]
    int64_t rows;
    int64_t inputs;
};

struct LinearResult {
    void* data;  // row m, output n: element m * stride + n
    FloatType type;
    int64_t stride;  // elements
};

// Quantises rows of x, `x_stride` elements apart, as kernels.h says (quantize_row).
void quantize_rows(const void* x, FloatType type, int64_t x_stride, int64_t rows, int64_t inputs,
                   int8_t* values, float* scales, int32_t* sums);

// result[m][n] = scale[n] * x.scales[m] * sum over k of weight[n][k] * x.values[m][k] + bias[n];
// `bias` is [outputs] f32 or null. Fails if `packed` is of another layout or has other inputs.
Status linear(const void* packed, const Activations& x, const float* bias,
              const LinearResult& result);

// The weights that the next `rows` rows of a grouped product are multiplied by, and their bias,
// [outputs] f32 or null.
struct RowGroup {
    const void* packed;
    const float* bias;
    int64_t rows;
};

// `linear` for groups of rows that have weights of their own, all of one form: row i of the result
// is row sources[i] of x, or row i where `sources` is null, times the weights of the group that i
// lies in. The bits are those of `linear` for each group alone. x.rows is not looked at.
Status linear_groups(const RowGroup* groups, int64_t count, const Activations& x,
                     const int32_t* sources, const LinearResult& result);

// The header of packed weights that this CPU's kernels can read; null, after fail(), if they
// cannot.
const PackedHeader* read_header(const void* packed);

}  // namespace tunan
