// Fused attention over dense or paged keys and values, in the layouts that serving uses.
#include <set>

#include "kernels.h"

namespace tunan {

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double scale,
                  const at::Tensor& mask, at::Tensor* lse) {
  int64_t group = query.size(1) / key.size(1);
  at::Tensor keys = key.to(at::kFloat).repeat_interleave(group, 1);
  at::Tensor values = value.to(at::kFloat).repeat_interleave(group, 1);
  at::Tensor scores = at::matmul(query.to(at::kFloat).transpose(0, 1), keys.permute({1, 2, 0})) * scale;
  if (mask.defined()) scores = scores.masked_fill(mask, -std::numeric_limits<float>::infinity());
  if (lse) *lse = at::logsumexp(scores, {-1}, true).transpose(0, 1);
  return at::matmul(at::softmax(scores, -1), values.transpose(0, 1)).transpose(0, 1);
}

at::Tensor causal_mask(int64_t queries, int64_t length) {
  return at::ones({queries, length}, at::kBool).triu(length - queries + 1);
}

at::Tensor gather_pages(const at::Tensor& cache, const at::Tensor& blocks, int64_t length) {
  int64_t block = cache.size(1), count = (length + block - 1) / block;
  TORCH_CHECK(count <= blocks.numel(), "block table has ", blocks.numel(), " blocks, sequence needs ", count);
  at::Tensor rows = blocks.slice(0, 0, count).to(at::kLong);
  TORCH_CHECK(count == 0 || (rows.min().item<int64_t>() >= 0 && rows.max().item<int64_t>() < cache.size(0)),
              "block table names a block outside the cache");
  at::Tensor pages = cache.index_select(0, rows);
  std::vector<int64_t> sizes{count * block};
  sizes.insert(sizes.end(), pages.sizes().begin() + 2, pages.sizes().end());
  return pages.reshape(sizes).slice(0, 0, length);
}

namespace {

constexpr int64_t NO_MASK = 0, LEFT_UP_CAUSAL = 2, RIGHT_DOWN_CAUSAL = 3;

struct Heads {
  int64_t query, key;
};

Heads heads_of(const Call& call) {
  int64_t query = call.integer("heads"), key = call.integer("key_heads");
  return {query, key ? key : query};
}

// What one sequence may look at: with sparse mode 0 the mask that the caller gave, else causal.
at::Tensor mask_of(const Call& call, int64_t queries, int64_t length) {
  switch (call.integer("sparse")) {
    case RIGHT_DOWN_CAUSAL: return causal_mask(queries, length);
    case LEFT_UP_CAUSAL: return at::ones({queries, length}, at::kBool).triu(1);
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
  if (cache.dim() == 4) flat = cache.permute({0, 2, 1, 3});         // [blocks, heads, block, D]
  if (cache.dim() == 5) flat = cache.permute({0, 3, 1, 2, 4});      // [blocks, heads, D/16, block, 16]
  return cache.dim() == 3 ? cache : flat.reshape({flat.size(0), flat.size(1), -1});
}

// Keys, values and keys' rotary part of one sequence after another, each [L, heads, D].
class Source {
 public:
  explicit Source(const Call& call)
      : table_(call.tensor("block_table")), lengths_(call.ints("key_lengths")), heads_(heads_of(call).key),
        paged_(table_.defined() && table_.numel() > 0), parts_{call.tensors("key")[0], call.tensors("value")[0], call.tensor("key_rope")} {
    if (paged_)
      for (at::Tensor& part : parts_)
        if (part.defined() && part.numel()) part = pages_of(part);
  }

  bool paged() const { return paged_; }

  at::Tensor page(size_t part, int64_t sequence) const {
    const at::Tensor& from = parts_[part];
    if (!from.defined() || !from.numel()) return {};
    int64_t length = lengths_[sequence];
    return gather_pages(from, table_[sequence], length).reshape({length, heads_, -1});
  }

  // Whole, as the caller gave it; undefined when absent.
  at::Tensor whole(size_t part) const { return parts_[part].defined() && parts_[part].numel() ? parts_[part] : at::Tensor(); }

  const std::vector<int64_t>& lengths() const { return lengths_; }

 private:
  at::Tensor table_;
  std::vector<int64_t> lengths_;
  int64_t heads_;
  bool paged_;
  at::Tensor parts_[3];
};

constexpr size_t KEY = 0, VALUE = 1, ROPE = 2;

// Sequences laid one after another: query [T, N, D]; lengths are running totals, but those of keys in
// a paged cache, which are each sequence's own.
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
        return whole.defined() ? whole.slice(0, key_start, source.lengths()[at]) : whole;
      };
      key = with_rope(part(KEY), part(ROPE));
      value = part(VALUE);
      key_start = source.lengths()[at];
    }
    int64_t queries = ends[at] - start, length = key.size(0);
    if (queries > 0 && length > 0) {
      at::Tensor lse;
      out.slice(0, start, ends[at])
          .copy_(attend(query.slice(0, start, ends[at]), key, value, call.real("scale"), mask_of(call, queries, length),
                        call.flag("lse") ? &lse : nullptr));
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
      return source.lengths().empty() ? whole[at] : whole[at].slice(0, 0, source.lengths()[at]);
    };
    at::Tensor key = with_rope(part(KEY), part(ROPE));
    if (key.size(0) == 0) continue;
    out[at].copy_(attend(query[at], key, part(VALUE), call.real("scale"), mask_of(call, query.size(1), key.size(0)), nullptr));
  }
}

// "BNSD_NBSD": layouts of what comes in and of what goes out; one name: both the same.
std::pair<std::string, std::string> layouts_of(const Call& call) {
  const std::string& text = call.text("layout");
  auto bar = text.find('_');
  return bar == std::string::npos ? std::pair{text, text} : std::pair{text.substr(0, bar), text.substr(bar + 1)};
}

void fused_attention(const Call& call) {
  auto [in, out] = layouts_of(call);
  if (in == "TND") return packed(call, out == "NTD");
  batched(call, in, out);
}

void check_fused_attention(const Call& call) {
  static const std::set<std::string> known{"TND", "BNSD", "BSND", "BSH", "TND_NTD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD"};
  const std::string& layout = call.text("layout");
  call.require(known.count(layout) == 1, "The layout of input " + layout +
                                             " is not supported, it should be in [TND, BNSD, BSND, BSH, TND_NTD, BNSD_NBSD, "
                                             "BSND_NBSD, BSH_NBSD].");
  int64_t sparse = call.integer("sparse");
  call.require(sparse == NO_MASK || sparse == LEFT_UP_CAUSAL || sparse == RIGHT_DOWN_CAUSAL,
               "sparse_mode " + std::to_string(sparse) + " is not supported, it should be in [0, 2, 3].");
  Heads heads = heads_of(call);
  call.require(heads.query > 0 && heads.query % heads.key == 0,
               "numHeads " + std::to_string(heads.query) + " should be divisible by numKeyValueHeads " +
                   std::to_string(heads.key) + ".");
  if (layout.substr(0, 3) != "TND") return;
  const auto& query = call.storage("query").sizes;
  call.require(query.size() == 3 && query[1] == heads.query,
               "The query's shape " + shape_text(query) + " does not match layout TND with numHeads " +
                   std::to_string(heads.query) + ".");
  auto ends = call.ints("query_lengths");
  call.require(!ends.empty() && call.has("key_lengths"),
               "When layout is TND, actualSeqLengths and actualSeqLengthsKv must be given.");
  call.require(ends.back() <= query[0], "The last of actualSeqLengths " + std::to_string(ends.back()) +
                                            " should not be larger than T of query " + std::to_string(query[0]) + ".");
}

KERNEL("fused_attention", fused_attention, check_fused_attention);

}  // namespace
}  // namespace tunan
