// One element of a row of any type, for plain loops that the compiler vectorises.
#pragma once

#include "float_type.h"

namespace tunan {

TUNAN_INLINE float load_one(const void* row, FloatType type, int64_t i) {
    switch (type) {
        case FloatType::bf16: return float_of_bf16(static_cast<const uint16_t*>(row)[i]);
        case FloatType::f16: return float_of_f16(static_cast<const uint16_t*>(row)[i]);
        default: return static_cast<const float*>(row)[i];
    }
}

TUNAN_INLINE void store_one(void* row, FloatType type, int64_t i, float value) {
    switch (type) {
        case FloatType::bf16: static_cast<uint16_t*>(row)[i] = bf16_of_float(value); break;
        case FloatType::f16: static_cast<uint16_t*>(row)[i] = f16_of_float(value); break;
        default: static_cast<float*>(row)[i] = value;
    }
}

}  // namespace tunan
