// Operators that normalise or gate and quantise in one pass.
#include "kernels.h"

namespace tunan {
namespace {

bool given(const at::Tensor& x) { return x.defined() && x.numel() > 0; }

// x1 + x2, rounded to their type, and its RMS norm.
std::pair<at::Tensor, at::Tensor> sum_and_norm(const Call& call) {
    at::Tensor sum = (call.f32("x1") + call.f32("x2")).to(call.storage("x1").dtype);
    at::Tensor norm = normalise(sum, call.tensor("gamma"), call.real("epsilon")).first;
    at::Tensor beta = call.f32("beta");
    return {sum, given(beta) ? norm + beta : norm};
}

// One scale for all rows; `div` says whether it divides or multiplies.
void add_rms_norm_quant(const Call& call) {
    auto [sum, norm] = sum_and_norm(call);
    call.write("x", sum);
    static const char* const names[][3] = {{"scale1", "zero1", "y1"}, {"scale2", "zero2", "y2"}};
    for (auto [scale_name, zero_name, y_name] : names) {
        at::Tensor scale = call.f32(scale_name), zero = call.f32(zero_name);
        if (!given(scale)) continue;
        at::Tensor y = call.flag("div") ? norm / scale : norm * scale;
        write_rounded(call, y_name, given(zero) ? y + zero : y);
    }
}

// A scale a row; a smooth scale multiplies before it is found. The second result only where wanted.
void add_rms_norm_dynamic_quant(const Call& call) {
    auto [sum, norm] = sum_and_norm(call);
    call.write("x", sum);
    static const char* const names[][3] = {{"smooth1", "y1", "scale1"},
                                           {"smooth2", "y2", "scale2"}};
    for (auto [smooth_name, y_name, scale_name] : names) {
        if (call.storage(y_name).sizes.empty()) continue;
        at::Tensor smooth = call.f32(smooth_name);
        auto [rows, scale] = quantise_rows(given(smooth) ? norm * smooth : norm);
        call.write(y_name, rows);
        call.write(scale_name, scale);
    }
}

void check_norm(const Call& call) {
    const auto &x1 = call.storage("x1"), &x2 = call.storage("x2"), &gamma = call.storage("gamma");
    call.require(x1.sizes == x2.sizes && x1.dtype == x2.dtype,
                 "Input x1 and x2 must have the same shape and dtype, but got " +
                     shape_text(x1.sizes) + " and " + shape_text(x2.sizes) + ".");
    call.require(gamma.sizes.size() == 1 && !x1.sizes.empty() && gamma.sizes[0] == x1.sizes.back(),
                 "The shape of gamma " + shape_text(gamma.sizes) + " must be the last dim of x1 " +
                     shape_text(x1.sizes) + ".");
}

void check_norm_quant(const Call& call) {
    check_norm(call);
    const auto &gamma = call.storage("gamma").sizes, &scale = call.storage("scale1").sizes;
    call.require(scale == gamma || scale == std::vector<int64_t>{1},
                 "The shape of scales1 " + shape_text(scale) + " must be that of gamma " +
                     shape_text(gamma) + " or [1].");
}

at::Tensor gated(const at::Tensor& x, bool left) {
    auto halves = x.chunk(2, -1);
    return at::silu(halves[left ? 0 : 1]) * halves[left ? 1 : 0];
}

// Which group each row belongs to, out of running totals or counts; rows of no group are left out.
at::Tensor owners_of(const at::Tensor& groups, bool counts) {
    at::Tensor sizes = groups.to(at::kLong);
    if (!counts) sizes = at::diff(sizes, 1, 0, at::zeros({1}, sizes.options()));
    return at::arange(sizes.numel(), sizes.options()).repeat_interleave(sizes);
}

// A table with a row a group -> a row a token; a single row serves all.
at::Tensor for_rows(const at::Tensor& table, const at::Tensor& owners, int64_t width) {
    at::Tensor rows = table.reshape({-1, width});
    return rows.size(0) == 1 ? rows : rows.index_select(0, owners);
}

void quantise_gated(const Call& call, const at::Tensor& y, const at::Tensor& scale,
                    const at::Tensor& offset) {
    int64_t rows = y.size(0);
    at::Tensor out = call.tensor("y").view({-1, y.size(-1)}).slice(0, 0, rows);
    if (call.text("mode") == "dynamic") {
        auto [quantised, step] = quantise_rows(given(scale) ? y * scale : y);
        out.copy_(quantised);
        call.tensor("scale").view({-1}).slice(0, 0, rows).copy_(step);
        return;
    }
    at::Tensor shifted = given(offset) ? y / scale + offset : y / scale;
    out.copy_(at::round(shifted).clamp(-128, 127));
}

// SwiGLU of real numbers, then int8: a scale a row, or one that is given (for each group).
void swiglu_quant(const Call& call) {
    at::Tensor x = call.f32("x"), groups = call.tensor("groups");
    x = x.reshape({-1, x.size(-1)});
    int64_t width = x.size(-1) / 2;
    at::Tensor smooth = call.f32("smooth"), offset = call.f32("offset");
    if (given(groups)) {
        at::Tensor owners = owners_of(groups, call.flag("list_type"));
        x = x.slice(0, 0, owners.numel());
        if (given(smooth)) smooth = for_rows(smooth, owners, width);
        if (given(offset)) offset = for_rows(offset, owners, width);
    }
    quantise_gated(call, gated(x, call.flag("left")), smooth, offset);
}

// 32-bit sums (or real numbers) -> their values, SwiGLU, int8 again; groups holds counts.
void dequant_swiglu_quant(const Call& call) {
    at::Tensor x = call.f32("x"), groups = call.tensor("groups");
    x = x.reshape({-1, x.size(-1)});
    at::Tensor owners = at::zeros({x.size(0)}, x.options().dtype(at::kLong));
    if (given(groups)) owners = owners_of(groups, true);
    x = x.slice(0, 0, owners.numel());
    at::Tensor weight = call.f32("weight_scale"), token = call.f32("token_scale");
    at::Tensor scale = call.f32("quant_scale"), offset = call.f32("quant_offset");
    if (given(weight)) x = x * for_rows(weight, owners, x.size(-1));
    if (given(token)) x = x * token.reshape({-1}).slice(0, 0, x.size(0)).unsqueeze(-1);
    if (given(scale)) scale = for_rows(scale, owners, x.size(-1) / 2);
    if (given(offset)) offset = for_rows(offset, owners, x.size(-1) / 2);
    quantise_gated(call, gated(x, call.flag("left")), scale, offset);
}

void check_gate(const Call& call) {
    const auto& x = call.storage("x").sizes;
    call.require(x.size() >= 2 && x.back() % 2 == 0,
                 "The last dim of x must be even and x at least of 2 dims, but x shape is " +
                     shape_text(x) + ".");
    std::vector<int64_t> half = x;
    half.back() /= 2;
    call.require(call.storage("y").sizes == half,
                 "The shape of y must be " + shape_text(half) + ".");
    const std::string& mode = call.text("mode");
    call.require(mode == "dynamic" || mode == "static",
                 "quantMode " + mode + " is not supported, it should be in [static, dynamic].");
}

void check_dequant_swiglu_quant(const Call& call) {
    check_gate(call);
    call.require(!call.has("bias") || call.storage("bias").sizes == std::vector<int64_t>{0},
                 "bias is not supported.");
    int64_t width = call.storage("x").sizes.back();
    if (!call.has("weight_scale")) return;
    const auto& scale = call.storage("weight_scale").sizes;
    call.require(!scale.empty() && scale.back() == width, "The last dim of weightScale " +
                                                              shape_text(scale) + " must be " +
                                                              std::to_string(width) + ".");
}

KERNEL("add_rms_norm_quant", add_rms_norm_quant, check_norm_quant);
KERNEL("add_rms_norm_dynamic_quant", add_rms_norm_dynamic_quant, check_norm);
KERNEL("swiglu_quant", swiglu_quant, check_gate);
KERNEL("dequant_swiglu_quant", dequant_swiglu_quant, check_dequant_swiglu_quant);

}  // namespace
}  // namespace tunan
