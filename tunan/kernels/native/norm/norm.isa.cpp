// Plain loops that the compiler vectorises. Sums are taken in 16 lanes and folded in one order, so
// that every instruction set has the same bits.
#include <type_traits>

#include "elements.h"
#include "linear/kernels.h"
#include "linear/linear.h"
#include "norm/exponential.h"
#include "norm/kernels.h"

namespace tunan::TUNAN_ISA {
namespace {

constexpr int kSumLanes = 16;

TUNAN_INLINE float rounded_to(FloatType type, float value) {
    switch (type) {
        case FloatType::bf16: return float_of_bf16(bf16_of_float(value));
        case FloatType::f16: return float_of_f16(f16_of_float(value));
        default: return value;
    }
}

template <class T>
TUNAN_INLINE T* row_of(T* data, FloatType type, int64_t row, int64_t stride) {
    using Bytes = std::conditional_t<std::is_const_v<T>, const char, char>;
    return static_cast<Bytes*>(data) + row * stride * float_bytes(type);
}

TUNAN_INLINE float sum_of_squares(const float* x, int64_t size) {
    float sums[kSumLanes] = {};
    int64_t i = 0;
    for (; i + kSumLanes <= size; i += kSumLanes)
        for (int lane = 0; lane < kSumLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    for (int lane = 0; i + lane < size; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    for (int half = kSumLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

TUNAN_INLINE void quantize(const QuantizedRows& to, int64_t row, const float* x, int64_t size) {
    const int64_t stride = activation_stride(size);
    linear_kernels().quantize_row(x, FloatType::f32, size, stride, to.values + row * stride,
                                  to.scales + row, to.sums + row * activation_sums(size));
}

template <FloatType kType>
void norm_row(const NormCall& call, int64_t row, float* work) {
    const void* x = row_of(call.x, kType, row, call.x_stride);
    for (int64_t i = 0; i < call.size; ++i) work[i] = load_one(x, kType, i);
    if (call.residual) {
        void* residual = row_of(call.residual, kType, row, call.residual_stride);
        for (int64_t i = 0; i < call.size; ++i) work[i] += load_one(residual, kType, i);
        for (int64_t i = 0; i < call.size; ++i) store_one(residual, kType, i, work[i]);
    }
    const float mean = sum_of_squares(work, call.size) / static_cast<float>(call.size);
    const float factor = 1.f / __builtin_sqrtf(mean + call.epsilon);
    for (int64_t i = 0; i < call.size; ++i) work[i] = rounded_to(kType, work[i] * factor);
    if (call.weight)
        for (int64_t i = 0; i < call.size; ++i)
            work[i] = rounded_to(kType, work[i] * load_one(call.weight, kType, i));
    if (call.out) {
        void* out = row_of(call.out, kType, row, call.out_stride);
        for (int64_t i = 0; i < call.size; ++i) store_one(out, kType, i, work[i]);
    }
    if (call.quantized.values) quantize(call.quantized, row, work, call.size);
}

TUNAN_INLINE float silu(float x) {
    const float e = exp_negative(x < 0.f ? x : -x);
    return x * (x < 0.f ? e : 1.f) / (1.f + e);
}

template <FloatType kType>
void swiglu_row(const SwigluCall& call, int64_t row, float* work) {
    const void* gate = row_of(call.x, kType, row, call.x_stride);
    const void* up = static_cast<const char*>(gate) + call.size * float_bytes(kType);
    for (int64_t i = 0; i < call.size; ++i)
        work[i] = rounded_to(
            kType, rounded_to(kType, silu(load_one(gate, kType, i))) * load_one(up, kType, i));
    if (call.out) {
        void* out = row_of(call.out, kType, row, call.out_stride);
        for (int64_t i = 0; i < call.size; ++i) store_one(out, kType, i, work[i]);
    }
    if (call.quantized.values) quantize(call.quantized, row, work, call.size);
}

void norm_row_of_any(const NormCall& call, int64_t row, float* work) {
    switch (static_cast<FloatType>(call.type)) {
        case FloatType::f32: return norm_row<FloatType::f32>(call, row, work);
        case FloatType::bf16: return norm_row<FloatType::bf16>(call, row, work);
        case FloatType::f16: return norm_row<FloatType::f16>(call, row, work);
    }
}

void swiglu_row_of_any(const SwigluCall& call, int64_t row, float* work) {
    switch (static_cast<FloatType>(call.type)) {
        case FloatType::f32: return swiglu_row<FloatType::f32>(call, row, work);
        case FloatType::bf16: return swiglu_row<FloatType::bf16>(call, row, work);
        case FloatType::f16: return swiglu_row<FloatType::f16>(call, row, work);
    }
}

}  // namespace

const NormKernels& norm_kernels() {
    static constexpr NormKernels kernels = {norm_row_of_any, swiglu_row_of_any};
    return kernels;
}

}  // namespace tunan::TUNAN_ISA
