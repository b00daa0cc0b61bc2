// What multi-head latent attention needs beside attention itself.
#include "kernels.h"

namespace tunan {
namespace {

// One latent row a token, [latent | rotary part]: the latent is normalised, the rotary part
// rotated, and both go to their paged caches ([blocks, block, 1, D]) at the token's slot; a
// negative slot is padding.
void kv_rms_norm_rope_cache(const Call& call) {
    at::Tensor kv = call.f32("kv"), gamma = call.tensor("gamma");  // [B, 1, S, D]
    int64_t rank = gamma.size(0);
    at::Tensor latent = normalise(kv.slice(-1, 0, rank), gamma, call.real("epsilon")).first;
    at::Tensor pairs = kv.slice(-1, rank);
    at::Tensor halves = at::cat({pairs.slice(-1, 0, {}, 2), pairs.slice(-1, 1, {}, 2)}, -1);
    at::Tensor rope = rotate(halves, call.tensor("cos"), call.tensor("sin"), 0);
    at::Tensor slots = call.tensor("index").to(at::kLong).reshape(-1);
    at::Tensor kept = slots.ge(0).nonzero().squeeze(-1);
    slots = slots.index_select(0, kept);
    auto store = [&](const char* cache, const at::Tensor& rows, const char* scale_name) {
        at::Tensor into = call.tensor(cache), scale = call.f32(scale_name);
        at::Tensor flat = rows.reshape({-1, rows.size(-1)}).index_select(0, kept);
        // An 8-bit cache holds the rows times a scale, the reciprocal of a step.
        if (into.scalar_type() == at::kChar) flat = at::round(flat * scale).clamp(-128, 127);
        if (call.text("mode") == "PA_NZ")
            return store_rows_in_fractals(into, into.size(1), flat, slots);
        store_rows(into, flat, slots);
    };
    store("k_cache", rope, "k_rope_scale");
    store("ckv_cache", latent, "c_kv_scale");
    if (!call.flag("output")) return;
    call.write("k_rope", rope);
    call.write("c_kv", latent);
}

void check_kv_rms_norm_rope_cache(const Call& call) {
    const std::string& mode = call.text("mode");
    call.require(mode == "PA" || mode == "PA_BNSD" || mode == "PA_NZ",
                 "cacheMode " + mode + " is not supported, it should be in [PA, PA_BNSD, PA_NZ].");
    for (auto [cache, scale] :
         {std::pair{"k_cache", "k_rope_scale"}, {"ckv_cache", "c_kv_scale"}}) {
        call.require(call.storage(cache).sizes.size() == 4,
                     std::string("The dims of ") + cache + " must be 4.");
        call.require(call.storage(cache).dtype != at::kChar || call.has(scale),
                     std::string("An int8 ") + cache + " needs " + scale + ".");
    }
    const auto &kv = call.storage("kv").sizes, &gamma = call.storage("gamma").sizes,
               &cos = call.storage("cos").sizes;
    call.require(kv.size() == 4 && gamma.size() == 1 && cos.size() == 4 &&
                     kv.back() == gamma[0] + cos.back(),
                 "The last dim of kv " + shape_text(kv) + " must be the sum of gamma " +
                     shape_text(gamma) + " and the last dim of cos " + shape_text(cos) + ".");
}

void transpose_batch_matmul(const Call& call) {
    at::Tensor one = call.f32("x1").permute(call.ints("perm_x1")),
               two = call.f32("x2").permute(call.ints("perm_x2"));
    call.write("out", at::bmm(one, two).permute(call.ints("perm_y")));
}

void check_transpose_batch_matmul(const Call& call) {
    for (auto [x, perm] : {std::pair{"x1", "perm_x1"}, {"x2", "perm_x2"}, {"out", "perm_y"}}) {
        auto order = call.ints(perm);
        std::sort(order.begin(), order.end());
        call.require(
            call.storage(x).sizes.size() == 3 && order == std::vector<int64_t>({0, 1, 2}),
            std::string("The dims of ") + x + " must be 3 and " + perm + " an order of them.");
    }
    auto dim = [&](const char* x, const char* perm, size_t at) {
        return call.storage(x).sizes[call.ints(perm)[at]];
    };
    call.require(dim("x1", "perm_x1", 2) == dim("x2", "perm_x2", 1),
                 "The k-axis of the two inputs are different.");
}

// Joins attention over parts of a sequence by the parts' log-sum-exp: lse [T], out [T, D] each.
void attention_update(const Call& call) {
    at::Tensor lse = at::stack(call.tensors("lse")).to(at::kFloat).unsqueeze(-1);
    at::Tensor parts = at::stack(call.tensors("parts")).to(at::kFloat);
    at::Tensor weights = at::nan_to_num(at::softmax(lse, 0));
    call.write("out", (at::nan_to_num(parts) * weights).sum(0));
    call.write("lse_out", at::logsumexp(lse, {0}).squeeze(-1));
}

KERNEL("kv_rms_norm_rope_cache", kv_rms_norm_rope_cache, check_kv_rms_norm_rope_cache);
KERNEL("transpose_batch_matmul", transpose_batch_matmul, check_transpose_batch_matmul);
KERNEL("attention_update", attention_update);

}  // namespace
}  // namespace tunan
