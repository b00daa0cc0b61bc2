// Vectors of TUNAN_VECTOR_BYTES in the compiler's own terms, which every instruction set knows.
// Everything is in an unnamed namespace: each set's translation unit must keep its own copy.
#pragma once

#include <cstdint>

#include "attention/cache_layout.h"

namespace tunan {
namespace {

typedef float FloatVector __attribute__((vector_size(TUNAN_VECTOR_BYTES), may_alias, aligned(4)));
typedef int32_t IntVector __attribute__((vector_size(TUNAN_VECTOR_BYTES), may_alias, aligned(4)));
typedef uint8_t ByteVector
    __attribute__((vector_size(TUNAN_VECTOR_BYTES / 4), may_alias, aligned(1)));
constexpr int kLanes = TUNAN_VECTOR_BYTES / 4;
constexpr int kPerGroup = kGroup / kLanes;  // vectors that cover 16 lanes

inline FloatVector load(const float* p) { return *reinterpret_cast<const FloatVector*>(p); }
inline void store(float* p, FloatVector v) { *reinterpret_cast<FloatVector*>(p) = v; }
inline FloatVector broadcast(float value) { return value - FloatVector{}; }

inline IntVector load_ints(const int32_t* p) { return *reinterpret_cast<const IntVector*>(p); }
inline FloatVector to_floats(IntVector v) { return __builtin_convertvector(v, FloatVector); }
inline IntVector to_ints(FloatVector v) { return __builtin_convertvector(v, IntVector); }
inline FloatVector larger(FloatVector a, FloatVector b) { return a > b ? a : b; }

// The two bf16 values of every lane, widened.
inline FloatVector first_bf16(IntVector pair) { return reinterpret_cast<FloatVector>(pair << 16); }
inline FloatVector second_bf16(IntVector pair) {
    return reinterpret_cast<FloatVector>(pair & static_cast<int32_t>(0xffff0000));
}

}  // namespace
}  // namespace tunan
