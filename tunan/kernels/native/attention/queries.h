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

// Symmetric int8: returns the scale, writes the values and their sum.
inline float quantize_query(const void* q, DType type, int size, int8_t* values, int32_t& sum) {
    float top = 0.f;
    for (int d = 0; d < size; ++d) {
        const float x = load_float(q, type, d);
        const float a = x < 0 ? -x : x;
        top = a > top ? a : top;
    }
    const float inverse = top > 1e-30f ? 127.f / top : 0.f;
    sum = 0;
    for (int d = 0; d < size; ++d) {
        const float x = load_float(q, type, d) * inverse;
        values[d] = static_cast<int8_t>(static_cast<int32_t>(x + (x < 0 ? -0.5f : 0.5f)));
        sum += values[d];
    }
    return top > 1e-30f ? top / 127.f : 0.f;
}

}  // namespace
}  // namespace tunan
