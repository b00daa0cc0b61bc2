// The inner products of attention in the compiler's own vectors. The header of an instruction set
// defines fma() before it includes this one, and replaces members for which it has a better
// instruction. float and bf16 are complete here; int8 is the exact integer reference.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/kernels.h"
#include "attention/vectors.h"
#include "float_type.h"

namespace tunan {
namespace {

struct VectorOps {
    // How a bf16 query and the weights of bf16 values are handed to the products.
    static constexpr bool kBf16Products = false;
    // Groups of keys scored at once, and 16-column blocks of values added at once.
    static constexpr int kKeyGroups = 1;
    static constexpr int kValueBlocks = 1;
    // Rows that matrix registers take at once (tiled.h); 0: there are none.
    static constexpr int kRowsOfTiles = 0;

    // scores[r][16 g + t] = sum over d of query[r][d] key[g][d][t]; rows of scores are kTile apart.
    template <int R, int NG>
    static void keys_f32(const float* q, int64_t stride, const char* const* keys, int d_size,
                         float* scores) {
        FloatVector acc[R][NG][kPerGroup] = {};
        for (int d = 0; d < d_size; ++d) {
            for (int g = 0; g < NG; ++g) {
                const float* k = reinterpret_cast<const float*>(keys[g]) + d * kGroup;
                for (int i = 0; i < kPerGroup; ++i) {
                    const FloatVector key = load(k + i * kLanes);
                    for (int r = 0; r < R; ++r)
                        acc[r][g][i] = fma(key, broadcast(q[r * stride + d]), acc[r][g][i]);
                }
            }
        }
        store_scores<R, NG>(acc, scores);
    }

    template <int R, int NG>
    static void keys_bf16(const float* q, int64_t stride, const char* const* keys, int d_size,
                          float* scores) {
        FloatVector acc[R][NG][kPerGroup] = {};
        for (int d = 0; d < d_size; d += 2) {
            for (int g = 0; g < NG; ++g) {
                const char* k = keys[g] + d * kGroup * 2;
                for (int i = 0; i < kPerGroup; ++i) {
                    const IntVector pair =
                        *reinterpret_cast<const IntVector*>(k + i * TUNAN_VECTOR_BYTES);
                    const FloatVector even = first_bf16(pair), odd = second_bf16(pair);
                    for (int r = 0; r < R; ++r) {
                        acc[r][g][i] = fma(even, broadcast(q[r * stride + d]), acc[r][g][i]);
                        acc[r][g][i] = fma(odd, broadcast(q[r * stride + d + 1]), acc[r][g][i]);
                    }
                }
            }
        }
        store_scores<R, NG>(acc, scores);
    }

    // Keys are u8 (value + 128); sums[r] is the sum of query[r]. The dot products are exact.
    template <int R, int NG>
    static void keys_int8(const int8_t* q, int64_t stride, const int32_t* sums,
                          const char* const* keys, int d_size, int32_t* scores) {
        for (int r = 0; r < R; ++r) {
            for (int g = 0; g < NG; ++g) {
                const uint8_t* k = reinterpret_cast<const uint8_t*>(keys[g]);
                int32_t acc[kGroup];
                for (int32_t& a : acc) a = -128 * sums[r];
                for (int d = 0; d < d_size; d += 4)
                    for (int t = 0; t < kGroup; ++t)
                        for (int j = 0; j < 4; ++j)
                            acc[t] += q[r * stride + d + j] * k[d * kGroup + t * 4 + j];
                std::memcpy(scores + r * kTile + g * kGroup, acc, sizeof acc);
            }
        }
    }

    // acc[r][c] = alpha[r] acc[r][c] + sum over tokens of weight[r][t] value[t][c], for the 16 C
    // columns from `column`; `groups` groups of 16 tokens, d_size columns a token in the cache.
    template <int R, int C>
    static void values_f32(const float* weights, const char* const* values, int groups, int d_size,
                           int column, float* acc, int64_t stride, const float* alpha) {
        FloatVector sum[R][C * kPerGroup];
        load_scaled<R, C>(sum, acc, stride, column, alpha);
        for (int g = 0; g < groups; ++g) {
            for (int t = 0; t < kGroup; ++t) {
                const float* v = reinterpret_cast<const float*>(values[g]) +
                                 static_cast<int64_t>(t) * d_size + column;
                for (int i = 0; i < C * kPerGroup; ++i) {
                    const FloatVector value = load(v + i * kLanes);
                    for (int r = 0; r < R; ++r)
                        sum[r][i] =
                            fma(value, broadcast(weights[r * kTile + g * kGroup + t]), sum[r][i]);
                }
            }
        }
        store_sums<R, C>(sum, acc, stride, column);
    }

    template <int R, int C>
    static void values_bf16(const float* weights, const char* const* values, int groups, int d_size,
                            int column, float* acc, int64_t stride, const float* alpha) {
        FloatVector sum[R][C * kPerGroup];
        load_scaled<R, C>(sum, acc, stride, column, alpha);
        for (int g = 0; g < groups; ++g) {
            for (int t = 0; t < kGroup; t += 2) {
                const char* v = values[g] + (static_cast<int64_t>(t) * d_size + column * 2) * 2;
                const float* w = weights + g * kGroup + t;
                for (int i = 0; i < C * kPerGroup; ++i) {
                    const IntVector pair =
                        *reinterpret_cast<const IntVector*>(v + i * TUNAN_VECTOR_BYTES);
                    const FloatVector even = first_bf16(pair), odd = second_bf16(pair);
                    for (int r = 0; r < R; ++r) {
                        sum[r][i] = fma(even, broadcast(w[r * kTile]), sum[r][i]);
                        sum[r][i] = fma(odd, broadcast(w[r * kTile + 1]), sum[r][i]);
                    }
                }
            }
        }
        store_sums<R, C>(sum, acc, stride, column);
    }

    // Weights are u8 steps of step[r]; the products of a tile are summed exactly, then scaled.
    template <int R, int C>
    static void values_int8(const uint8_t* weights, const char* const* values, int groups,
                            int d_size, int column, float* acc, int64_t stride, const float* alpha,
                            const float* step) {
        for (int r = 0; r < R; ++r) {
            int32_t sum[C * kGroup] = {};
            for (int g = 0; g < groups; ++g) {
                for (int t = 0; t < kGroup; t += 4) {
                    const int8_t* v = reinterpret_cast<const int8_t*>(values[g]) +
                                      static_cast<int64_t>(t) * d_size + column * 4;
                    for (int c = 0; c < C * kGroup; ++c)
                        for (int j = 0; j < 4; ++j)
                            sum[c] += weights[r * kTile + g * kGroup + t + j] * v[c * 4 + j];
                }
            }
            float* a = acc + r * stride + column;
            for (int c = 0; c < C * kGroup; ++c)
                a[c] = a[c] * alpha[r] + static_cast<float>(sum[c]) * step[r];
        }
    }

    // The weights of bf16 values as kBf16Products takes them.
    static void narrow(const float* weights, int count, uint16_t* narrowed) {
        for (int i = 0; i < count; ++i) narrowed[i] = bf16_of_float(weights[i]);
    }

  protected:
    template <int R, int NG>
    static void store_scores(const FloatVector (&acc)[R][NG][kPerGroup], float* scores) {
        for (int r = 0; r < R; ++r)
            for (int g = 0; g < NG; ++g)
                for (int i = 0; i < kPerGroup; ++i)
                    store(scores + r * kTile + g * kGroup + i * kLanes, acc[r][g][i]);
    }
    template <int R, int C>
    static void load_scaled(FloatVector (&sum)[R][C * kPerGroup], const float* acc, int64_t stride,
                            int column, const float* alpha) {
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < C * kPerGroup; ++i)
                sum[r][i] = load(acc + r * stride + column + i * kLanes) * alpha[r];
    }
    template <int R, int C>
    static void store_sums(const FloatVector (&sum)[R][C * kPerGroup], float* acc, int64_t stride,
                           int column) {
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < C * kPerGroup; ++i)
                store(acc + r * stride + column + i * kLanes, sum[r][i]);
    }
};

}  // namespace
}  // namespace tunan
