// What every AArch64 CPU has: 128-bit vectors with a fused multiply-add.
#define TUNAN_VECTOR_BYTES 16
#include <arm_neon.h>

#include "attention/vectors.h"

namespace tunan {
namespace {

inline FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
    return FloatVector(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
}

// acc = alpha acc + step sum, for 4 columns.
inline void add_columns(float* acc, float alpha, int32x4_t sum, float step) {
    vst1q_f32(acc, vfmaq_n_f32(vmulq_n_f32(vld1q_f32(acc), alpha), vcvtq_f32_s32(sum), step));
}

inline int32x4_t every_lane(const void* p) {
    int32_t value;
    __builtin_memcpy(&value, p, sizeof value);
    return vdupq_n_s32(value);
}

}  // namespace
}  // namespace tunan

#include "attention/body.h"
