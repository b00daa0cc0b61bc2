// AVX2 without VNNI: dot products by vpmaddubsw, kept from saturating.
#pragma once

#include "vec/avx2_base.h"

namespace tunan::TUNAN_ISA {

constexpr bool kWeightsAreUnsigned = false;
constexpr int kMaxRows = 4;
constexpr int vectors_at_once(int rows) { return rows == 1 ? 4 : 2; }

// vpmaddubsw adds two products in 16 bits with saturation. Magnitudes of weights (at most 128)
// times activations of -127 to 127 with the weight's sign stay within 2 * 128 * 127 = 32512.
struct Weights {
    Bytes magnitudes;
    Bytes values;
};

TUNAN_INLINE Weights prepare(Bytes weights) { return {_mm256_abs_epi8(weights), weights}; }

TUNAN_INLINE Ints dot_nibbles(Ints sums, Bytes nibbles, Bytes x) {
    const __m256i pairs = _mm256_maddubs_epi16(nibbles, x);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
TUNAN_INLINE Ints dot(Ints sums, Weights weights, Bytes x) {
    return dot_nibbles(sums, weights.magnitudes, _mm256_sign_epi8(x, weights.values));
}

}  // namespace tunan::TUNAN_ISA
