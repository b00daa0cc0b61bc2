// Products of a group of rows each: an expert's rows with an expert's weight.
#include "kernels.h"

namespace tunan {
namespace {

struct Group {
    at::Tensor weight, bias, scale, antiquant_scale, antiquant_offset;
};

// The e-th of what comes as one stacked tensor or as a list with one tensor an expert.
at::Tensor nth(const std::vector<at::Tensor>& list, int64_t expert, int64_t stacked_dims) {
    if (list.empty() || !list[0].defined() || !list[0].numel()) return {};
    if (list.size() > 1) return list[expert];
    return list[0].dim() == stacked_dims ? list[0][expert] : list[0];
}

// As nth, for scales that are a row a weight [N] or a row a group of its depth [G, N].
at::Tensor nth_steps(const std::vector<at::Tensor>& list, int64_t expert) {
    if (list.size() != 1 || !list[0].defined()) return nth(list, expert, 2);
    return list[0].dim() > 1 ? list[0][expert] : list[0];
}

int64_t group_size(const at::Tensor& steps, int64_t depth) {
    return steps.dim() == 2 ? depth / steps.size(0) : 0;
}

at::Tensor product(const at::Tensor& rows, const Group& group, const at::Tensor& token_scale) {
    if (rows.scalar_type() != at::kChar) {
        at::Tensor weight = group.weight.to(at::kFloat);
        if (group.antiquant_scale.defined())
            weight = real_weight(group.weight, rows.size(-1), group.antiquant_scale,
                                 group.antiquant_offset,
                                 group_size(group.antiquant_scale, rows.size(-1)));
        at::Tensor sum = at::matmul(rows.to(at::kFloat), weight);
        return group.bias.defined() ? sum + group.bias.to(at::kFloat) : sum;
    }
    at::Tensor sum = integer_product(rows, group.weight);
    if (group.bias.defined()) sum = sum + group.bias;
    if (group.scale.defined()) sum = sum * scale_of(group.scale);
    return token_scale.defined() ? sum * token_scale.to(at::kFloat).unsqueeze(-1) : sum;
}

// What the e-th expert multiplies with, out of lists or stacks.
class Experts {
  public:
    explicit Experts(const Call& call)
        : weights_(call.tensors("weight")),
          biases_(call.tensors("bias")),
          scales_(call.tensors("scale")),
          antiquant_scales_(call.tensors("antiquant_scale")),
          antiquant_offsets_(call.tensors("antiquant_offset")) {}

    Group operator[](int64_t expert) const {
        return {nth(weights_, expert, 3), nth(biases_, expert, 2), nth(scales_, expert, 2),
                nth_steps(antiquant_scales_, expert), nth_steps(antiquant_offsets_, expert)};
    }

  private:
    std::vector<at::Tensor> weights_, biases_, scales_, antiquant_scales_, antiquant_offsets_;
};

// Where each group ends, from running totals (type 0) or counts (type 1).
at::Tensor ends_of(const at::Tensor& list, int64_t type) {
    at::Tensor wide = list.to(at::kLong);
    return type == 0 ? wide : wide.cumsum(0);
}

void grouped_matmul(const Call& call) {
    Experts experts(call);
    auto x = call.tensors("x"), token_scales = call.tensors("token_scale"),
         results = call.tensors("out");
    at::Tensor list = call.tensor("group_list");
    if (!list.defined()) {
        for (size_t at = 0; at < x.size(); at++)
            results[at].copy_(product(x[at], experts[static_cast<int64_t>(at)], {}));
        return;
    }
    at::Tensor token_scale = token_scales.empty() ? at::Tensor() : token_scales[0];
    at::Tensor ends = ends_of(list, call.integer("list_type"));
    int64_t start = 0;
    for (int64_t expert = 0; expert < ends.numel(); expert++) {
        int64_t end = ends[expert].item<int64_t>();
        if (end > start) {
            at::Tensor part =
                token_scale.defined() ? token_scale.slice(0, start, end) : token_scale;
            results[0]
                .slice(0, start, end)
                .copy_(product(x[0].slice(0, start, end), experts[expert], part));
        }
        start = end;
    }
}

using Shape = std::vector<int64_t>;

const std::vector<Storage>& list_of(const Call& call, const char* name) {
    return std::get<std::vector<Storage>>(call.value(name));
}

// How many experts the weights are for: stacked in one tensor, or one tensor each.
int64_t experts_in(const std::vector<Storage>& weights) {
    bool stacked = weights.size() == 1 && weights[0].sizes.size() == 3;
    return stacked ? weights[0].sizes[0] : static_cast<int64_t>(weights.size());
}

void check_depth(const Call& call, const Storage& x, const Storage& weight) {
    const Shape &rows = x.sizes, &matrix = weight.sizes;
    call.require(rows.size() == 2 && (matrix.size() == 2 || matrix.size() == 3),
                 "The dims of x " + shape_text(rows) + " must be 2 and those of weight " +
                     shape_text(matrix) + " 2 or 3.");
    bool packed = weight.dtype == at::kInt;
    int64_t depth = matrix[matrix.size() - 2];
    call.require(rows.back() == depth || (packed && rows.back() == 8 * depth),
                 "The k dim of x " + shape_text(rows) + " and weight " + shape_text(matrix) +
                     " must be same.");
    bool integers = x.dtype == at::kChar;
    call.require(!integers || weight.dtype == at::kChar,
                 std::string("x of DT_INT8 needs weight of DT_INT8, but got ") +
                     dtype_name(weight.dtype) + ".");
    call.require(integers || weight.dtype == x.dtype || call.has("antiquant_scale"),
                 std::string("x and weight must have the same dtype, but got ") +
                     dtype_name(x.dtype) + " and " + dtype_name(weight.dtype) + ".");
}

void check_grouped_matmul(const Call& call) {
    const auto &x = list_of(call, "x"), &weights = list_of(call, "weight"),
               &out = list_of(call, "out");
    call.require(!x.empty() && !weights.empty() && !out.empty(),
                 "x, weight and out must not be empty.");
    if (!call.has("group_list")) {
        call.require(x.size() == weights.size() && x.size() == out.size(),
                     "Without groupList the numbers of x, weight and out must be same, but got " +
                         std::to_string(x.size()) + ", " + std::to_string(weights.size()) +
                         " and " + std::to_string(out.size()) + ".");
        for (size_t at = 0; at < x.size(); at++) check_depth(call, x[at], weights[at]);
        return;
    }
    call.require(x.size() == 1 && out.size() == 1, "With groupList x and out must be one tensor.");
    call.require(!x[0].sizes.empty() && !out[0].sizes.empty() && out[0].sizes[0] == x[0].sizes[0],
                 "The first dim of x " + shape_text(x[0].sizes) + " and out " +
                     shape_text(out[0].sizes) + " must be same.");
    for (const Storage& weight : weights) check_depth(call, x[0], weight);
    const Storage& list = call.storage("group_list");
    call.require(list.sizes.size() == 1 && list.sizes[0] <= experts_in(weights),
                 "The size of groupList " + shape_text(list.sizes) +
                     " must not be larger than the number of experts " +
                     std::to_string(experts_in(weights)) + ".");
    int64_t type = call.integer("list_type");
    call.require(type == 0 || type == 1, "groupListType " + std::to_string(type) +
                                             " is not supported, it should be in [0, 1].");
}

// int8 rows times int8 weights, SwiGLU, and int8 again, a scale a row; group_list has totals.
void grouped_swiglu_quant(const Call& call) {
    at::Tensor x = call.tensor("x"), weight = call.tensor("weight"), scale = call.f32("scale");
    at::Tensor token_scale = call.f32("token_scale"), out = call.tensor("out");
    at::Tensor out_scale = call.tensor("out_scale");
    at::Tensor ends = ends_of(call.tensor("group_list"), 0);
    int64_t start = 0;
    for (int64_t expert = 0; expert < ends.numel(); expert++) {
        int64_t end = ends[expert].item<int64_t>();
        if (end > start) {
            at::Tensor sum = integer_product(x.slice(0, start, end), weight[expert]) *
                             scale[expert] * token_scale.slice(0, start, end).unsqueeze(-1);
            auto halves = sum.to(at::kFloat).chunk(2, -1);
            auto [rows, rows_scale] = quantise_rows(at::silu(halves[0]) * halves[1]);
            out.slice(0, start, end).copy_(rows);
            out_scale.slice(0, start, end).copy_(rows_scale);
        }
        start = end;
    }
}

void check_grouped_swiglu_quant(const Call& call) {
    const Shape &x = call.storage("x").sizes, &weight = call.storage("weight").sizes,
                &scale = call.storage("scale").sizes, &list = call.storage("group_list").sizes;
    call.require(
        x.size() == 2 && weight.size() == 3 && x[1] == weight[1],
        "The k dim of x " + shape_text(x) + " and weight " + shape_text(weight) + " must be same.");
    call.require(weight[2] % 2 == 0,
                 "The n dim of weight " + shape_text(weight) + " must be even.");
    call.require(scale == Shape({weight[0], weight[2]}),
                 "The shape of weightScale " + shape_text(scale) + " must be " +
                     shape_text({weight[0], weight[2]}) + ".");
    call.require(list.size() == 1 && list[0] <= weight[0],
                 "The size of groupList " + shape_text(list) +
                     " must not be larger than the number of experts " + std::to_string(weight[0]) +
                     ".");
    call.require(call.storage("token_scale").sizes == Shape({x[0]}),
                 "The shape of xScale must be " + shape_text({x[0]}) + ".");
}

KERNEL("grouped_matmul", grouped_matmul, check_grouped_matmul);
KERNEL("grouped_swiglu_quant", grouped_swiglu_quant, check_grouped_swiglu_quant);

}  // namespace
}  // namespace tunan
