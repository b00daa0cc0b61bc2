// Armv8.2-A with the dot product extension (Kunpeng 920, Cortex-A76, Neoverse N1).
#pragma once

#include "vec/neon_base.h"

namespace tunan::TUNAN_ISA {

constexpr int kMaxRows = 6;
constexpr int vectors_at_once(int rows) { return rows <= 2 ? 8 : 4; }

TUNAN_INLINE Ints dot(Ints sums, Weights weights, Bytes x) { return vdotq_s32(sums, weights, x); }
TUNAN_INLINE Ints dot_nibbles(Ints sums, Bytes nibbles, Bytes x) { return dot(sums, nibbles, x); }

}  // namespace tunan::TUNAN_ISA
