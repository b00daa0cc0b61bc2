// What AVX2 has with and without VNNI: 256-bit vectors with a fused multiply-add.
#define TUNAN_VECTOR_BYTES 32
#include <immintrin.h>

#include "attention/vectors.h"

namespace tunan {
namespace {

inline FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
    return FloatVector(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
}

// acc = alpha acc + step sum, for 8 columns.
inline void add_columns(float* acc, float alpha, __m256i sum, float step) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(acc), _mm256_set1_ps(alpha));
    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(step), scaled));
}

inline int32_t four_bytes(const void* p) {
    int32_t value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
}

}  // namespace
}  // namespace tunan

#include "attention/body.h"
