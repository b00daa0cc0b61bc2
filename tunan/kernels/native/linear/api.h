// The C ABI of linear layers. Functions that return int return a Status.
#pragma once

#include <cstdint>

#include "status.h"

// The layout that packed weights have for the instruction set in use: a number and a version, the
// key of a file of packed weights.
TUNAN_API int tunan_linear_layout();
TUNAN_API int tunan_linear_layout_version();

// Bytes of packed weights; 0 if there is no such form (tunan_last_error).
// bits 8 or 4; group 0 (8 bits only), 32, 64 or 128; scale_type 0 (f32) or 1 (f16, in groups).
TUNAN_API int64_t tunan_linear_packed_bytes(int64_t outputs, int64_t inputs, int bits, int group,
                                            int scale_type, int has_zeros);

// Packs `values` (pack.h, PlainWeights) into `out`, at a multiple of 64 and `out_bytes` long.
TUNAN_API int tunan_linear_pack(const int8_t* values, const void* scales, const uint8_t* zeros,
                                int64_t outputs, int64_t inputs, int bits, int group,
                                int scale_type, void* out, int64_t out_bytes);

// What packed weights say of themselves: description[0 ... 6] become outputs, inputs, bits, group,
// scale_type, has_zeros, bytes. kBadPacking if this CPU's kernels cannot read them.
TUNAN_API int tunan_linear_describe(const void* packed, int64_t* description);

// Quantises rows (linear.h): values [rows][stride], scales [rows], sums [rows][stride / 32], with
// stride = tunan_linear_activation_stride(inputs).
TUNAN_API int64_t tunan_linear_activation_stride(int64_t inputs);

TUNAN_API int tunan_linear_quantize(const void* x, int x_type, int64_t x_stride, int64_t rows,
                                    int64_t inputs, int8_t* values, float* scales, int32_t* sums);

// y[rows][outputs] = x[rows][inputs] * weights' + bias (f32 [outputs] or null); x is quantised
// here.
TUNAN_API int tunan_linear(const void* packed, const void* x, int x_type, int64_t x_stride,
                           int64_t rows, const float* bias, void* y, int y_type, int64_t y_stride);

// The same with activations that are quantised already.
TUNAN_API int tunan_linear_quantized(const void* packed, const int8_t* values, const float* scales,
                                     const int32_t* sums, int64_t rows, int64_t inputs,
                                     const float* bias, void* y, int y_type, int64_t y_stride);
