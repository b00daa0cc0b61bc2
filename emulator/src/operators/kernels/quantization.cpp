// Eight-bit weights and activations: per channel and per token scales, products in 32-bit integers.
#include "kernels.h"

namespace tunan {

at::Tensor integer_product(const at::Tensor& one, const at::Tensor& two) {
    // Exact in float64 for any depth that fits a device, and much faster here than integers.
    return at::matmul(one.to(at::kDouble), two.to(at::kDouble));
}

at::Tensor scale_of(const at::Tensor& scale) {
    // A 64-bit scale carries a float32 in its low half (aclnnTransQuantParamV2).
    if (scale.scalar_type() != at::kLong && scale.scalar_type() != at::kUInt64)
        return scale.to(at::kFloat);
    return scale.view(at::kLong).to(at::kInt).view(at::kFloat);
}

at::Tensor offset_of(const at::Tensor& scale) {
    at::Tensor bits = at::bitwise_right_shift(scale.view(at::kLong), 37).bitwise_and(511);
    return at::where(bits.gt(255), bits - 512, bits).to(at::kFloat);
}

void write_rounded(const Call& call, const char* name, const at::Tensor& values) {
    if (!call.has(name)) return;
    at::Tensor rounded = at::round(values);
    switch (call.storage(name).dtype) {
        case at::kInt: return call.write(name, pack_nibbles(rounded.clamp(-8, 7)));
        case at::kByte: return call.write(name, rounded.clamp(0, 255));
        default: return call.write(name, rounded.clamp(-128, 127));
    }
}

std::pair<at::Tensor, at::Tensor> quantise_rows(const at::Tensor& x) {
    at::Tensor scale = x.abs().amax(-1) / 127;
    at::Tensor step = at::where(scale.eq(0), at::ones_like(scale), scale).unsqueeze(-1);
    return {at::round(x / step).clamp(-128, 127).to(at::kChar), scale};
}

namespace {

constexpr float EIGHT_BITS = 127, FOUR_BITS = 7;

void dynamic_quant(const Call& call) {
    at::Tensor x = call.f32("x"), smooth = call.f32("smooth");
    if (smooth.defined() && smooth.numel()) x = x * smooth;
    bool packed = call.storage("y").dtype == at::kInt;
    at::Tensor scale = x.abs().amax(-1, true) / (packed ? FOUR_BITS : EIGHT_BITS);
    at::Tensor step = at::where(scale.eq(0), at::ones_like(scale), scale);
    write_rounded(call, "y", x / step);
    call.write("scale", scale.squeeze(-1));
}

// With an offset: the smallest value of a row becomes -128, the largest 127.
void dynamic_quant_with_offset(const Call& call) {
    bool asymmetric =
        call.has("offset") && call.storage("offset").sizes == call.storage("scale").sizes;
    if (!asymmetric) return dynamic_quant(call);
    at::Tensor x = call.f32("x"), smooth = call.f32("smooth");
    if (smooth.defined() && smooth.numel()) x = x * smooth;
    bool packed = call.storage("y").dtype == at::kInt;
    double levels = packed ? 15 : 255, top = packed ? 7 : 127;
    at::Tensor high = x.amax(-1, true), scale = (high - x.amin(-1, true)) / levels;
    at::Tensor step = at::where(scale.eq(0), at::ones_like(scale), scale);
    at::Tensor offset = top - high / step;
    write_rounded(call, "y", x / step + offset);
    call.write("scale", scale.squeeze(-1));
    call.write("offset", offset.squeeze(-1));
}

void check_dynamic_quant(const Call& call) {
    const auto& x = call.storage("x").sizes;
    call.require(!x.empty(), "The dims of x must be at least 1.");
    std::vector<int64_t> rows(x.begin(), x.end() - 1), packed = x;
    packed.back() /= 8;
    const auto& y = call.storage("y");
    call.require(
        y.sizes == (y.dtype == at::kInt ? packed : x),
        "The shape of y " + shape_text(y.sizes) + " must be same as x " + shape_text(x) + ".");
    call.require(call.storage("scale").sizes == rows,
                 "The shape of scale " + shape_text(call.storage("scale").sizes) +
                     " must be that of x without its last dim " + shape_text(rows) + ".");
}

// Scales along one dimension, as they broadcast against x.
at::Tensor along(const at::Tensor& scale, const at::Tensor& x, int64_t axis) {
    if (!scale.defined() || scale.numel() <= 1 || scale.dim() == x.dim()) return scale;
    std::vector<int64_t> sizes(x.dim(), 1);
    sizes[axis < 0 ? axis + x.dim() : axis] = scale.numel();
    return scale.reshape(sizes);
}

// x * scale + offset: aclnnAscendQuant takes the reciprocal of a step.
void ascend_quant(const Call& call) {
    at::Tensor x = call.f32("x"), scale = along(call.f32("scale"), x, -1);
    at::Tensor offset = along(call.f32("offset"), x, -1);
    at::Tensor y = x * (call.flag("sqrt") ? scale * scale : scale);
    write_rounded(call, "y", offset.defined() && offset.numel() ? y + offset : y);
}

// x / scale + zero point, in eight bits or 32.
void quantize(const Call& call) {
    at::Tensor x = call.f32("x"), scale = along(call.f32("scale"), x, call.integer("axis"));
    at::Tensor zero = along(call.f32("zero"), x, call.integer("axis"));
    at::Tensor y = x / scale;
    if (zero.defined() && zero.numel()) y = y + zero;
    if (call.storage("y").dtype == at::kInt) return call.write("y", at::round(y));
    write_rounded(call, "y", y);
}

void check_quantize(const Call& call) {
    const auto &x = call.storage("x").sizes, &scale = call.storage("scale").sizes;
    int64_t dims = static_cast<int64_t>(x.size()), axis = call.integer("axis"), count = 1;
    call.require(
        dims > 0 && axis >= -dims && axis < dims,
        "axis " + std::to_string(axis) + " is out of the dims of x " + shape_text(x) + ".");
    for (int64_t one : scale) count *= one;
    int64_t wanted = x[axis < 0 ? axis + dims : axis];
    call.require(
        count == 1 || count == wanted || scale.size() == x.size(),
        "The size of scale " + shape_text(scale) + " must be 1 or " + std::to_string(wanted) + ".");
}

// scale * float16 of the low bits as the fixed-point unit wants it, and
// the offset in bits 37 to 45.
void trans_quant_param(const Call& call) {
    at::Tensor scale = call.f32("scale"), offset = call.f32("offset");
    at::Tensor bits = scale.contiguous().view(at::kInt).to(at::kLong).bitwise_and(0xffffffffll);
    if (offset.defined() && offset.numel()) {
        at::Tensor nine = at::round(offset).clamp(-256, 255).to(at::kLong).bitwise_and(511);
        bits = bits + at::bitwise_left_shift(nine, 37);
    }
    call.write("out", bits);
}

void quant_matmul(const Call& call) {
    at::Tensor one = call.tensor("x1"), two = call.tensor("x2"), bias = call.tensor("bias");
    if (call.flag("transpose1")) one = one.transpose(-1, -2);
    if (call.flag("transpose2")) two = two.transpose(-1, -2);
    at::Tensor sum = integer_product(one, two), scale = call.tensor("x2_scale");
    bool biased = bias.defined() && bias.numel() > 0;
    bool integer_bias = biased && bias.scalar_type() == at::kInt;
    if (integer_bias) sum = sum + bias;
    if (call.storage("out").dtype == at::kInt) return call.write("out", sum);
    at::Tensor result = sum * scale_of(scale), token = call.f32("x1_scale");
    if (token.defined() && token.numel()) result = result * token.unsqueeze(-1);
    if (biased && !integer_bias) result = result + bias;
    if (call.storage("out").dtype != at::kChar) return call.write("out", result);
    at::Tensor offset = call.f32("x2_offset");
    if (scale.scalar_type() == at::kLong) offset = offset_of(scale);
    if (offset.defined() && offset.numel()) result = result + offset;
    call.write("out", at::round(result).clamp(-128, 127));
}

void check_quant_matmul(const Call& call) {
    const auto &one = call.storage("x1").sizes, &two = call.storage("x2").sizes;
    call.require(one.size() >= 2 && two.size() >= 2 && one.size() <= 6 && two.size() <= 6,
                 "The dims of x1 and x2 must be in range [2, 6].");
    size_t k1 = one.size() - (call.flag("transpose1") ? 2 : 1),
           k2 = two.size() - (call.flag("transpose2") ? 1 : 2);
    call.require(one[k1] == two[k2], "The size of k dim of x1[" + std::to_string(one[k1]) +
                                         "] and that of x2[" + std::to_string(two[k2]) +
                                         "] are not equal.");
    int64_t rows = one[one.size() - (call.flag("transpose1") ? 1 : 2)];
    int64_t columns = two[two.size() - (call.flag("transpose2") ? 2 : 1)];
    auto count = [&](const char* name) {
        int64_t product = 1;
        for (int64_t size : call.storage(name).sizes) product *= size;
        return product;
    };
    call.require(call.storage("x2_scale").sizes.size() <= 1, "The dims of x2Scale must be 1.");
    call.require(count("x2_scale") == 1 || count("x2_scale") == columns,
                 "The size of x2Scale " + shape_text(call.storage("x2_scale").sizes) +
                     " must be 1 or n[" + std::to_string(columns) + "].");
    call.require(!call.has("x1_scale") || count("x1_scale") == 0 || count("x1_scale") == rows,
                 "The size of x1Scale must be m[" + std::to_string(rows) + "].");
    call.require(!call.has("bias") || count("bias") == 0 || count("bias") % columns == 0,
                 "The last dim of bias must be n[" + std::to_string(columns) + "].");
}

void format_cast(const Call& call) { call.write("out", call.tensor("self")); }

KERNEL("dynamic_quant", dynamic_quant, check_dynamic_quant);
KERNEL("dynamic_quant_with_offset", dynamic_quant_with_offset, check_dynamic_quant);
KERNEL("ascend_quant", ascend_quant);
KERNEL("quantize", quantize, check_quantize);
KERNEL("trans_quant_param", trans_quant_param);
KERNEL("quant_matmul", quant_matmul, check_quant_matmul);
KERNEL("format_cast", format_cast);

}  // namespace
}  // namespace tunan
