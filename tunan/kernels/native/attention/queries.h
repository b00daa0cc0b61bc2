// One query row as the products take it. Included by one translation unit per instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/cache_layout.h"
#include "float_type.h"

namespace tunan {
namespace {

inline float load_float(const void* p, DType type, int64_t i) {
    return type == DType::f32 ? static_cast<const float*>(p)[i]
                              : float_of_bf16(static_cast<const uint16_t*>(p)[i]);
}

template <DType kType>
inline float quantize_query_of(const void* q, int size, int8_t* values, int32_t& sum) {
    uint32_t top_bits = 0;  // magnitudes are ordered as their bits are, NaNs last
    for (int d = 0; d < size; ++d) {
        const uint32_t bits = bits_of_float(load_float(q, kType, d)) & 0x7fffffffu;
        top_bits = bits > top_bits ? bits : top_bits;
    }
    const float top = float_of_bits(top_bits);
    const bool defined = top_bits < 0x7f800000u;
    sum = 0;
    if (!defined || top <= 1e-30f) {
        std::memset(values, 0, size);
        return defined ? 0.f : __builtin_nanf("");
    }
    const float inverse = 127.f / top;
    int32_t total = 0;
    for (int d = 0; d < size; ++d) {
        const float x = load_float(q, kType, d) * inverse;
        const int32_t value = static_cast<int32_t>(x + (x < 0 ? -0.5f : 0.5f));
        values[d] = static_cast<int8_t>(value);
        total += value;
    }
    sum = total;
    return top / 127.f;
}

// Symmetric int8: returns the scale, writes the values and their sum. A query with a NaN or an
// infinity becomes zeros with a NaN for its scale, so that every score of it is a NaN.
inline float quantize_query(const void* q, DType type, int size, int8_t* values, int32_t& sum) {
    return type == DType::f32 ? quantize_query_of<DType::f32>(q, size, values, sum)
                              : quantize_query_of<DType::bf16>(q, size, values, sum);
}

}  // namespace
}  // namespace tunan
