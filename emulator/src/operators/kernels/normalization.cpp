// Normalisation, gated activation and rotary embedding: computed in float32 and rounded once, as
// the fused kernels do.
#include "kernels.h"

namespace tunan {

std::pair<at::Tensor, at::Tensor> normalise(const at::Tensor& x, const at::Tensor& gamma,
                                            double epsilon) {
    std::vector<int64_t> dims;
    for (int64_t dim = x.dim() - gamma.dim(); dim < x.dim(); dim++) dims.push_back(dim);
    at::Tensor wide = x.to(at::kFloat);
    at::Tensor rstd = at::rsqrt(wide.pow(2).mean(dims, true) + epsilon);
    return {wide * rstd * gamma.to(at::kFloat), rstd};
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t mode) {
    at::Tensor wide = x.to(at::kFloat), turned;
    if (mode == 0) {
        auto halves = wide.chunk(2, -1);
        turned = at::cat({-halves[1], halves[0]}, -1);
    } else {
        at::Tensor even = wide.slice(-1, 0, {}, 2), odd = wide.slice(-1, 1, {}, 2);
        turned = at::stack({-odd, even}, -1).reshape(wide.sizes());
    }
    return wide * cos.to(at::kFloat) + turned * sin.to(at::kFloat);
}

namespace {

void require_trailing(const Call& call, const char* x, const char* gamma) {
    const auto& whole = call.storage(x).sizes;
    const auto& tail = call.storage(gamma).sizes;
    bool fits = !tail.empty() && tail.size() <= whole.size() &&
                std::equal(tail.rbegin(), tail.rend(), whole.rbegin());
    call.require(fits, std::string("Input ") + gamma + " shape invalid, shape is not equal to " +
                           x + " last few dimensions, " + x + " shape: " + shape_text(whole) +
                           ", " + gamma + " shape: " + shape_text(tail) + ".");
}

void rms_norm(const Call& call) {
    auto [y, rstd] = normalise(call.tensor("x"), call.tensor("gamma"), call.real("epsilon"));
    call.write("y", y);
    call.write("rstd", rstd);
}

void check_rms_norm(const Call& call) { require_trailing(call, "x", "gamma"); }

void add_rms_norm(const Call& call) {
    // The sum is rounded to the type of x before it is normalised: it is also a result.
    at::Tensor sum = (call.f32("x1") + call.f32("x2")).to(call.storage("x1").dtype);
    auto [y, rstd] = normalise(sum, call.tensor("gamma"), call.real("epsilon"));
    call.write("x", sum);
    call.write("y", y);
    call.write("rstd", rstd);
}

void check_add_rms_norm(const Call& call) {
    require_trailing(call, "x1", "gamma");
    call.require(
        call.storage("x1").sizes == call.storage("x2").sizes,
        "Input x1 and x2 shape must be same, x1 shape: " + shape_text(call.storage("x1").sizes) +
            ", x2 shape: " + shape_text(call.storage("x2").sizes) + ".");
    call.require(call.storage("x1").dtype == call.storage("x2").dtype,
                 "Input x1 and x2 dtype must be same.");
}

void layer_norm(const Call& call) {
    auto [out, mean, rstd] =
        at::native_layer_norm(call.f32("input"), call.ints("shape"), call.f32("weight"),
                              call.f32("bias"), call.real("epsilon"));
    call.write("out", out);
    call.write("mean", mean);
    call.write("rstd", rstd);
}

void swiglu(const Call& call) {
    auto halves = call.f32("x").chunk(2, call.integer("dim"));
    call.write("out", at::silu(halves[0]) * halves[1]);
}

void check_swiglu(const Call& call) {
    const auto& sizes = call.storage("x").sizes;
    auto dim = call.integer("dim");
    int64_t at = dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim;
    call.require(at >= 0 && at < static_cast<int64_t>(sizes.size()),
                 "The value of dim must be in the range of [-" + std::to_string(sizes.size()) +
                     ", " + std::to_string(sizes.size() - 1) + "], but got " + std::to_string(dim) +
                     ".");
    call.require(sizes[at] % 2 == 0, "The size of input x on dim " + std::to_string(dim) +
                                         " must be divisible by 2, but x shape is " +
                                         shape_text(sizes) + ".");
}

void rotary(const Call& call) {
    call.write("out", rotate(call.tensor("x"), call.tensor("cos"), call.tensor("sin"),
                             call.integer("mode")));
}

// x [B, N, S, D] holds pairs; out holds the two halves that DeepSeek's models rotate.
void interleave_rope(const Call& call) {
    at::Tensor x = call.f32("x");
    at::Tensor halves = at::cat({x.slice(-1, 0, {}, 2), x.slice(-1, 1, {}, 2)}, -1);
    call.write("out", rotate(halves, call.tensor("cos"), call.tensor("sin"), 0));
}

// Rotates queries and keys in place; cos and sin broadcast over the heads in every layout.
void rotary_in_place(const Call& call) {
    int64_t mode = call.text("mode") == "interleave" ? 1 : 0;
    for (const char* name : {"query", "key"})
        call.write(name, rotate(call.tensor(name), call.tensor("cos"), call.tensor("sin"), mode));
}

void check_rotary_in_place(const Call& call) {
    const std::string& mode = call.text("mode");
    call.require(mode == "half" || mode == "interleave",
                 "rotaryMode " + mode + " is not supported, it should be in [half, interleave].");
    const auto &cos = call.storage("cos").sizes, &sin = call.storage("sin").sizes;
    call.require(cos == sin && !cos.empty() && cos.back() % 2 == 0,
                 "The shape of cos " + shape_text(cos) + " and sin " + shape_text(sin) +
                     " must be same, their last dim even.");
    for (const char* name : {"query", "key"}) {
        const auto& x = call.storage(name).sizes;
        call.require(x.size() == cos.size(), std::string("The dims of ") + name + " " +
                                                 shape_text(x) + " and cos " + shape_text(cos) +
                                                 " must be same.");
        call.require(!x.empty() && x.back() == cos.back(), std::string("The last dim of ") + name +
                                                               " " + shape_text(x) + " and cos " +
                                                               shape_text(cos) + " must be same.");
    }
}

void check_rotary(const Call& call) {
    const auto &x = call.storage("x").sizes, &cos = call.storage("cos").sizes,
               &sin = call.storage("sin").sizes;
    call.require(cos == sin, "The shape of cos " + shape_text(cos) + " and sin " + shape_text(sin) +
                                 " must be same.");
    call.require(cos.size() == x.size(), "The dims of x " + shape_text(x) + " and cos " +
                                             shape_text(cos) + " must be same.");
    call.require(
        !cos.empty() && !x.empty() && cos.back() == x.back(),
        "The last dim of x " + shape_text(x) + " and cos " + shape_text(cos) + " must be same.");
    call.require(x.back() % 2 == 0,
                 "The last dim of x must be even, but x shape is " + shape_text(x) + ".");
}

KERNEL("rms_norm", rms_norm, check_rms_norm);
KERNEL("add_rms_norm", add_rms_norm, check_add_rms_norm);
KERNEL("layer_norm", layer_norm);
KERNEL("swiglu", swiglu, check_swiglu);
KERNEL("rotary", rotary, check_rotary);
KERNEL("rotary_in_place", rotary_in_place, check_rotary_in_place);
KERNEL("interleave_rope", interleave_rope, check_rotary);

}  // namespace
}  // namespace tunan
