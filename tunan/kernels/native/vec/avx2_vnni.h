// AVX2 with VNNI in its VEX encoding (client CPUs since Alder Lake and Zen 5).
#pragma once

#include "vec/avx2_base.h"

namespace tunan::TUNAN_ISA {

using Weights = __m256i;

constexpr bool kWeightsAreUnsigned = true;
constexpr int kMaxRows = 6;
constexpr int vectors_at_once(int rows) { return rows <= 2 ? 4 : 2; }

TUNAN_INLINE Weights prepare(Bytes weights) { return weights; }
TUNAN_INLINE Ints dot(Ints sums, Weights weights, Bytes x) {
    asm("%{vex%} vpdpbusd %2,%1,%0" : "+x"(sums) : "x"(weights), "x"(x));
    return sums;
}
TUNAN_INLINE Ints dot_nibbles(Ints sums, Bytes nibbles, Bytes x) { return dot(sums, nibbles, x); }

}  // namespace tunan::TUNAN_ISA
