// Vectors of 512 bits: AVX-512 F, BW, DQ, VL and VNNI.
#pragma once

#include <immintrin.h>

#include "float_type.h"

namespace tunan::TUNAN_ISA {

using Ints = __m512i;
using Floats = __m512;
using Bytes = __m512i;
using Weights = __m512i;

constexpr int kLanes = 16;
constexpr bool kWeightsAreUnsigned = true;
constexpr int kMaxRows = 12;
constexpr int vectors_at_once(int) { return 2; }

TUNAN_INLINE Ints zero_ints() { return _mm512_setzero_si512(); }
TUNAN_INLINE Ints broadcast(int32_t value) { return _mm512_set1_epi32(value); }
TUNAN_INLINE Ints load_ints(const int32_t* p) { return _mm512_loadu_si512(p); }
TUNAN_INLINE Ints widen_u8(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TUNAN_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
TUNAN_INLINE Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
TUNAN_INLINE Ints multiply(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
TUNAN_INLINE Ints larger(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
TUNAN_INLINE int32_t largest(Ints a) { return _mm512_reduce_max_epi32(a); }
TUNAN_INLINE int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a); }

TUNAN_INLINE Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
TUNAN_INLINE Bytes broadcast_bytes(const int8_t* four) {
    int32_t value;
    __builtin_memcpy(&value, four, sizeof value);
    return _mm512_set1_epi32(value);
}
TUNAN_INLINE Weights prepare(Bytes weights) { return weights; }
TUNAN_INLINE Bytes low_nibbles(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
TUNAN_INLINE Bytes high_nibbles(Bytes b) { return low_nibbles(_mm512_srli_epi16(b, 4)); }
// Assembly, not the intrinsic: GCC 12 copies accumulators to and fro around the intrinsic.
TUNAN_INLINE Ints dot(Ints sums, Weights weights, Bytes x) {
    asm("vpdpbusd %2,%1,%0" : "+v"(sums) : "v"(weights), "v"(x));
    return sums;
}
TUNAN_INLINE Ints dot_nibbles(Ints sums, Bytes nibbles, Bytes x) { return dot(sums, nibbles, x); }

TUNAN_INLINE Floats broadcast(float value) { return _mm512_set1_ps(value); }
TUNAN_INLINE Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
TUNAN_INLINE Floats load_bf16(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
TUNAN_INLINE Floats load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TUNAN_INLINE Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
TUNAN_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
TUNAN_INLINE Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
TUNAN_INLINE Ints round_to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
TUNAN_INLINE Ints magnitude_bits(Floats a) {
    return _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff));
}

TUNAN_INLINE void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
TUNAN_INLINE void store_bytes(int8_t* p, Ints a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
// Not vcvtneps2bf16: that flushes subnormals, and not every CPU with VNNI has it.
TUNAN_INLINE void store_bf16(uint16_t* p, Floats a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i high = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    high = _mm512_mask_mov_epi32(high, nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
}
TUNAN_INLINE void store_f16(uint16_t* p, Floats a) {
    const __m256i half = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}

}  // namespace tunan::TUNAN_ISA
