// One query row as the products take it. Included by one translation unit per instruction set.
#pragma once

#include <cstdint>

#include "attention/cache_layout.h"
#include "float_type.h"

namespace tunan {
namespace {

inline float load_float(const void* p, DType type, int64_t i) {
    return type == DType::f32 ? static_cast<const float*>(p)[i]
                              : float_of_bf16(static_cast<const uint16_t*>(p)[i]);
}

// Symmetric int8: returns the scale, writes the values and their sum. A query with a NaN or an
// infinity becomes zeros with a NaN for its scale, so that every score of it is a NaN.
inline float quantize_query(const void* q, DType type, int size, int8_t* values, int32_t& sum) {
    uint32_t top_bits = 0;  // magnitudes are ordered as their bits are, NaNs last
    for (int d = 0; d < size; ++d) {
        const uint32_t bits = bits_of_float(load_float(q, type, d)) & 0x7fffffffu;
        top_bits = bits > top_bits ? bits : top_bits;
    }
    const float top = float_of_bits(top_bits);
    const bool defined = top_bits < 0x7f800000u;
    const bool usable = defined && top > 1e-30f;
    const float inverse = usable ? 127.f / top : 0.f;
    sum = 0;
    for (int d = 0; d < size; ++d) {
        const float x = usable ? load_float(q, type, d) * inverse : 0.f;
        values[d] = static_cast<int8_t>(static_cast<int32_t>(x + (x < 0 ? -0.5f : 0.5f)));
        sum += values[d];
    }
    return usable ? top / 127.f : defined ? 0.f : __builtin_nanf("");
}

}  // namespace
}  // namespace tunan
