// No vector instructions: the reference, and what runs where nothing else does.
#pragma once

#include <cmath>

#include "float_type.h"

namespace tunan::TUNAN_ISA {

constexpr int kLanes = 8;
constexpr bool kWeightsAreUnsigned = false;
constexpr int kMaxRows = 4;
constexpr int vectors_at_once(int) { return 2; }

struct Ints {
    int32_t lane[kLanes];
};
struct Floats {
    float lane[kLanes];
};
struct Bytes {
    int8_t lane[4 * kLanes];
};
using Weights = Bytes;

// Result's lane i is `expression`, in which a, b and c are the arguments' lanes.
#define TUNAN_EACH_LANE(Result, expression)                         \
    Result result;                                                  \
    for (int i = 0; i < kLanes; i++) result.lane[i] = (expression); \
    return result

TUNAN_INLINE Ints broadcast(int32_t value) { TUNAN_EACH_LANE(Ints, value); }
TUNAN_INLINE Ints zero_ints() { return broadcast(int32_t{0}); }
TUNAN_INLINE Ints load_ints(const int32_t* p) { TUNAN_EACH_LANE(Ints, p[i]); }
TUNAN_INLINE Ints widen_u8(const uint8_t* p) { TUNAN_EACH_LANE(Ints, p[i]); }
TUNAN_INLINE Ints add(Ints a, Ints b) { TUNAN_EACH_LANE(Ints, a.lane[i] + b.lane[i]); }
TUNAN_INLINE Ints subtract(Ints a, Ints b) { TUNAN_EACH_LANE(Ints, a.lane[i] - b.lane[i]); }
TUNAN_INLINE Ints multiply(Ints a, Ints b) { TUNAN_EACH_LANE(Ints, a.lane[i] * b.lane[i]); }
TUNAN_INLINE Ints larger(Ints a, Ints b) {
    TUNAN_EACH_LANE(Ints, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
TUNAN_INLINE int32_t largest(Ints a) {
    int32_t result = a.lane[0];
    for (int i = 1; i < kLanes; i++) result = a.lane[i] > result ? a.lane[i] : result;
    return result;
}
TUNAN_INLINE int32_t sum(Ints a) {
    int32_t result = 0;
    for (int i = 0; i < kLanes; i++) result += a.lane[i];
    return result;
}

TUNAN_INLINE Bytes load_bytes(const uint8_t* p) {
    Bytes result;
    __builtin_memcpy(&result, p, sizeof result);
    return result;
}
TUNAN_INLINE Bytes broadcast_bytes(const int8_t* four) {
    Bytes result;
    for (int i = 0; i < 4 * kLanes; i++) result.lane[i] = four[i % 4];
    return result;
}
TUNAN_INLINE Weights prepare(Bytes weights) { return weights; }
TUNAN_INLINE Bytes low_nibbles(Bytes b) {
    for (int8_t& value : b.lane) value &= 15;
    return b;
}
TUNAN_INLINE Bytes high_nibbles(Bytes b) {
    for (int8_t& value : b.lane) value = static_cast<int8_t>(static_cast<uint8_t>(value) >> 4);
    return b;
}
TUNAN_INLINE Ints dot(Ints sums, Weights weights, Bytes x) {
    for (int i = 0; i < 4 * kLanes; i++) sums.lane[i / 4] += weights.lane[i] * x.lane[i];
    return sums;
}
TUNAN_INLINE Ints dot_nibbles(Ints sums, Bytes nibbles, Bytes x) { return dot(sums, nibbles, x); }

TUNAN_INLINE Floats broadcast(float value) { TUNAN_EACH_LANE(Floats, value); }
TUNAN_INLINE Floats load_floats(const float* p) { TUNAN_EACH_LANE(Floats, p[i]); }
TUNAN_INLINE Floats load_bf16(const uint16_t* p) { TUNAN_EACH_LANE(Floats, float_of_bf16(p[i])); }
TUNAN_INLINE Floats load_f16(const uint16_t* p) { TUNAN_EACH_LANE(Floats, float_of_f16(p[i])); }
TUNAN_INLINE Floats multiply(Floats a, Floats b) { TUNAN_EACH_LANE(Floats, a.lane[i] * b.lane[i]); }
TUNAN_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
    TUNAN_EACH_LANE(Floats, __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]));
}
TUNAN_INLINE Floats to_floats(Ints a) { TUNAN_EACH_LANE(Floats, static_cast<float>(a.lane[i])); }
TUNAN_INLINE Ints round_to_ints(Floats a) {
    TUNAN_EACH_LANE(Ints, static_cast<int32_t>(__builtin_nearbyintf(a.lane[i])));
}
TUNAN_INLINE Ints magnitude_bits(Floats a) {
    TUNAN_EACH_LANE(Ints, static_cast<int32_t>(bits_of_float(a.lane[i]) & 0x7fffffffu));
}

TUNAN_INLINE void store(float* p, Floats a) { __builtin_memcpy(p, &a, sizeof a); }
TUNAN_INLINE void store_bytes(int8_t* p, Ints a) {
    for (int i = 0; i < kLanes; i++) p[i] = static_cast<int8_t>(a.lane[i]);
}
TUNAN_INLINE void store_bf16(uint16_t* p, Floats a) {
    for (int i = 0; i < kLanes; i++) p[i] = bf16_of_float(a.lane[i]);
}
TUNAN_INLINE void store_f16(uint16_t* p, Floats a) {
    for (int i = 0; i < kLanes; i++) p[i] = f16_of_float(a.lane[i]);
}

#undef TUNAN_EACH_LANE

}  // namespace tunan::TUNAN_ISA
