// Attention of one sequence, and the operators that take whole sequences without a cache.
#include "attention.h"

namespace tunan {

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  double scale, const at::Tensor& mask, at::Tensor* lse) {
    int64_t group = query.size(1) / key.size(1);
    at::Tensor keys = key.to(at::kFloat).repeat_interleave(group, 1);
    at::Tensor values = value.to(at::kFloat).repeat_interleave(group, 1);
    at::Tensor scores =
        at::matmul(query.to(at::kFloat).transpose(0, 1), keys.permute({1, 2, 0})) * scale;
    if (mask.defined()) scores = scores.masked_fill(mask, -std::numeric_limits<float>::infinity());
    if (lse) *lse = at::logsumexp(scores, {-1}, true).transpose(0, 1);
    return at::matmul(at::softmax(scores, -1), values.transpose(0, 1)).transpose(0, 1);
}

at::Tensor causal_mask(int64_t queries, int64_t length, at::Device device) {
    auto options = at::TensorOptions().dtype(at::kBool).device(device);
    return at::ones({queries, length}, options).triu(length - queries + 1);
}

at::Tensor gather_pages(const at::Tensor& cache, const at::Tensor& blocks, int64_t length) {
    int64_t block = cache.size(1), count = (length + block - 1) / block;
    TORCH_CHECK(count <= blocks.numel(), "block table has ", blocks.numel(),
                " blocks, sequence needs ", count);
    at::Tensor rows = blocks.slice(0, 0, count).to(at::kLong);
    TORCH_CHECK(count == 0 ||
                    (rows.min().item<int64_t>() >= 0 && rows.max().item<int64_t>() < cache.size(0)),
                "block table names a block outside the cache");
    at::Tensor pages = cache.index_select(0, rows);
    std::vector<int64_t> sizes{count * block};
    sizes.insert(sizes.end(), pages.sizes().begin() + 2, pages.sizes().end());
    return pages.reshape(sizes).slice(0, 0, length);
}

namespace {

// Queries [S, N, D] of one sequence against its keys, with what training needs of the softmax: its
// largest score and the sum of exponentials, a value a query and head.
struct Attended {
    at::Tensor out, largest, sum;
};

Attended attend_all(const Call& call, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value, const at::Tensor& mask) {
    int64_t group = query.size(1) / key.size(1);
    at::Tensor keys = key.to(at::kFloat).repeat_interleave(group, 1);
    at::Tensor scores = at::matmul(query.to(at::kFloat).transpose(0, 1), keys.permute({1, 2, 0}));
    scores = scores * call.real("scale");
    if (mask.defined()) scores = scores.masked_fill(mask, -std::numeric_limits<float>::infinity());
    at::Tensor largest = scores.amax(-1, true);
    return {attend(query, key, value, call.real("scale"), mask, nullptr), largest,
            at::exp(scores - largest).sum(-1, true)};
}

// True where a query must not look; a mask with more dimensions has one a sequence.
at::Tensor dense_mask(const Call& call, int64_t sequence, int64_t queries, int64_t length) {
    at::Device device = call.dry() ? at::kMeta : at::kCPU;
    switch (call.integer("sparse")) {
        case RIGHT_DOWN_CAUSAL: return causal_mask(queries, length, device);
        case LEFT_UP_CAUSAL:
            return at::ones({queries, length}, at::TensorOptions(at::kBool).device(device)).triu(1);
        default: break;
    }
    at::Tensor mask = call.tensor("mask");
    if (!mask.defined() || !mask.numel()) return {};
    if (mask.dim() == 4) mask = mask[mask.size(0) == 1 ? 0 : sequence];
    if (mask.dim() == 3) mask = mask[0];
    return mask.to(at::kBool).slice(0, 0, queries).slice(1, 0, length);
}

// A batch in any layout as [B, S, N, D]; a view of the same memory.
at::Tensor batch_of(const at::Tensor& x, const std::string& layout, int64_t heads) {
    if (layout == "BNSD") return x.permute({0, 2, 1, 3});
    if (layout == "BSH") return x.view({x.size(0), x.size(1), heads, -1});
    if (layout == "SBH") return x.view({x.size(0), x.size(1), heads, -1}).transpose(0, 1);
    return x;
}

// softmax_max and softmax_sum are [B, N, S, 8], each value eight times.
void flash_attention(const Call& call) {
    const std::string& layout = call.text("layout");
    int64_t heads = call.integer("heads");
    at::Tensor query = batch_of(call.tensor("query"), layout, heads);
    at::Tensor key = call.tensor("key"), value = call.tensor("value");
    int64_t key_heads = layout.size() == 3 ? key.size(2) / query.size(3) : 0;
    key = batch_of(key, layout, key_heads);
    value = batch_of(value, layout, key_heads);
    at::Tensor out = batch_of(call.tensor("out"), layout, heads);
    at::Tensor largest = call.tensor("softmax_max"), sum = call.tensor("softmax_sum");
    for (int64_t at = 0; at < query.size(0); at++) {
        at::Tensor mask = dense_mask(call, at, query.size(1), key.size(1));
        Attended one = attend_all(call, query[at], key[at], value[at], mask);
        out[at].copy_(one.out);
        largest[at].copy_(one.largest);
        sum[at].copy_(one.sum);
    }
}

// Sequences one after another, [T, N, D]; lengths are running totals,
// softmax_max and _sum [T, N, 8].
void flash_attention_packed(const Call& call) {
    at::Tensor query = call.tensor("query"), key = call.tensor("key"), value = call.tensor("value");
    at::Tensor out = call.tensor("out");
    at::Tensor largest = call.tensor("softmax_max"), sum = call.tensor("softmax_sum");
    auto ends = call.ints("query_lengths"), key_ends = call.ints("key_lengths");
    int64_t start = 0, key_start = 0;
    for (size_t at = 0; at < ends.size(); at++) {
        int64_t end = ends[at], key_end = key_ends[at];
        if (end > start && key_end > key_start) {
            at::Tensor mask = dense_mask(call, 0, end - start, key_end - key_start);
            Attended one =
                attend_all(call, query.slice(0, start, end), key.slice(0, key_start, key_end),
                           value.slice(0, key_start, key_end), mask);
            out.slice(0, start, end).copy_(one.out);
            largest.slice(0, start, end).copy_(one.largest.transpose(0, 1));
            sum.slice(0, start, end).copy_(one.sum.transpose(0, 1));
        }
        start = std::max(start, end);
        key_start = std::max(key_start, key_end);
    }
}

void check_common(const Call& call) {
    int64_t sparse = call.integer("sparse");
    call.require(sparse == NO_MASK || sparse == ALL_MASK || sparse == LEFT_UP_CAUSAL ||
                     sparse == RIGHT_DOWN_CAUSAL,
                 "sparseMode " + std::to_string(sparse) +
                     " is not supported, it should be in [0, 1, 2, 3].");
    call.require(call.real("keep") == 1, "keepProb must be 1: there is no dropout in serving.");
    for (const char* name : {"key", "value"})
        call.require(call.storage(name).dtype == call.storage("query").dtype,
                     std::string("The dtype of query, key and value must be same, but ") + name +
                         " is " + dtype_name(call.storage(name).dtype) + ".");
}

void require_heads(const Call& call, int64_t heads, int64_t key_heads) {
    call.require(key_heads > 0 && heads % key_heads == 0,
                 "The head num of query " + std::to_string(heads) +
                     " must be a multiple of that of key " + std::to_string(key_heads) + ".");
}

void check_flash_attention(const Call& call) {
    check_common(call);
    const std::string& layout = call.text("layout");
    bool flat = layout == "BSH" || layout == "SBH";
    call.require(flat || layout == "BNSD" || layout == "BSND",
                 "The input layout " + layout +
                     " is not supported, it should be in [BSH, SBH, BSND, BNSD].");
    const auto &query = call.storage("query").sizes, &key = call.storage("key").sizes,
               &value = call.storage("value").sizes;
    size_t dims = flat ? 3 : 4;
    call.require(query.size() == dims && key.size() == dims && value.size() == dims,
                 "The dims of query, key and value must be " + std::to_string(dims) +
                     " with layout " + layout + ".");
    int64_t heads = call.integer("heads");
    size_t batch = layout == "SBH" ? 1 : 0, length = layout == "SBH" ? 0 : layout == "BNSD" ? 2 : 1;
    call.require(query[batch] == key[batch] && key[batch] == value[batch],
                 "The batch of query, key and value must be same.");
    call.require(key[length] == value[length], "The sequence length of key " + shape_text(key) +
                                                   " and value " + shape_text(value) +
                                                   " must be same.");
    if (flat) {
        call.require(
            heads > 0 && query[2] % heads == 0,
            "The last dim of query " + shape_text(query) + " must be a multiple of headNum.");
        return require_heads(call, heads, key[2] / (query[2] / heads));
    }
    call.require(query[3] == key[3], "The head dim of query " + shape_text(query) + " and key " +
                                         shape_text(key) + " must be same.");
    size_t at = layout == "BNSD" ? 1 : 2;
    call.require(query[at] == heads && key[at] == value[at],
                 "The head num of query " + shape_text(query) + " must be headNum " +
                     std::to_string(heads) + ".");
    require_heads(call, heads, key[at]);
}

void check_flash_attention_packed(const Call& call) {
    check_common(call);
    call.require(call.text("layout") == "TND",
                 "With actual sequence lengths the input layout must be TND.");
    const auto &query = call.storage("query").sizes, &key = call.storage("key").sizes,
               &value = call.storage("value").sizes;
    call.require(query.size() == 3 && key.size() == 3 && value.size() == 3 && query[2] == key[2] &&
                     key[0] == value[0] && key[1] == value[1],
                 "The shapes of query " + shape_text(query) + ", key " + shape_text(key) +
                     " and value " + shape_text(value) + " do not match layout TND.");
    require_heads(call, query[1], key[1]);
    auto ends = call.ints("query_lengths"), key_ends = call.ints("key_lengths");
    call.require(!ends.empty() && ends.size() == key_ends.size(),
                 "actualSeqQLen and actualSeqKvLen must have the same size.");
    auto last = [](const std::vector<int64_t>& totals) {
        return *std::max_element(totals.begin(), totals.end());
    };
    call.require(
        last(ends) <= query[0] && last(key_ends) <= key[0],
        "The last of actualSeqQLen and actualSeqKvLen must not be larger than T of query " +
            shape_text(query) + " and key " + shape_text(key) + ".");
}

KERNEL("flash_attention", flash_attention, check_flash_attention);
KERNEL("flash_attention_packed", flash_attention_packed, check_flash_attention_packed);

}  // namespace
}  // namespace tunan
