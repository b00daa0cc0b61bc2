// Products of real activations with weights of eight or four bits,
// and the packing of four-bit ones.
#include "kernels.h"

namespace tunan {

constexpr int64_t NIBBLES = 8;  // four-bit numbers in a 32-bit one, the lowest bits first

at::Tensor unpack_nibbles(const at::Tensor& packed, int64_t dim) {
    std::vector<at::Tensor> parts;
    // Up to the sign bit and down again: the sign is carried along.
    for (int64_t at = 0; at < NIBBLES; at++)
        parts.push_back(at::bitwise_right_shift(
            at::bitwise_left_shift(packed, 4 * (NIBBLES - 1 - at)), 4 * (NIBBLES - 1)));
    at::Tensor last = packed.dim() - 1 == (dim < 0 ? dim + packed.dim() : dim)
                          ? at::stack(parts, -1)
                          : at::stack(parts, -2);
    std::vector<int64_t> sizes(packed.sizes().begin(), packed.sizes().end());
    sizes[dim < 0 ? dim + packed.dim() : dim] *= NIBBLES;
    return last.reshape(sizes);
}

at::Tensor pack_nibbles(const at::Tensor& values) {
    std::vector<int64_t> sizes(values.sizes().begin(), values.sizes().end());
    sizes.back() /= NIBBLES;
    sizes.push_back(NIBBLES);
    at::Tensor nibbles = values.to(at::kLong).bitwise_and(15).reshape(sizes);
    at::Tensor places = at::arange(NIBBLES, nibbles.options()) * 4;
    return at::bitwise_left_shift(nibbles, places).sum(-1).to(at::kInt);
}

at::Tensor real_weight(const at::Tensor& weight, int64_t depth, const at::Tensor& scale,
                       const at::Tensor& offset, int64_t group_size) {
    at::Tensor whole = weight;
    if (weight.scalar_type() == at::kInt)
        whole = unpack_nibbles(weight, weight.size(-2) == depth ? -1 : -2);
    at::Tensor steps = scale.to(at::kFloat);
    at::Tensor zero = offset.defined() && offset.numel() ? offset.to(at::kFloat) : at::Tensor();
    auto each_row = [&](const at::Tensor& of_groups) {
        return of_groups.repeat_interleave(group_size, 0).slice(0, 0, depth);
    };
    if (group_size > 0) {
        steps = each_row(steps);
        if (zero.defined()) zero = each_row(zero);
    }
    at::Tensor wide = whole.to(at::kFloat);
    return (zero.defined() ? wide + zero : wide) * steps;
}

namespace {

void weight_quant_matmul(const Call& call) {
    at::Tensor x = call.f32("x");
    at::Tensor weight =
        real_weight(call.tensor("weight"), x.size(-1), call.tensor("antiquant_scale"),
                    call.tensor("antiquant_offset"), call.integer("group_size"));
    at::Tensor result = at::matmul(x, weight), bias = call.f32("bias");
    if (bias.defined() && bias.numel()) result = result + bias;
    at::Tensor scale = call.tensor("quant_scale"), offset = call.f32("quant_offset");
    if (!scale.defined() || !scale.numel()) return call.write("out", result);
    result = result * scale_of(scale);
    if (offset.defined() && offset.numel()) result = result + offset;
    call.write("out", at::round(result).clamp(-128, 127));
}

void check_weight_quant_matmul(const Call& call) {
    const auto &x = call.storage("x").sizes, &weight = call.storage("weight").sizes,
               &scale = call.storage("antiquant_scale").sizes;
    call.require(x.size() >= 2 && weight.size() >= 2, "The dims of x " + shape_text(x) +
                                                          " and weight " + shape_text(weight) +
                                                          " must be at least 2.");
    bool packed = call.storage("weight").dtype == at::kInt;
    int64_t depth = weight[weight.size() - 2], columns = weight.back();
    if (packed && depth != x.back())
        depth *= NIBBLES;
    else if (packed)
        columns *= NIBBLES;
    call.require(depth == x.back(), "The k dim of x " + shape_text(x) + " and weight " +
                                        shape_text(weight) + " must be same.");
    int64_t size = call.integer("group_size"), scales = 1;
    for (int64_t one : scale) scales *= one;
    int64_t groups = size > 0 ? (depth + size - 1) / size : 1;
    call.require(scales == groups * columns || (size == 0 && scales == 1),
                 "The shape of antiquantScale " + shape_text(scale) + " must be [" +
                     std::to_string(groups) + "," + std::to_string(columns) + "].");
    call.require(!call.has("antiquant_offset") || call.storage("antiquant_offset").sizes == scale,
                 "The shape of antiquantOffset must be that of antiquantScale.");
    call.require(call.storage("antiquant_scale").dtype == call.storage("x").dtype ||
                     call.storage("antiquant_scale").dtype == at::kLong,
                 "The dtype of antiquantScale must be that of x.");
}

// (x + offset) * scale; a 32-bit x holds eight numbers of four bits.
void anti_quant(const Call& call) {
    at::Tensor x = call.tensor("x"), scale = call.f32("scale"), offset = call.f32("offset");
    if (x.scalar_type() == at::kInt) x = unpack_nibbles(x, -1);
    x = x.to(at::kFloat);
    if (offset.defined() && offset.numel()) x = x + offset;
    call.write("out", x * (call.flag("sqrt") ? scale * scale : scale));
}

KERNEL("weight_quant_matmul", weight_quant_matmul, check_weight_quant_matmul);
KERNEL("anti_quant", anti_quant);

}  // namespace
}  // namespace tunan
