// Armv8.6-A's products of int8 matrices (Neoverse V1, N2 and V2; Kunpeng 920 of the 7270Z
// generation) beside the dot products of neon_dotprod.h.
#pragma once

#include "vec/neon_dotprod.h"

#define TUNAN_HAS_ROW_PAIRS

namespace tunan::TUNAN_ISA {

// Eight inputs of the outputs that lie in lanes 0 and 1, and in lanes 2 and 3, of `first` (four
// inputs a lane) and `second` (the four after them).
TUNAN_INLINE Bytes low_pair(Bytes first, Bytes second) {
    return vreinterpretq_s8_s32(
        vzip1q_s32(vreinterpretq_s32_s8(first), vreinterpretq_s32_s8(second)));
}
TUNAN_INLINE Bytes high_pair(Bytes first, Bytes second) {
    return vreinterpretq_s8_s32(
        vzip2q_s32(vreinterpretq_s32_s8(first), vreinterpretq_s32_s8(second)));
}
// Eight inputs of two rows, or of one and zeros.
TUNAN_INLINE Bytes load_pair(const int8_t* rows) { return vld1q_s8(rows); }
TUNAN_INLINE Bytes load_single(const int8_t* row) {
    return vcombine_s8(vld1_s8(row), vdup_n_s8(0));
}
// sums [2 rows][2 outputs] += x [2][8] times weights [2][8].
TUNAN_INLINE Ints multiply_pairs(Ints sums, Bytes x, Bytes weights) {
    return vmmlaq_s32(sums, x, weights);
}
// The first (second) rows of two such sums.
TUNAN_INLINE Ints first_rows(Ints a, Ints b) {
    return vcombine_s32(vget_low_s32(a), vget_low_s32(b));
}
TUNAN_INLINE Ints second_rows(Ints a, Ints b) {
    return vcombine_s32(vget_high_s32(a), vget_high_s32(b));
}

}  // namespace tunan::TUNAN_ISA
