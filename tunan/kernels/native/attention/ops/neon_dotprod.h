// SDOT and UDOT (Kunpeng 920): the u8 keys become signed and the s8 values unsigned on the way.
#include "attention/ops/neon_base.h"

namespace tunan {
namespace {

struct NeonDotprodOps : VectorOps {
    template <int R, int NG>
    static void keys_int8(const int8_t* q, int64_t stride, const int32_t*, const char* const* keys,
                          int d_size, int32_t* scores) {
        for (int g = 0; g < NG; ++g) {
            int32x4_t acc[R][4];
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < 4; ++i) acc[r][i] = vdupq_n_s32(0);
            for (int d = 0; d < d_size; d += 4) {
                int8x16_t k[4];
                for (int i = 0; i < 4; ++i)
                    k[i] = vreinterpretq_s8_u8(flipped(keys[g] + d * kGroup + i * 16));
                for (int r = 0; r < R; ++r) {
                    const int8x16_t every = vreinterpretq_s8_s32(every_lane(q + r * stride + d));
                    for (int i = 0; i < 4; ++i) acc[r][i] = vdotq_s32(acc[r][i], k[i], every);
                }
            }
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < 4; ++i)
                    vst1q_s32(scores + r * kTile + g * kGroup + i * 4, acc[r][i]);
        }
    }

    template <int R, int C>
    static void values_int8(const uint8_t* weights, const char* const* values, int groups,
                            int d_size, int column, float* acc, int64_t stride, const float* alpha,
                            const float* step) {
        uint32x4_t offset[R];
        for (int r = 0; r < R; ++r) {
            uint32_t total = 0;
            for (int g = 0; g < groups; ++g)
                total += vaddlvq_u8(vld1q_u8(weights + r * kTile + g * kGroup));
            offset[r] = vdupq_n_u32(0u - 128u * total);
        }
        for (int c = column; c < column + C * kGroup; c += kGroup) {
            uint32x4_t sum[R][4];
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < 4; ++i) sum[r][i] = offset[r];
            for (int g = 0; g < groups; ++g) {
                for (int t = 0; t < kGroup; t += 4) {
                    const char* at = values[g] + static_cast<int64_t>(t) * d_size + c * 4;
                    uint8x16_t v[4];
                    for (int i = 0; i < 4; ++i) v[i] = flipped(at + i * 16);
                    for (int r = 0; r < R; ++r) {
                        const uint8x16_t every =
                            vreinterpretq_u8_s32(every_lane(weights + r * kTile + g * kGroup + t));
                        for (int i = 0; i < 4; ++i) sum[r][i] = vdotq_u32(sum[r][i], v[i], every);
                    }
                }
            }
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < 4; ++i)
                    add_columns(acc + r * stride + c + i * 4, alpha[r],
                                vreinterpretq_s32_u32(sum[r][i]), step[r]);
        }
    }

  private:
    static uint8x16_t flipped(const char* p) {
        return veorq_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)), vdupq_n_u8(0x80));
    }
};

inline AttentionKernels best_attention_kernels() { return attention_kernels_of<NeonDotprodOps>(); }

}  // namespace
}  // namespace tunan
