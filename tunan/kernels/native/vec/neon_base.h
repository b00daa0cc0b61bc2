// Vectors of 128 bits: Armv8-A. All but the dot products, which differ with the extensions.
#pragma once

#include <arm_neon.h>

#include "float_type.h"

namespace tunan::TUNAN_ISA {

using Ints = int32x4_t;
using Floats = float32x4_t;
using Bytes = int8x16_t;
using Weights = int8x16_t;

constexpr int kLanes = 4;
constexpr bool kWeightsAreUnsigned = false;

TUNAN_INLINE Ints zero_ints() { return vdupq_n_s32(0); }
TUNAN_INLINE Ints broadcast(int32_t value) { return vdupq_n_s32(value); }
TUNAN_INLINE Ints load_ints(const int32_t* p) { return vld1q_s32(p); }
TUNAN_INLINE Ints widen_u8(const uint8_t* p) {
    uint32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    const uint16x8_t words = vmovl_u8(vcreate_u8(four));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
}
TUNAN_INLINE Ints add(Ints a, Ints b) { return vaddq_s32(a, b); }
TUNAN_INLINE Ints subtract(Ints a, Ints b) { return vsubq_s32(a, b); }
TUNAN_INLINE Ints multiply(Ints a, Ints b) { return vmulq_s32(a, b); }
TUNAN_INLINE Ints larger(Ints a, Ints b) { return vmaxq_s32(a, b); }
TUNAN_INLINE int32_t largest(Ints a) { return vmaxvq_s32(a); }
TUNAN_INLINE int32_t sum(Ints a) { return vaddvq_s32(a); }

TUNAN_INLINE Bytes load_bytes(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
TUNAN_INLINE Bytes broadcast_bytes(const int8_t* four) {
    int32_t value;
    __builtin_memcpy(&value, four, sizeof value);
    return vreinterpretq_s8_s32(vdupq_n_s32(value));
}
TUNAN_INLINE Weights prepare(Bytes weights) { return weights; }
TUNAN_INLINE Bytes low_nibbles(Bytes b) { return vandq_s8(b, vdupq_n_s8(15)); }
TUNAN_INLINE Bytes high_nibbles(Bytes b) {
    return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(b), 4));
}

TUNAN_INLINE Floats broadcast(float value) { return vdupq_n_f32(value); }
TUNAN_INLINE Floats load_floats(const float* p) { return vld1q_f32(p); }
TUNAN_INLINE Floats load_bf16(const uint16_t* p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16));
}
TUNAN_INLINE Floats load_f16(const uint16_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
TUNAN_INLINE Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
TUNAN_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
TUNAN_INLINE Floats to_floats(Ints a) { return vcvtq_f32_s32(a); }
TUNAN_INLINE Ints round_to_ints(Floats a) { return vcvtnq_s32_f32(a); }
TUNAN_INLINE Ints magnitude_bits(Floats a) {
    return vandq_s32(vreinterpretq_s32_f32(a), vdupq_n_s32(0x7fffffff));
}

TUNAN_INLINE void store(float* p, Floats a) { vst1q_f32(p, a); }
TUNAN_INLINE void store_bytes(int8_t* p, Ints a) {
    const int16x4_t words = vmovn_s32(a);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    const uint32_t four = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
    __builtin_memcpy(p, &four, sizeof four);
}
TUNAN_INLINE void store_bf16(uint16_t* p, Floats a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t is_number = vceqq_f32(a, a);
    const uint32x4_t high = vbslq_u32(is_number, vshrq_n_u32(rounded, 16), vdupq_n_u32(0x7fc0));
    vst1_u16(p, vmovn_u32(high));
}
TUNAN_INLINE void store_f16(uint16_t* p, Floats a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}

}  // namespace tunan::TUNAN_ISA
