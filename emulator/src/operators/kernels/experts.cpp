// The older way through a mixture of experts: choose, sort, and sum up again.
#include "kernels.h"

namespace tunan {
namespace {

// x [..., E]: softmax, then the k likeliest; row_index counts choices column by column. Rows that
// are finished get expert E, which is none.
void gating_softmax(const Call& call) {
    at::Tensor x = call.f32("x"), finished = call.tensor("finished");
    auto [weights, experts] = at::softmax(x, -1).topk(call.integer("k"), -1);
    if (finished.defined() && finished.numel())
        experts = experts.masked_fill(finished.to(at::kBool).unsqueeze(-1), x.size(-1));
    call.write("y", weights);
    call.write("experts", experts);
    int64_t k = call.integer("k"), rows = experts.numel() / std::max<int64_t>(k, 1);
    at::Tensor places = at::arange(rows * k, experts.options()).reshape({k, rows}).t();
    call.write("row_index", places.reshape(experts.sizes()));
}

void check_gating_softmax(const Call& call) {
    const auto& x = call.storage("x").sizes;
    int64_t k = call.integer("k");
    call.require(!x.empty() && k > 0 && k <= x.back(),
                 "k " + std::to_string(k) + " should be in the range [1, the last dim of x " +
                     shape_text(x) + "].");
}

// Copies of rows sorted by expert. row_index [T, K] numbers
// the copies; place[number] says where each went.
void init_routing_by_row(const Call& call) {
    at::Tensor x = call.tensor("x"), numbers = call.tensor("row_index").to(at::kLong).reshape(-1);
    at::Tensor chosen = call.tensor("experts").to(at::kLong).reshape(-1);
    auto [sorted, order] = at::sort(chosen, true, 0, false);
    at::Tensor copies = numbers.index_select(0, order);
    int64_t kept = call.storage("expanded_x").sizes[0];
    call.write("expanded_x", x.index_select(0, copies.slice(0, 0, kept).remainder(x.size(0))));
    at::Tensor places = at::arange(copies.numel(), copies.options());
    call.write("places", at::empty_like(places).index_copy(0, copies, places));
    call.write("sorted_experts", sorted);
}

void check_init_routing_by_row(const Call& call) {
    const auto &x = call.storage("x").sizes, &rows = call.storage("row_index").sizes,
               &experts = call.storage("experts").sizes;
    call.require(x.size() == 2 && rows.size() == 2 && rows == experts && x[0] == rows[0],
                 "The shapes of x " + shape_text(x) + ", rowIdx " + shape_text(rows) +
                     " and expertIdx " + shape_text(experts) + " do not match.");
}

// Sorted experts -> how many rows the experts up to each one have.
void expert_totals(const Call& call) {
    at::Tensor sorted = call.tensor("sorted").to(at::kLong);
    at::Tensor experts = at::arange(call.integer("count"), sorted.options());
    call.write("out", sorted.unsqueeze(0).le(experts.unsqueeze(1)).sum(1));
}

constexpr int64_t BY_COLUMN = 0, BY_ROW = 2;

// out[t] = skips + the sum over choices of scale * (row + the expert's bias).
void finalize_routing(const Call& call) {
    at::Tensor rows = call.f32("rows"), places = call.tensor("places").to(at::kLong);
    at::Tensor scales = call.f32("scales"), bias = call.f32("bias");
    int64_t choices = scales.defined() ? scales.size(1) : 1, tokens = places.numel() / choices;
    places = call.integer("drop_pad") == BY_ROW ? places.reshape({tokens, choices})
                                                : places.reshape({choices, tokens}).t();
    at::Tensor none = places.lt(0);
    at::Tensor picked = rows.index_select(0, places.masked_fill(none, 0).reshape(-1))
                            .view({tokens, choices, rows.size(1)});
    picked = picked.masked_fill(none.unsqueeze(-1), 0);
    if (bias.defined() && bias.numel())
        picked =
            picked +
            bias.index_select(0, call.tensor("experts").to(at::kLong).reshape(-1)).view_as(picked);
    if (scales.defined()) picked = picked * scales.unsqueeze(-1);
    at::Tensor sum = picked.sum(1);
    for (const char* skip : {"skip1", "skip2"})
        if (call.has(skip)) sum = sum + call.f32(skip);
    call.write("out", sum);
}

void check_finalize_routing(const Call& call) {
    int64_t mode = call.integer("drop_pad");
    call.require(
        mode == BY_COLUMN || mode == BY_ROW,
        "dropPadMode " + std::to_string(mode) + " is not supported, it should be in [0, 2].");
    const auto &rows = call.storage("rows").sizes, &places = call.storage("places").sizes,
               &out = call.storage("out").sizes;
    call.require(rows.size() == 2 && out.size() == 2 && rows[1] == out[1],
                 "The last dim of expandedX " + shape_text(rows) + " and out " + shape_text(out) +
                     " must be same.");
    call.require(!call.has("bias") || call.has("experts"), "bias needs expertIdx.");
    if (!call.has("scales")) return;
    const auto& scales = call.storage("scales").sizes;
    call.require(scales.size() == 2 && places.size() == 1 && places[0] == scales[0] * scales[1],
                 "The size of expandedRowIdx " + shape_text(places) + " must be that of scales " +
                     shape_text(scales) + ".");
}

KERNEL("gating_softmax", gating_softmax, check_gating_softmax);
KERNEL("init_routing_by_row", init_routing_by_row, check_init_routing_by_row);
KERNEL("expert_totals", expert_totals);
KERNEL("finalize_routing", finalize_routing, check_finalize_routing);

}  // namespace
}  // namespace tunan
