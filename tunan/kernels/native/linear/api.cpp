#include "linear/api.h"

#include <cstring>

#include "guard.h"
#include "linear/linear.h"
#include "linear/pack.h"
#include "linear/select.h"
#include "memory.h"

namespace {

using namespace tunan;

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kCacheLine == 0; }

Status check_types(int x_type, int y_type) {
    if (!is_float_type(x_type)) return fail(kBadArgument, "activations of type %d", x_type);
    if (!is_float_type(y_type)) return fail(kBadArgument, "results of type %d", y_type);
    return kOk;
}

}  // namespace

TUNAN_API int tunan_linear_layout() { return static_cast<int>(selected_linear_kernels().layout); }
TUNAN_API int tunan_linear_layout_version() { return static_cast<int>(kPackedVersion); }

TUNAN_API int64_t tunan_linear_packed_bytes(int64_t outputs, int64_t inputs, int bits, int group,
                                            int scale_type, int has_zeros) {
    PackedHeader header;
    const Status status =
        make_header(outputs, inputs, bits, group, scale_type, has_zeros != 0, &header);
    return status == kOk ? header.bytes : 0;
}

TUNAN_API int tunan_linear_pack(const int8_t* values, const void* scales, const uint8_t* zeros,
                                int64_t outputs, int64_t inputs, int bits, int group,
                                int scale_type, void* out, int64_t out_bytes) {
    PackedHeader header;
    const Status status =
        make_header(outputs, inputs, bits, group, scale_type, zeros != nullptr, &header);
    if (status != kOk) return status;
    if (!aligned(out)) return fail(kBadArgument, "the target has to be at a multiple of 64 bytes");
    if (out_bytes < header.bytes) {
        return fail(kBadArgument, "a target of %lld bytes; %lld are needed",
                    static_cast<long long>(out_bytes), static_cast<long long>(header.bytes));
    }
    return guarded([&] {
        pack(header, {values, scales, zeros}, out);
        return kOk;
    });
}

TUNAN_API int tunan_linear_describe(const void* packed, int64_t* description) {
    const PackedHeader* h = read_header(packed);
    if (!h) return kBadPacking;
    const int64_t values[] = {h->outputs,    h->inputs,    h->bits, h->group,
                              h->scale_type, h->has_zeros, h->bytes};
    std::memcpy(description, values, sizeof values);
    return kOk;
}

TUNAN_API int64_t tunan_linear_activation_stride(int64_t inputs) {
    return activation_stride(inputs);
}
TUNAN_API int tunan_linear_quantize(const void* x, int x_type, int64_t x_stride, int64_t rows,
                                    int64_t inputs, int8_t* values, float* scales, int32_t* sums) {
    if (const Status status = check_types(x_type, x_type); status != kOk) return status;
    return guarded([&] {
        quantize_rows(x, static_cast<FloatType>(x_type), x_stride, rows, inputs, values, scales,
                      sums);
        return kOk;
    });
}

TUNAN_API int tunan_linear(const void* packed, const void* x, int x_type, int64_t x_stride,
                           int64_t rows, const float* bias, void* y, int y_type, int64_t y_stride) {
    if (const Status status = check_types(x_type, y_type); status != kOk) return status;
    const PackedHeader* header = read_header(packed);
    if (!header) return kBadPacking;
    static thread_local Scratch values_scratch, scales_scratch, sums_scratch;
    const int64_t inputs = header->inputs;
    auto* values = static_cast<int8_t*>(values_scratch.get(rows * activation_stride(inputs)));
    auto* scales = static_cast<float*>(scales_scratch.get(rows * sizeof(float)));
    auto* sums =
        static_cast<int32_t*>(sums_scratch.get(rows * activation_sums(inputs) * sizeof(int32_t)));
    if (!values || !scales || !sums) {
        return fail(kOutOfMemory, "no memory for %lld rows", static_cast<long long>(rows));
    }
    return guarded([&] {
        quantize_rows(x, static_cast<FloatType>(x_type), x_stride, rows, inputs, values, scales,
                      sums);
        return linear(packed, {values, scales, sums, rows, inputs}, bias,
                      {y, static_cast<FloatType>(y_type), y_stride});
    });
}

TUNAN_API int tunan_linear_quantized(const void* packed, const int8_t* values, const float* scales,
                                     const int32_t* sums, int64_t rows, int64_t inputs,
                                     const float* bias, void* y, int y_type, int64_t y_stride) {
    if (const Status status = check_types(y_type, y_type); status != kOk) return status;
    return guarded([&] {
        return linear(packed, {values, scales, sums, rows, inputs}, bias,
                      {y, static_cast<FloatType>(y_type), y_stride});
    });
}
