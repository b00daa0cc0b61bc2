// AVX-512 with VNNI, without and with bf16 products.
#define TUNAN_VECTOR_BYTES 64
#include <immintrin.h>

#include "attention/vectors.h"

namespace tunan {
namespace {

inline FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
    return FloatVector(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
}

// In assembly, because GCC 12 moves the accumulators of the intrinsics through memory, and because
// this file is compiled for CPUs without bf16 products.
inline void add_products_u8_s8(__m512i& acc, __m512i u, __m512i s) {
    asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(u), "v"(s));
}
inline void add_products_bf16(__m512& acc, __m512i a, __m512i b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
}

inline __m512i load64(const char* p) { return _mm512_loadu_si512(p); }

inline __m512i every_lane(const void* p) {
    int32_t value;
    __builtin_memcpy(&value, p, sizeof value);
    return _mm512_set1_epi32(value);
}

}  // namespace
}  // namespace tunan

#include "attention/body.h"

namespace tunan {
namespace {

struct Avx512VnniOps : VectorOps {
    static constexpr int kKeyGroups = kTileGroups;
    static constexpr int kValueBlocks = 4;

    template <int R, int NG>
    static void keys_int8(const int8_t* q, int64_t stride, const int32_t* sums,
                          const char* const* keys, int d_size, int32_t* scores) {
        __m512i acc[R][NG];
        for (int r = 0; r < R; ++r)
            for (int g = 0; g < NG; ++g) acc[r][g] = _mm512_set1_epi32(-128 * sums[r]);
        for (int d = 0; d < d_size; d += 4) {
            __m512i k[NG];
            for (int g = 0; g < NG; ++g) k[g] = load64(keys[g] + d * kGroup);
            for (int r = 0; r < R; ++r) {
                const __m512i every = every_lane(q + r * stride + d);
                for (int g = 0; g < NG; ++g) add_products_u8_s8(acc[r][g], k[g], every);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int g = 0; g < NG; ++g)
                _mm512_storeu_si512(scores + r * kTile + g * kGroup, acc[r][g]);
    }

    template <int R, int C>
    static void values_int8(const uint8_t* weights, const char* const* values, int groups,
                            int d_size, int column, float* acc, int64_t stride, const float* alpha,
                            const float* step) {
        __m512i sum[R][C];
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) sum[r][c] = _mm512_setzero_si512();
        for (int g = 0; g < groups; ++g) {
            for (int t = 0; t < kGroup; t += 4) {
                const char* at = values[g] + (static_cast<int64_t>(t) * d_size + column * 4);
                __m512i v[C];
                for (int c = 0; c < C; ++c) v[c] = load64(at + c * 64);
                for (int r = 0; r < R; ++r) {
                    const __m512i every = every_lane(weights + r * kTile + g * kGroup + t);
                    for (int c = 0; c < C; ++c) add_products_u8_s8(sum[r][c], every, v[c]);
                }
            }
        }
        for (int r = 0; r < R; ++r) {
            const __m512 keep = _mm512_set1_ps(alpha[r]), scale = _mm512_set1_ps(step[r]);
            for (int c = 0; c < C; ++c) {
                float* a = acc + r * stride + column + c * kGroup;
                _mm512_storeu_ps(a, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][c]), scale,
                                                    _mm512_mul_ps(_mm512_loadu_ps(a), keep)));
            }
        }
    }
};

struct Avx512Bf16Ops : Avx512VnniOps {
    static constexpr bool kBf16Products = true;

    static void narrow(const float* weights, int count, uint16_t* narrowed) {
        for (int i = 0; i < count; i += kGroup) {
            __m256i half;
            asm("vcvtneps2bf16 %1, %0" : "=v"(half) : "v"(_mm512_loadu_ps(weights + i)));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(narrowed + i), half);
        }
    }

    template <int R, int NG>
    static void keys_bf16(const uint16_t* q, int64_t stride, const char* const* keys, int d_size,
                          float* scores) {
        __m512 acc[R][NG];
        for (int r = 0; r < R; ++r)
            for (int g = 0; g < NG; ++g) acc[r][g] = _mm512_setzero_ps();
        for (int d = 0; d < d_size; d += 2) {
            __m512i k[NG];
            for (int g = 0; g < NG; ++g) k[g] = load64(keys[g] + d * kGroup * 2);
            for (int r = 0; r < R; ++r) {
                const __m512i every = every_lane(q + r * stride + d);
                for (int g = 0; g < NG; ++g) add_products_bf16(acc[r][g], k[g], every);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int g = 0; g < NG; ++g)
                _mm512_storeu_ps(scores + r * kTile + g * kGroup, acc[r][g]);
    }

    template <int R, int C>
    static void values_bf16(const uint16_t* weights, const char* const* values, int groups,
                            int d_size, int column, float* acc, int64_t stride,
                            const float* alpha) {
        __m512 sum[R][C];
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c)
                sum[r][c] = _mm512_mul_ps(_mm512_loadu_ps(acc + r * stride + column + c * kGroup),
                                          _mm512_set1_ps(alpha[r]));
        for (int g = 0; g < groups; ++g) {
            for (int t = 0; t < kGroup; t += 2) {
                const char* at = values[g] + (static_cast<int64_t>(t) * d_size + column * 2) * 2;
                __m512i v[C];
                for (int c = 0; c < C; ++c) v[c] = load64(at + c * 64);
                for (int r = 0; r < R; ++r) {
                    const __m512i every = every_lane(weights + r * kTile + g * kGroup + t);
                    for (int c = 0; c < C; ++c) add_products_bf16(sum[r][c], v[c], every);
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c)
                _mm512_storeu_ps(acc + r * stride + column + c * kGroup, sum[r][c]);
    }
};

}  // namespace
}  // namespace tunan
