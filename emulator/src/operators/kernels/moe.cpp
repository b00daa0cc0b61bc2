// Mixtures of experts: choosing experts, sorting tokens by expert, and
// products a group of rows each.
#include "kernels.h"

namespace tunan {
namespace {

constexpr float NEVER = -std::numeric_limits<float>::infinity();

// The groups with the best experts stay; a group counts by its best expert
// (mode 0) or its best two.
at::Tensor keep_groups(const at::Tensor& scores, int64_t groups, int64_t kept, int64_t mode) {
    at::Tensor grouped = scores.view({scores.size(0), groups, -1});
    at::Tensor worth = mode == 0 ? grouped.amax(-1) : std::get<0>(grouped.topk(2, -1)).sum(-1);
    at::Tensor best = std::get<1>(worth.topk(kept, -1));
    at::Tensor stays = at::zeros_like(worth).scatter(-1, best, 1).to(at::kBool).unsqueeze(-1);
    return grouped.masked_fill(~stays, NEVER).view(scores.sizes());
}

// x [T, E]: softmax (norm 0) or sigmoid (norm 1); a bias decides who is
// chosen, not how much it weighs.
void gating_top_k(const Call& call) {
    at::Tensor x = call.f32("x"), bias = call.f32("bias");
    bool sigmoid = call.integer("norm") == 1;
    at::Tensor weights = sigmoid ? at::sigmoid(x) : at::softmax(x, -1);
    at::Tensor choice = bias.defined() && bias.numel() ? weights + bias : weights;
    if (call.integer("groups") > 1 && call.integer("k_group") < call.integer("groups"))
        choice = keep_groups(choice, call.integer("groups"), call.integer("k_group"),
                             call.integer("group_mode"));
    at::Tensor experts = std::get<1>(choice.topk(call.integer("k"), -1));
    at::Tensor y = weights.gather(-1, experts);
    if (sigmoid) y = y / (y.sum(-1, true) + call.real("epsilon"));
    call.write("y", y * call.real("factor"));
    call.write("experts", experts);
    if (call.flag("out_flag")) call.write("out", weights);
}

// Token copies sorted by expert, those of experts outside the range last and not counted; row_index
// says for each (token, choice) where its copy went, -1 for nowhere (type
// 0), or the reverse (type 1).
void init_routing(const Call& call) {
    at::Tensor x = call.tensor("x"), chosen = call.tensor("experts").to(at::kLong);
    int64_t experts = call.integer("expert_count"), choices = chosen.size(1);
    auto range = call.ints("range");
    int64_t first = range.empty() ? 0 : range[0], last = range.empty() ? experts : range[1];
    at::Tensor flat = chosen.reshape(-1);
    at::Tensor outside = flat.lt(first).logical_or(flat.ge(last));
    at::Tensor order = std::get<1>(at::sort(flat.masked_fill(outside, experts), true, 0, false));
    int64_t active = flat.numel() - outside.sum().item<int64_t>();
    at::Tensor used = order.slice(0, 0, active);

    at::Tensor rows = x.index_select(0, used.div(choices, "floor"));
    if (call.integer("quant") == 1) {
        auto [quantised, scale] = quantise_rows(rows.to(at::kFloat));
        call.tensor("expanded_scale").slice(0, 0, active).copy_(scale);
        rows = quantised;
    } else if (call.has("scale") && call.has("expanded_scale")) {
        call.tensor("expanded_scale")
            .slice(0, 0, active)
            .copy_(call.tensor("scale").index_select(0, used.div(choices, "floor")));
    }
    call.tensor("expanded_x").slice(0, 0, active).copy_(rows);

    at::Tensor places = at::full_like(flat, -1);
    bool gathers = call.integer("row_type") == 0;
    if (gathers)
        places.index_copy_(0, used, at::arange(active));
    else
        places.slice(0, 0, active).copy_(used);
    call.write("row_index", places);

    at::Tensor counts = at::bincount(flat.index_select(0, used) - first, {}, last - first);
    if (call.flag("count_flag"))
        call.write("counts", call.integer("count_type") == 0 ? counts.cumsum(0) : counts);
}

void check_init_routing(const Call& call) {
    const auto &x = call.storage("x").sizes, &experts = call.storage("experts").sizes;
    call.require(x.size() == 2 && experts.size() == 2 && x[0] == experts[0],
                 "The first dim of x " + shape_text(x) + " and expertIdx " + shape_text(experts) +
                     " must be same.");
    int64_t type = call.integer("count_type");
    call.require(type == 0 || type == 1, "expertTokensNumType " + std::to_string(type) +
                                             " is not supported, it should be in [0, 1].");
    call.require(call.integer("drop_pad") == 0, "dropPadMode should be 0.");
}

void token_permute(const Call& call) {
    at::Tensor indices = call.tensor("indices").to(at::kLong);
    int64_t choices = indices.dim() == 1 ? 1 : indices.size(1);
    at::Tensor order = std::get<1>(at::sort(indices.reshape(-1), true, 0, false));
    int64_t kept = call.storage("permuted").sizes[0];
    call.write("permuted", call.tensor("tokens").index_select(
                               0, order.div(choices, "floor").slice(0, 0, kept)));
    call.write("sorted", at::empty_like(order).index_copy(
                             0, order, at::arange(order.numel(), order.options())));
}

// Sums the copies of each token, weighed by its probabilities.
void token_unpermute(const Call& call) {
    at::Tensor tokens = call.f32("permuted"), sorted = call.tensor("sorted").to(at::kLong),
               weights = call.f32("weights");
    int64_t choices = weights.defined() ? weights.size(1) : 1;
    at::Tensor inside = sorted.lt(tokens.size(0));
    at::Tensor rows = tokens.index_select(0, sorted.masked_fill(~inside, 0)) * inside.unsqueeze(-1);
    at::Tensor copies = rows.view({-1, choices, tokens.size(1)});
    call.write("out", weights.defined() ? (copies * weights.unsqueeze(-1)).sum(1) : copies.sum(1));
}

KERNEL("gating_top_k", gating_top_k);
KERNEL("init_routing", init_routing, check_init_routing);
KERNEL("token_permute", token_permute);
KERNEL("token_unpermute", token_unpermute);

}  // namespace
}  // namespace tunan
