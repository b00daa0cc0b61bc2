#include <cstring>

#include "dense/dense.h"
#include "layer/latent.h"
#include "layer/rows.h"
#include "rope/rope.h"

namespace tunan {
namespace {

constexpr char kName[] = "latent layer";

struct Sizes {
    explicit Sizes(const LatentWeights& w)
        : head(int64_t{w.nope} + w.rope),
          query(w.heads * head),
          row(int64_t{w.latent} + w.rope),
          down(w.query_rank + row),
          attended(int64_t{w.heads} * w.value),
          query_inputs(w.query_rank ? w.query_rank : w.hidden) {}

    int64_t head, query;   // of a query
    int64_t row, down;     // of the cache; of all that is projected down
    int64_t attended;      // of all heads' values
    int64_t query_inputs;  // of the projection to the query
};

// Of one call; kept by the calling thread for the next.
struct Buffers {
    QuantizedRoom quantized;
    char* normed;    // [tokens][hidden]
    char* down;      // as LatentStep's, unless that has its own
    char* query;     // likewise
    char* attended;  // likewise
    char* absorbed;  // [decoded][heads][latent + rope]
    char* found;     // [decoded][heads][latent]

    void take(Pieces& pieces, const LatentWeights& w, const Sizes& sizes, const LatentStep& step) {
        const int64_t bytes = float_bytes(static_cast<FloatType>(w.type)), tokens = step.tokens;
        quantized.take(pieces, tokens,
                       std::max({int64_t{w.hidden}, int64_t{w.query_rank}, sizes.attended}));
        pieces.take(&normed, tokens * w.hidden * bytes);
        pieces.take(&down, step.down ? 0 : tokens * sizes.down * bytes);
        pieces.take(&query, step.query ? 0 : tokens * sizes.query * bytes);
        pieces.take(&attended, step.attended ? 0 : tokens * sizes.attended * bytes);
        pieces.take(&absorbed, step.decoded * w.heads * sizes.row * bytes);
        pieces.take(&found, int64_t{step.decoded} * w.heads * w.latent * bytes);
        if (step.down) down = static_cast<char*>(step.down);
        if (step.query) query = static_cast<char*>(step.query);
        if (step.attended) attended = static_cast<char*>(step.attended);
    }
};

class Attention {
  public:
    Attention(const LatentWeights& weights, const LatentStep& step)
        : w_(weights),
          step_(step),
          type_(static_cast<FloatType>(weights.type)),
          bytes_(float_bytes(type_)),
          sizes_(weights) {}

    bool prepare() {
        static thread_local Scratch scratch;
        return place(scratch, [&](Pieces& pieces) { buffers_.take(pieces, w_, sizes_, step_); });
    }

    Status run(const PagedCache* cache, int first, int last) {
        const auto wanted = [&](int stage) { return first <= stage && stage <= last; };
        Status status = kOk;
        if (wanted(kProject)) status = project();
        if (!status && wanted(kWrite)) status = write(*cache);
        if (!status && wanted(kAttend)) status = decode(*cache);
        if (!status && wanted(kOutput)) status = output();
        return status;
    }

  private:
    Status project() {
        if (const Status status = norm_states(w_, step_, w_.input_norm, step_.first_layer != 0,
                                              buffers_.normed, buffers_.quantized))
            return status;
        if (const Status status = project_down()) return status;
        if (const Status status = project_to_query()) return status;
        if (const Status status = norm_part(w_.latent_norm, w_.query_rank, w_.latent, true))
            return status;
        return rotate();
    }

    Status project_down() {
        if (w_.down_packed)
            return linear(w_.down_packed, buffers_.quantized.activations(step_.tokens, w_.hidden),
                          nullptr, {buffers_.down, type_, sizes_.down});
        DenseCall call = dense_call(buffers_.normed, w_.hidden, step_.tokens, w_.hidden);
        call.weight = w_.down_plain;
        call.weight_stride = w_.hidden;
        call.out = buffers_.down;
        call.out_stride = call.outputs = sizes_.down;
        return dense(call);
    }

    // From the query's latent, or from what is still quantised: the input.
    Status project_to_query() {
        if (w_.query_rank)
            if (const Status status = norm_part(w_.query_norm, 0, w_.query_rank, false))
                return status;
        return linear(w_.query, buffers_.quantized.activations(step_.tokens, sizes_.query_inputs),
                      nullptr, {buffers_.query, type_, sizes_.query});
    }

    // Of `size` elements from `first` on of what was projected down: in place, or quantised.
    Status norm_part(const void* weight, int64_t first, int64_t size, bool in_place) {
        NormCall call{};
        call.x = part(first);
        call.x_stride = call.out_stride = sizes_.down;
        call.weight = weight;
        if (in_place)
            call.out = part(first);
        else
            call.quantized = buffers_.quantized.rows();
        call.rows = step_.tokens;
        call.size = size;
        call.type = w_.type;
        call.epsilon = w_.latent_epsilon;
        return rms_norm(call);
    }

    char* part(int64_t element) const { return buffers_.down + element * bytes_; }
    char* key() const { return part(int64_t{w_.query_rank} + w_.latent); }

    Status rotate() {
        Rotation rotation{};
        rotation.query = buffers_.query + w_.nope * bytes_;
        rotation.key = key();
        rotation.positions = step_.positions;
        rotation.cos_sin = w_.cos_sin;
        rotation.query_token_stride = sizes_.query;
        rotation.query_head_stride = sizes_.head;
        rotation.key_token_stride = sizes_.down;
        rotation.key_head_stride = rotation.head_size = rotation.rotary_size = w_.rope;
        rotation.max_position = w_.max_position;
        rotation.query_heads = w_.heads;
        rotation.key_heads = 1;
        rotation.type = rotation.cos_sin_type = w_.type;
        rotation.neox = w_.neox;
        rotation.in_steps = w_.in_steps;
        return rotate_and_write(&rotation, nullptr, nullptr, step_.tokens);
    }

    Status write(const PagedCache& cache) {
        const CacheWrite write = {part(w_.query_rank), key(),       step_.slots,
                                  sizes_.down,         sizes_.down, w_.type};
        return rotate_and_write(nullptr, &write, &cache, step_.tokens);
    }

    Status decode(const PagedCache& cache) {
        if (step_.decoded == 0) return kOk;
        if (const Status status = absorb()) return status;
        if (const Status status = attend_to(cache)) return status;
        DenseCall call =
            dense_call(buffers_.found, int64_t{w_.heads} * w_.latent, step_.decoded, w_.latent);
        call.x_batch_stride = w_.latent;
        call.weight = w_.to_value;
        call.weight_stride = w_.to_value_stride;
        call.weight_batch_stride = w_.to_value_head_stride;
        call.out = buffers_.attended;
        call.out_stride = sizes_.attended;
        call.out_batch_stride = call.outputs = w_.value;
        call.batches = w_.heads;
        return dense(call);
    }

    // The queries in latent space, each followed by its rotated part.
    Status absorb() {
        DenseCall call = dense_call(buffers_.query, sizes_.query, step_.decoded, w_.nope);
        call.x_batch_stride = sizes_.head;
        call.weight = w_.to_latent;
        call.weight_stride = w_.to_latent_stride;
        call.weight_batch_stride = w_.to_latent_head_stride;
        call.out = buffers_.absorbed;
        call.out_stride = w_.heads * sizes_.row;
        call.out_batch_stride = sizes_.row;
        call.outputs = w_.latent;
        call.batches = w_.heads;
        call.transposed = 1;
        const int64_t heads = int64_t{step_.decoded} * w_.heads;
        for (int64_t h = 0; h < heads; h++)
            std::memcpy(buffers_.absorbed + (h * sizes_.row + w_.latent) * bytes_,
                        buffers_.query + (h * sizes_.head + w_.nope) * bytes_, w_.rope * bytes_);
        return dense(call);
    }

    Status attend_to(const PagedCache& cache) {
        AttentionCall call{};
        call.query = buffers_.absorbed;
        call.query_token_stride = w_.heads * sizes_.row;
        call.out = buffers_.found;
        call.out_token_stride = int64_t{w_.heads} * w_.latent;
        call.query_start = step_.query_start;
        call.seq_lens = step_.seq_lens;
        call.block_table = step_.block_table;
        call.table_stride = step_.table_stride;
        call.table_width = step_.table_width;
        call.sequences = step_.sequences;
        call.tokens = step_.decoded;
        call.heads = w_.heads;
        call.query_type = w_.type;
        call.scale = w_.scale;
        call.causal = 1;
        return attend(call, cache);
    }

    Status output() {
        quantize_rows(buffers_.attended, type_, sizes_.attended, step_.tokens, sizes_.attended,
                      buffers_.quantized.values, buffers_.quantized.scales,
                      buffers_.quantized.sums);
        return linear(w_.output, buffers_.quantized.activations(step_.tokens, sizes_.attended),
                      nullptr, {step_.hidden, type_, w_.hidden});
    }

    DenseCall dense_call(const void* x, int64_t stride, int64_t rows, int64_t inputs) const {
        DenseCall call{};
        call.x = x;
        call.x_stride = stride;
        call.rows = rows;
        call.inputs = inputs;
        call.batches = 1;
        call.type = type_;
        return call;
    }

    const LatentWeights& w_;
    const LatentStep& step_;
    const FloatType type_;
    const int64_t bytes_;
    const Sizes sizes_;
    Buffers buffers_{};
};

Status check_cache_fits(const LatentWeights& w, const PagedCache* cache) {
    if (!cache) return fail(kBadArgument, "%s: there is no cache", kName);
    if (cache->rope_size == w.rope && cache->head_size == w.latent + w.rope) return kOk;
    return fail(kBadArgument, "%s: latents of %d and %d for a cache of %d and %d", kName, w.latent,
                w.rope, cache->head_size - cache->rope_size, cache->rope_size);
}

Status check_step(const LatentStep& step, int first, int last) {
    if (step.tokens < 0 || step.decoded < 0 || step.decoded > step.tokens)
        return fail(kBadArgument, "%s: %d tokens, %d of them decoded", kName, step.tokens,
                    step.decoded);
    const bool kept = step.down && step.query && step.attended;
    if (step.tokens == 0 || kept || (first == kProject && last >= kOutput)) return kOk;
    return fail(kBadArgument, "%s: a layer in pieces needs memory that is kept", kName);
}

}  // namespace

Status check_latent_attention(const LatentWeights& w, const PagedCache* cache,
                              const LatentStep& step, int first, int last) {
    const Sizes sizes(w);
    if (w.hidden < 1 || w.heads < 1 || w.nope < 1 || w.rope < 2 || w.value < 1 || w.latent < 1 ||
        w.query_rank < 0)
        return fail(kBadArgument, "%s: hidden %d, %d heads of %d + %d and %d, latents of %d and %d",
                    kName, w.hidden, w.heads, w.nope, w.rope, w.value, w.latent, w.query_rank);
    if (const Status status = check_step(step, first, last)) return status;
    if (first <= kAttend && last >= kWrite)
        if (const Status status = check_cache_fits(w, cache)) return status;
    if (w.down_packed)
        if (const Status status = check_packed(kName, w.down_packed, "down", sizes.down, w.hidden))
            return status;
    if (const Status status =
            check_packed(kName, w.query, "query", sizes.query, sizes.query_inputs))
        return status;
    return check_packed(kName, w.output, "output", w.hidden, sizes.attended);
}

Status latent_attention(const LatentWeights& weights, const PagedCache* cache,
                        const LatentStep& step, int first, int last) {
    if (step.tokens == 0) return kOk;
    Attention attention(weights, step);
    if (!attention.prepare())
        return fail(kOutOfMemory, "%s: no memory for %d tokens", kName, step.tokens);
    return attention.run(cache, first, last);
}

}  // namespace tunan
