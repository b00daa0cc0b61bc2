#include "dense/dense.h"
#include "layer/latent.h"
#include "layer/rows.h"
#include "moe/moe.h"
#include "moe/router.h"

namespace tunan {
namespace {

constexpr char kName[] = "latent layer";

// Of one call; kept by the calling thread for the next.
struct Buffers {
    QuantizedRoom quantized;  // of the normed rows, then of SwiGLU's
    char* wide;               // gate and up
    char* shared;             // [tokens][hidden], of the shared experts
    char* normed;             // [tokens][hidden]
    char* logits;             // [tokens][experts]
    int32_t* chosen;          // [tokens][top_k]
    float* weights;           // [tokens][top_k]

    void take(Pieces& pieces, const LatentWeights& w, int64_t tokens) {
        const int64_t bytes = float_bytes(static_cast<FloatType>(w.type));
        const int64_t routed = w.router ? tokens : 0;
        quantized.take(pieces, tokens, std::max(w.hidden, w.intermediate));
        pieces.take(&wide, tokens * 2 * w.intermediate * bytes);
        pieces.take(&shared, routed * w.hidden * bytes);
        pieces.take(&normed, routed * w.hidden * bytes);
        pieces.take(&logits, routed * w.experts * bytes);
        pieces.take(&chosen, routed * w.top_k);
        pieces.take(&weights, routed * w.top_k);
    }
};

class Mlp {
  public:
    Mlp(const LatentWeights& weights, const LatentStep& step)
        : w_(weights), step_(step), type_(static_cast<FloatType>(weights.type)) {}

    bool prepare() {
        static thread_local Scratch scratch;
        return place(scratch, [&](Pieces& pieces) { buffers_.take(pieces, w_, step_.tokens); });
    }

    Status run() {
        const QuantizedRoom& rows = buffers_.quantized;
        // Routed experts quantise the normed rows themselves.
        void* normed = w_.router ? buffers_.normed : nullptr;
        if (const Status status = norm_states(w_, step_, w_.post_norm, false, normed, rows))
            return status;
        if (!w_.router) return feed_forward(w_, rows, step_.tokens, buffers_.wide, step_.hidden);
        if (w_.gate_up)
            if (const Status status =
                    feed_forward(w_, rows, step_.tokens, buffers_.wide, buffers_.shared))
                return status;
        if (const Status status = choose()) return status;
        if (const Status status = run_routed()) return status;
        add_up_experts({step_.hidden, w_.gate_up ? buffers_.shared : nullptr, type_,
                        w_.routed_scale, int64_t{step_.tokens} * w_.hidden});
        return kOk;
    }

  private:
    Status choose() {
        DenseCall call{};
        call.x = buffers_.normed;
        call.weight = w_.router;
        call.out = buffers_.logits;
        call.x_stride = call.weight_stride = call.inputs = w_.hidden;
        call.out_stride = call.outputs = w_.experts;
        call.rows = step_.tokens;
        call.batches = 1;
        call.type = type_;
        if (const Status status = dense(call)) return status;
        RouterCall router{};
        router.logits = buffers_.logits;
        router.type = type_;
        router.rows = step_.tokens;
        router.experts = w_.experts;
        router.groups = w_.groups;
        router.kept_groups = w_.kept_groups;
        router.top_k = w_.top_k;
        router.sigmoid = w_.sigmoid;
        router.renormalise = w_.renormalise;
        router.scale = w_.router_scale;
        router.bias = w_.router_bias;
        router.placed = w_.placed;
        router.chosen = buffers_.chosen;
        router.weights = buffers_.weights;
        return route(router);
    }

    Status run_routed() {
        ExpertsCall call{};
        call.x = buffers_.normed;
        call.experts = buffers_.chosen;
        call.weights = buffers_.weights;
        call.gate_up = w_.experts_up;
        call.down = w_.experts_down;
        call.out = step_.hidden;
        call.gate_up_bytes = w_.experts_up_bytes;
        call.down_bytes = w_.experts_down_bytes;
        call.x_stride = call.out_stride = w_.hidden;
        call.rows = step_.tokens;
        call.top_k = w_.top_k;
        call.count = w_.experts_here;
        call.hidden = w_.hidden;
        call.intermediate = w_.experts_intermediate;
        call.type = w_.type;
        return run_experts(call);
    }

    const LatentWeights& w_;
    const LatentStep& step_;
    const FloatType type_;
    Buffers buffers_{};
};

}  // namespace

Status check_latent_mlp(const LatentWeights& w) {
    if (!w.router || w.gate_up) {
        if (const Status status =
                check_packed(kName, w.gate_up, "gate_up", 2 * int64_t{w.intermediate}, w.hidden))
            return status;
        if (const Status status = check_packed(kName, w.down, "down", w.hidden, w.intermediate))
            return status;
    }
    if (!w.router) return kOk;
    if (const Status status = check_packed(kName, w.experts_up, "experts' gate_up",
                                           2 * int64_t{w.experts_intermediate}, w.hidden))
        return status;
    return check_packed(kName, w.experts_down, "experts' down", w.hidden, w.experts_intermediate);
}

Status latent_mlp(const LatentWeights& weights, const LatentStep& step) {
    if (step.tokens == 0) return kOk;
    Mlp mlp(weights, step);
    if (!mlp.prepare())
        return fail(kOutOfMemory, "%s: no memory for %d tokens", kName, step.tokens);
    return mlp.run();
}

}  // namespace tunan
