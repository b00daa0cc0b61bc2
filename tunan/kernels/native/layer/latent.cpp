#include "layer/latent.h"

#include "float_type.h"
#include "guard.h"

namespace tunan {

Status latent_layer(const LatentWeights& weights, const PagedCache* cache, const LatentStep& step,
                    int first, int last) {
    if (first < kProject || last > kMlp || first > last)
        return fail(kBadArgument, "latent layer: there are no stages %d to %d", first, last);
    if (weights.type != static_cast<int>(FloatType::f32) &&
        weights.type != static_cast<int>(FloatType::bf16))
        return fail(kBadArgument, "latent layer: activations of type %d; use f32 or bf16",
                    weights.type);
    if (last == kMlp)
        if (const Status status = check_latent_mlp(weights)) return status;
    if (first <= kOutput) {
        if (const Status status = check_latent_attention(weights, cache, step, first, last))
            return status;
        if (const Status status = latent_attention(weights, cache, step, first, last))
            return status;
    }
    return last == kMlp ? latent_mlp(weights, step) : kOk;
}

}  // namespace tunan

TUNAN_API int tunan_latent_layer(const tunan::LatentWeights* weights,
                                 const tunan::PagedCache* cache, const tunan::LatentStep* step,
                                 int first, int last) {
    return tunan::guarded([&] { return tunan::latent_layer(*weights, cache, *step, first, last); });
}
