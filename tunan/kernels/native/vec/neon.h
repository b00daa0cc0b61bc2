// Armv8-A without dot products (Cortex-A72, Kunpeng 916).
#pragma once

#include "vec/neon_base.h"

namespace tunan::TUNAN_ISA {

constexpr int kMaxRows = 4;
constexpr int vectors_at_once(int) { return 4; }

TUNAN_INLINE Ints dot(Ints sums, Weights weights, Bytes x) {
    // A product is at most 128 * 128 in magnitude; sums of pairs are taken in 32 bits.
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(weights), vget_low_s8(x)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(weights, x));
    return vaddq_s32(sums, vpaddq_s32(low, high));
}
TUNAN_INLINE Ints dot_nibbles(Ints sums, Bytes nibbles, Bytes x) { return dot(sums, nibbles, x); }

}  // namespace tunan::TUNAN_ISA
