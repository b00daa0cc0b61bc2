// AVX2 without VNNI: int8 products in 16 bits, because vpmaddubsw saturates.
#include "attention/ops/avx2_base.h"

namespace tunan {
namespace {

struct Avx2Ops : VectorOps {
    template <int R, int NG>
    static void keys_int8(const int8_t* q, int64_t stride, const int32_t* sums,
                          const char* const* keys, int d_size, int32_t* scores) {
        for (int g = 0; g < NG; ++g) {
            for (int half = 0; half < kGroup; half += 8) {
                __m256i acc[R][2] = {};
                for (int d = 0; d < d_size; d += 4) {
                    const char* k = keys[g] + d * kGroup + half * 4;
                    const __m256i k0 = _mm256_cvtepu8_epi16(load16(k));
                    const __m256i k1 = _mm256_cvtepu8_epi16(load16(k + 16));
                    for (int r = 0; r < R; ++r)
                        add_products(acc[r], k0, k1, _mm_cvtepi8_epi16(four(q + r * stride + d)));
                }
                for (int r = 0; r < R; ++r) {
                    int32_t* s = scores + r * kTile + g * kGroup + half;
                    _mm256_storeu_si256(
                        reinterpret_cast<__m256i*>(s),
                        _mm256_add_epi32(in_order(acc[r]), _mm256_set1_epi32(-128 * sums[r])));
                }
            }
        }
    }

    template <int R, int C>
    static void values_int8(const uint8_t* weights, const char* const* values, int groups,
                            int d_size, int column, float* acc, int64_t stride, const float* alpha,
                            const float* step) {
        for (int c = column; c < column + C * kGroup; c += 8) {
            __m256i sum[R][2] = {};
            for (int g = 0; g < groups; ++g) {
                for (int t = 0; t < kGroup; t += 4) {
                    const char* v = values[g] + static_cast<int64_t>(t) * d_size + c * 4;
                    const __m256i v0 = _mm256_cvtepi8_epi16(load16(v));
                    const __m256i v1 = _mm256_cvtepi8_epi16(load16(v + 16));
                    for (int r = 0; r < R; ++r)
                        add_products(sum[r], v0, v1,
                                     _mm_cvtepu8_epi16(four(weights + r * kTile + g * kGroup + t)));
                }
            }
            for (int r = 0; r < R; ++r)
                add_columns(acc + r * stride + c, alpha[r], in_order(sum[r]), step[r]);
        }
    }

  private:
    static __m128i load16(const char* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static __m128i four(const void* p) { return _mm_cvtsi32_si128(four_bytes(p)); }

    // Two sums a token (or column): of elements 0, 1 and of elements 2, 3.
    static void add_products(__m256i* acc, __m256i a0, __m256i a1, __m128i b) {
        const __m256i every = _mm256_broadcastq_epi64(b);
        acc[0] = _mm256_add_epi32(acc[0], _mm256_madd_epi16(a0, every));
        acc[1] = _mm256_add_epi32(acc[1], _mm256_madd_epi16(a1, every));
    }
    static __m256i in_order(const __m256i* acc) {
        return _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[0], acc[1]), 0xd8);
    }
};

inline AttentionKernels best_attention_kernels() { return attention_kernels_of<Avx2Ops>(); }

}  // namespace
}  // namespace tunan
