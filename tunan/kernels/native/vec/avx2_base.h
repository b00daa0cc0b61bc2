// Vectors of 256 bits: AVX2, FMA and F16C. All but the dot products, which differ with VNNI.
#pragma once

#include <immintrin.h>

#include "float_type.h"

namespace tunan::TUNAN_ISA {

using Ints = __m256i;
using Floats = __m256;
using Bytes = __m256i;

constexpr int kLanes = 8;

TUNAN_INLINE Ints zero_ints() { return _mm256_setzero_si256(); }
TUNAN_INLINE Ints broadcast(int32_t value) { return _mm256_set1_epi32(value); }
TUNAN_INLINE Ints load_ints(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
TUNAN_INLINE Ints widen_u8(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
TUNAN_INLINE Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
TUNAN_INLINE Ints subtract(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
TUNAN_INLINE Ints multiply(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
TUNAN_INLINE Ints larger(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
TUNAN_INLINE int32_t largest(Ints a) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}
TUNAN_INLINE int32_t sum(Ints a) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

TUNAN_INLINE Bytes load_bytes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
TUNAN_INLINE Bytes broadcast_bytes(const int8_t* four) {
    int32_t value;
    __builtin_memcpy(&value, four, sizeof value);
    return _mm256_set1_epi32(value);
}
TUNAN_INLINE Bytes low_nibbles(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
TUNAN_INLINE Bytes high_nibbles(Bytes b) { return low_nibbles(_mm256_srli_epi16(b, 4)); }

TUNAN_INLINE Floats broadcast(float value) { return _mm256_set1_ps(value); }
TUNAN_INLINE Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
TUNAN_INLINE Floats load_bf16(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
TUNAN_INLINE Floats load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TUNAN_INLINE Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
TUNAN_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
TUNAN_INLINE Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
TUNAN_INLINE Ints round_to_ints(Floats a) { return _mm256_cvtps_epi32(a); }
TUNAN_INLINE Ints magnitude_bits(Floats a) {
    return _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
}

TUNAN_INLINE void store(float* p, Floats a) { _mm256_storeu_ps(p, a); }
TUNAN_INLINE void store_bytes(int8_t* p, Ints a) {
    const __m128i low = _mm256_castsi256_si128(a);
    const __m128i high = _mm256_extracti128_si256(a, 1);
    const __m128i words = _mm_packs_epi32(low, high);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
TUNAN_INLINE void store_bf16(uint16_t* p, Floats a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i high = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    high = _mm256_blendv_epi8(high, _mm256_set1_epi32(0x7fc0), nan);
    const __m128i low = _mm256_castsi256_si128(high);
    const __m128i up = _mm256_extracti128_si256(high, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, up));
}
TUNAN_INLINE void store_f16(uint16_t* p, Floats a) {
    const __m128i half = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
}

}  // namespace tunan::TUNAN_ISA
