#include "layer/layer.h"

#include <algorithm>

#include "guard.h"
#include "layer/rows.h"
#include "rope/rope.h"

namespace tunan {
namespace {

constexpr char kName[] = "decoder layer";

// Of one step; kept by the calling thread for the next.
struct Buffers {
    QuantizedRoom quantized;
    char* wide;       // qkv, then gate and up
    char* attention;  // [tokens][heads head_size]

    void take(Pieces& pieces, const LayerWeights& w, int64_t tokens) {
        const int64_t bytes = float_bytes(static_cast<FloatType>(w.type));
        const int64_t attended = static_cast<int64_t>(w.heads) * w.head_size;
        const int64_t qkv = attended + 2 * static_cast<int64_t>(w.key_heads) * w.head_size;
        quantized.take(pieces, tokens, std::max<int64_t>({w.hidden, w.intermediate, attended}));
        pieces.take(&wide, tokens * std::max<int64_t>(qkv, 2 * int64_t{w.intermediate}) * bytes);
        pieces.take(&attention, tokens * attended * bytes);
    }
};

class Layer {
  public:
    Layer(const LayerWeights& weights, const LayerStep& step)
        : w_(weights),
          step_(step),
          type_(static_cast<FloatType>(weights.type)),
          attended_(static_cast<int64_t>(weights.heads) * weights.head_size),
          keys_(static_cast<int64_t>(weights.key_heads) * weights.head_size) {}

    Status attention(const PagedCache& cache) {
        if (const Status status = check_attention(cache)) return status;
        if (const Status status = prepare()) return status;
        if (step_.tokens == 0) return kOk;
        if (const Status status = norm_states(w_, step_, w_.input_norm, step_.first_layer != 0,
                                              nullptr, buffers_.quantized))
            return status;
        if (const Status status = project(w_.qkv, w_.hidden, w_.qkv_bias, buffers_.wide, qkv()))
            return status;
        if (const Status status = rotate_and_write_keys(cache)) return status;
        if (const Status status = attend_to(cache)) return status;
        quantize_rows(buffers_.attention, type_, attended_, step_.tokens, attended_,
                      buffers_.quantized.values, buffers_.quantized.scales,
                      buffers_.quantized.sums);
        return project(w_.output, attended_, w_.output_bias, step_.hidden, w_.hidden);
    }

    Status mlp() {
        if (const Status status = check_mlp()) return status;
        if (const Status status = prepare()) return status;
        if (step_.tokens == 0) return kOk;
        const QuantizedRoom& rows = buffers_.quantized;
        if (const Status status = norm_states(w_, step_, w_.post_norm, false, nullptr, rows))
            return status;
        return feed_forward(w_, rows, step_.tokens, buffers_.wide, step_.hidden);
    }

    Status check_mlp() const {
        if (const Status status = check()) return status;
        if (const Status status =
                check_packed(kName, w_.gate_up, "gate_up", 2 * int64_t{w_.intermediate}, w_.hidden))
            return status;
        return check_packed(kName, w_.down, "down", w_.hidden, w_.intermediate);
    }

  private:
    int64_t qkv() const { return attended_ + 2 * keys_; }

    Status prepare() {
        static thread_local Scratch scratch;
        if (step_.tokens < 0) return fail(kBadArgument, "%s: %d tokens", kName, step_.tokens);
        const auto take = [&](Pieces& pieces) { buffers_.take(pieces, w_, step_.tokens); };
        if (step_.tokens > 0 && !place(scratch, take))
            return fail(kOutOfMemory, "%s: no memory for %d tokens", kName, step_.tokens);
        return kOk;
    }

    Status check() const {
        if (type_ != FloatType::f32 && type_ != FloatType::bf16)
            return fail(kBadArgument, "decoder layer: activations of type %d; use f32 or bf16",
                        w_.type);
        if (w_.hidden < 1 || w_.intermediate < 1 || w_.heads < 1 || w_.key_heads < 1 ||
            w_.heads % w_.key_heads)
            return fail(kBadArgument,
                        "decoder layer: hidden %d, intermediate %d, %d heads and %d of keys",
                        w_.hidden, w_.intermediate, w_.heads, w_.key_heads);
        return kOk;
    }

    Status check_attention(const PagedCache& cache) const {
        if (const Status status = check()) return status;
        if (cache.heads != w_.key_heads || cache.head_size != w_.head_size || cache.rope_size)
            return fail(kBadArgument,
                        "decoder layer: %d key heads of %d for a cache of %d heads of %d",
                        w_.key_heads, w_.head_size, cache.heads, cache.head_size);
        if (const Status status = check_packed(kName, w_.qkv, "qkv", qkv(), w_.hidden))
            return status;
        return check_packed(kName, w_.output, "output", w_.hidden, attended_);
    }

    Status project(const void* packed, int64_t inputs, const float* bias, void* out,
                   int64_t outputs) const {
        return linear(packed, buffers_.quantized.activations(step_.tokens, inputs), bias,
                      {out, type_, outputs});
    }

    char* part(int64_t element) const { return buffers_.wide + element * float_bytes(type_); }

    Status rotate_and_write_keys(const PagedCache& cache) {
        Rotation rotation{};
        rotation.query = part(0);
        rotation.key = part(attended_);
        rotation.positions = step_.positions;
        rotation.cos_sin = w_.cos_sin;
        rotation.query_token_stride = rotation.key_token_stride = qkv();
        rotation.query_head_stride = rotation.key_head_stride = w_.head_size;
        rotation.max_position = w_.max_position;
        rotation.query_heads = w_.heads;
        rotation.key_heads = w_.key_heads;
        rotation.head_size = w_.head_size;
        rotation.rotary_size = w_.rotary_size;
        rotation.type = rotation.cos_sin_type = w_.type;
        rotation.neox = w_.neox;
        const CacheWrite write = {
            part(attended_), part(attended_ + keys_), step_.slots, qkv(), qkv(), w_.type};
        return tunan::rotate_and_write(&rotation, &write, &cache, step_.tokens);
    }

    Status attend_to(const PagedCache& cache) {
        AttentionCall call{};
        call.query = part(0);
        call.query_token_stride = qkv();
        call.out = buffers_.attention;
        call.out_token_stride = attended_;
        call.query_start = step_.query_start;
        call.seq_lens = step_.seq_lens;
        call.block_table = step_.block_table;
        call.table_stride = step_.table_stride;
        call.table_width = step_.table_width;
        call.sequences = step_.sequences;
        call.tokens = step_.tokens;
        call.heads = w_.heads;
        call.query_type = w_.type;
        call.scale = w_.scale;
        call.window = w_.window;
        call.causal = 1;
        return attend(call, cache);
    }

    const LayerWeights& w_;
    const LayerStep& step_;
    FloatType type_;
    int64_t attended_, keys_;  // elements of all query heads, of all key heads
    Buffers buffers_{};
};

}  // namespace

Status attention_half(const LayerWeights& weights, const PagedCache& cache, const LayerStep& step) {
    return Layer(weights, step).attention(cache);
}

Status mlp_half(const LayerWeights& weights, const LayerStep& step) {
    return Layer(weights, step).mlp();
}

Status decoder_layer(const LayerWeights& weights, const PagedCache& cache, const LayerStep& step) {
    Layer layer(weights, step);
    // Before the first half changes anything.
    if (const Status status = layer.check_mlp()) return status;
    if (const Status status = layer.attention(cache)) return status;
    return layer.mlp();
}

}  // namespace tunan

TUNAN_API int tunan_decoder_layer(const tunan::LayerWeights* weights,
                                  const tunan::PagedCache* cache, const tunan::LayerStep* step) {
    return tunan::guarded([&] { return tunan::decoder_layer(*weights, *cache, *step); });
}

TUNAN_API int tunan_attention_half(const tunan::LayerWeights* weights,
                                   const tunan::PagedCache* cache, const tunan::LayerStep* step) {
    return tunan::guarded([&] { return tunan::attention_half(*weights, *cache, *step); });
}

TUNAN_API int tunan_mlp_half(const tunan::LayerWeights* weights, const tunan::LayerStep* step) {
    return tunan::guarded([&] { return tunan::mlp_half(*weights, *step); });
}
