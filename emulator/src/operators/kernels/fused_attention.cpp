// Fused attention over dense or paged keys and values, in the layouts that serving uses.
#include "attention.h"

namespace tunan {

Heads heads_of(const Call& call) {
    int64_t query = call.integer("heads"), key = call.integer("key_heads");
    return {query, key ? key : query};
}

namespace {

// What one sequence may look at: with sparse mode 0 the mask that the caller gave, else causal.
at::Tensor mask_of(const Call& call, int64_t queries, int64_t length) {
    at::Device device = call.dry() ? at::kMeta : at::kCPU;
    switch (call.integer("sparse")) {
        case RIGHT_DOWN_CAUSAL: return causal_mask(queries, length, device);
        case LEFT_UP_CAUSAL:
            return at::ones({queries, length}, at::TensorOptions(at::kBool).device(device)).triu(1);
        default: break;
    }
    at::Tensor mask = call.tensor("mask");
    if (!mask.defined() || mask.numel() == 0) return {};
    mask = mask.to(at::kBool);
    while (mask.dim() > 2) mask = mask[0];
    return mask.slice(0, 0, queries).slice(1, 0, length);
}

// The rotary part of keys and queries comes separately in MLA: a score is the sum of both products.
at::Tensor with_rope(const at::Tensor& plain, const at::Tensor& rope) {
    return rope.defined() && rope.numel() ? at::cat({plain, rope}, -1) : plain;
}

// A cache as [blocks, block size, heads * D], from any of the layouts that it may have.
at::Tensor pages_of(const at::Tensor& cache) {
    at::Tensor flat = cache;
    if (cache.dim() == 4) flat = cache.permute({0, 2, 1, 3});     // [blocks, heads, block, D]
    if (cache.dim() == 5) flat = cache.permute({0, 3, 1, 2, 4});  // [blocks, heads, D/n, block, n]
    return cache.dim() == 3 ? cache : flat.reshape({flat.size(0), flat.size(1), -1});
}

// What eight-bit keys or values are multiplied with and moved by: one value, or one a channel.
struct Steps {
    at::Tensor scale, offset;

    // rows [L, heads, D]
    at::Tensor real(const at::Tensor& rows) const {
        if (!scale.defined() || !scale.numel() || rows.scalar_type() != at::kChar) return rows;
        at::Tensor wide = rows.to(at::kFloat);
        if (offset.defined() && offset.numel()) wide = wide + spread(offset, rows);
        return wide * spread(scale, rows);
    }

  private:
    static at::Tensor spread(const at::Tensor& steps, const at::Tensor& rows) {
        return steps.numel() == 1 ? steps.reshape({1, 1, 1})
                                  : steps.reshape({1, rows.size(1), rows.size(2)});
    }
};

// Separate scales of keys and of values, or both in one tensor, keys first.
Steps steps_of(const Call& call, size_t part) {
    static const char* const names[][2] = {{"key_antiquant_scale", "key_antiquant_offset"},
                                           {"value_antiquant_scale", "value_antiquant_offset"}};
    Steps own{call.f32(names[part][0]), call.f32(names[part][1])};
    if (own.scale.defined() && own.scale.numel()) return own;
    at::Tensor both = call.f32("antiquant_scale"), offset = call.f32("antiquant_offset");
    if (!both.defined() || !both.numel()) return {};
    bool moved = offset.defined() && offset.numel();
    return {both[static_cast<int64_t>(part)],
            moved ? offset[static_cast<int64_t>(part)] : at::Tensor()};
}

// Keys, values and keys' rotary part of one sequence after another, each [L, heads, D].
class Source {
  public:
    explicit Source(const Call& call)
        : table_(call.tensor("block_table")),
          lengths_(call.ints("key_lengths")),
          heads_(heads_of(call).key),
          paged_(table_.defined() && table_.numel() > 0),
          parts_{call.tensors("key")[0], call.tensors("value")[0], call.tensor("key_rope")},
          steps_{steps_of(call, 0), steps_of(call, 1), {}} {
        if (paged_)
            for (at::Tensor& part : parts_)
                if (part.defined() && part.numel()) part = pages_of(part);
    }

    bool paged() const { return paged_; }

    at::Tensor page(size_t part, int64_t sequence) const {
        const at::Tensor& from = parts_[part];
        if (!from.defined() || !from.numel()) return {};
        int64_t length = lengths_[sequence];
        at::Tensor rows = gather_pages(from, table_[sequence], length);
        return steps_[part].real(rows.reshape({length, heads_, -1}));
    }

    // Whole, as the caller gave it; undefined when absent.
    at::Tensor whole(size_t part) const {
        return parts_[part].defined() && parts_[part].numel() ? parts_[part] : at::Tensor();
    }

    at::Tensor real(size_t part, const at::Tensor& rows) const {
        return rows.defined() ? steps_[part].real(rows) : rows;
    }

    const std::vector<int64_t>& lengths() const { return lengths_; }

  private:
    at::Tensor table_;
    std::vector<int64_t> lengths_;
    int64_t heads_;
    bool paged_;
    at::Tensor parts_[3];
    Steps steps_[3];
};

constexpr size_t KEY = 0, VALUE = 1, ROPE = 2;

// Sequences laid one after another: query [T, N, D]; lengths are running totals, but those of keys
// in a paged cache, which are each sequence's own.
void packed(const Call& call, bool heads_first) {
    Source source(call);
    at::Tensor query = with_rope(call.tensor("query"), call.tensor("query_rope"));
    at::Tensor out = call.tensor("out"), lse_out = call.tensor("lse_out");
    if (heads_first) out = out.transpose(0, 1);
    auto ends = call.ints("query_lengths");
    int64_t start = 0, key_start = 0;
    for (size_t at = 0; at < ends.size(); at++) {
        at::Tensor key, value;
        if (source.paged()) {
            key = with_rope(source.page(KEY, at), source.page(ROPE, at));
            value = source.page(VALUE, at);
        } else {
            auto part = [&](size_t which) {
                at::Tensor whole = source.whole(which);
                if (!whole.defined()) return whole;
                return source.real(which, whole.slice(0, key_start, source.lengths()[at]));
            };
            key = with_rope(part(KEY), part(ROPE));
            value = part(VALUE);
            key_start = source.lengths()[at];
        }
        int64_t queries = ends[at] - start, length = key.size(0);
        if (queries > 0 && length > 0) {
            at::Tensor lse;
            out.slice(0, start, ends[at])
                .copy_(attend(query.slice(0, start, ends[at]), key, value, call.real("scale"),
                              mask_of(call, queries, length), call.flag("lse") ? &lse : nullptr));
            if (lse.defined() && lse_out.defined()) lse_out.slice(0, start, ends[at]).copy_(lse);
        }
        start = ends[at];
    }
}

// Any batched layout as [B, S, N, D]; a view of the same memory.
at::Tensor batch_first(const at::Tensor& x, const std::string& layout, int64_t heads) {
    if (!x.defined() || !x.numel()) return {};
    if (layout == "BNSD") return x.permute({0, 2, 1, 3});
    if (layout == "NBSD") return x.permute({1, 2, 0, 3});
    if (layout == "BSH") return x.view({x.size(0), x.size(1), heads, -1});
    return x;
}

void batched(const Call& call, const std::string& layout, const std::string& out_layout) {
    Source source(call);
    Heads heads = heads_of(call);
    at::Tensor query = with_rope(batch_first(call.tensor("query"), layout, heads.query),
                                 batch_first(call.tensor("query_rope"), layout, heads.query));
    at::Tensor out = batch_first(call.tensor("out"), out_layout, heads.query);
    for (int64_t at = 0; at < query.size(0); at++) {
        auto part = [&](size_t which) -> at::Tensor {
            if (source.paged()) return source.page(which, at);
            at::Tensor whole = batch_first(source.whole(which), layout, heads.key);
            if (!whole.defined()) return whole;
            at::Tensor rows = whole[at];
            if (!source.lengths().empty()) rows = rows.slice(0, 0, source.lengths()[at]);
            return source.real(which, rows);
        };
        at::Tensor key = with_rope(part(KEY), part(ROPE));
        if (key.size(0) == 0) continue;
        out[at].copy_(attend(query[at], key, part(VALUE), call.real("scale"),
                             mask_of(call, query.size(1), key.size(0)), nullptr));
    }
}

// "BNSD_NBSD": layouts of what comes in and of what goes out; one name: both the same.
std::pair<std::string, std::string> layouts_of(const Call& call) {
    const std::string& text = call.text("layout");
    auto bar = text.find('_');
    return bar == std::string::npos ? std::pair{text, text}
                                    : std::pair{text.substr(0, bar), text.substr(bar + 1)};
}

}  // namespace

void fused_attention(const Call& call) {
    auto [in, out] = layouts_of(call);
    if (in == "TND") return packed(call, out == "NTD");
    batched(call, in, out);
}

}  // namespace tunan
