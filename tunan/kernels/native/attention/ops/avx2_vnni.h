// AVX2 with VNNI: vpdpbusd on 256 bits.
#include "attention/ops/avx2_base.h"

namespace tunan {
namespace {

struct Avx2VnniOps : VectorOps {
    template <int R, int NG>
    static void keys_int8(const int8_t* q, int64_t stride, const int32_t* sums,
                          const char* const* keys, int d_size, int32_t* scores) {
        for (int g = 0; g < NG; ++g) {
            __m256i acc[R][2];
            for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_set1_epi32(-128 * sums[r]);
            for (int d = 0; d < d_size; d += 4) {
                const __m256i k0 = load32(keys[g] + d * kGroup);
                const __m256i k1 = load32(keys[g] + d * kGroup + 32);
                for (int r = 0; r < R; ++r) {
                    const __m256i every = _mm256_set1_epi32(four_bytes(q + r * stride + d));
                    acc[r][0] = _mm256_dpbusd_avx_epi32(acc[r][0], k0, every);
                    acc[r][1] = _mm256_dpbusd_avx_epi32(acc[r][1], k1, every);
                }
            }
            for (int r = 0; r < R; ++r) {
                __m256i* s = reinterpret_cast<__m256i*>(scores + r * kTile + g * kGroup);
                _mm256_storeu_si256(s, acc[r][0]);
                _mm256_storeu_si256(s + 1, acc[r][1]);
            }
        }
    }

    template <int R, int C>
    static void values_int8(const uint8_t* weights, const char* const* values, int groups,
                            int d_size, int column, float* acc, int64_t stride, const float* alpha,
                            const float* step) {
        for (int c = column; c < column + C * kGroup; c += kGroup) {
            __m256i sum[R][2] = {};
            for (int g = 0; g < groups; ++g) {
                for (int t = 0; t < kGroup; t += 4) {
                    const char* v = values[g] + static_cast<int64_t>(t) * d_size + c * 4;
                    const __m256i v0 = load32(v), v1 = load32(v + 32);
                    for (int r = 0; r < R; ++r) {
                        const __m256i every =
                            _mm256_set1_epi32(four_bytes(weights + r * kTile + g * kGroup + t));
                        sum[r][0] = _mm256_dpbusd_avx_epi32(sum[r][0], every, v0);
                        sum[r][1] = _mm256_dpbusd_avx_epi32(sum[r][1], every, v1);
                    }
                }
            }
            for (int r = 0; r < R; ++r) {
                add_columns(acc + r * stride + c, alpha[r], sum[r][0], step[r]);
                add_columns(acc + r * stride + c + 8, alpha[r], sum[r][1], step[r]);
            }
        }
    }

  private:
    static __m256i load32(const char* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
};

inline AttentionKernels best_attention_kernels() { return attention_kernels_of<Avx2VnniOps>(); }

}  // namespace
}  // namespace tunan
