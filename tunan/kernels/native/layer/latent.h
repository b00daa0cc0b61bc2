// A decoder layer of DeepSeek-V2 and V3 in one call: norm, projections to the query and the latent,
// rotation and cache write, attention in latent space, output projection, norm of the new residual,
// and a dense MLP or routing, routed and shared experts. The same operations as one by one, so the
// same bits. Layouts of plain C: the Python side mirrors them field by field.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "status.h"

namespace tunan {

// What stays. Norms and plain weights have the activations' type, which `type` is: f32 or bf16.
// Packed weights are linear_pack()'s. A part that a layer has none of is null.
struct LatentWeights {
    const void* input_norm;   // [hidden]
    const void* post_norm;    // [hidden]
    const void* query_norm;   // [query_rank], if there is a query latent
    const void* latent_norm;  // [latent]
    // [query_rank + latent + rope][hidden]: packed, or plain
    const void* down_packed;
    const void* down_plain;
    const void* query;      // packed [heads (nope + rope)][query_rank, or hidden without one]
    const void* to_latent;  // plain [heads][nope][latent]
    const void* to_value;   // plain [heads][value][latent]
    const void* output;     // packed [hidden][heads value]
    const void* cos_sin;    // [max_position][rope]
    // Of a dense layer its MLP, of a mixture the shared experts, if it has any.
    const void* gate_up;  // packed [2 intermediate][hidden]
    const void* down;     // packed [hidden][intermediate]
    const void* router;   // plain [experts][hidden]; null: a dense layer
    const float* router_bias;
    const int32_t* placed;   // as in RouterCall
    const void* experts_up;  // as ExpertsCall's gate_up
    const void* experts_down;
    int64_t experts_up_bytes, experts_down_bytes;
    int64_t max_position;
    int64_t to_latent_stride, to_latent_head_stride;  // elements
    int64_t to_value_stride, to_value_head_stride;
    int32_t hidden, intermediate;
    int32_t heads, nope, rope, value, latent, query_rank;
    int32_t neox, in_steps;                                             // as in Rotation
    int32_t experts, groups, kept_groups, top_k, sigmoid, renormalise;  // as in RouterCall
    int32_t experts_here, experts_intermediate;
    int32_t type;
    float epsilon, latent_epsilon;
    float scale;         // of the scores
    float router_scale;  // of the experts' weights
    float routed_scale;  // of what the routed experts add up to
};

// What a step brings. hidden and residual are as in LayerStep. The first `decoded` tokens are
// attended to in latent space, those of `sequences` sequences; of the others the caller makes
// `attended`, between kWrite and kOutput.
struct LatentStep {
    void* hidden;              // [tokens][hidden]
    void* residual;            // [tokens][hidden]
    const int64_t* positions;  // [tokens]
    const int64_t* slots;      // [tokens]
    const int32_t* query_start;
    const int32_t* seq_lens;
    const int32_t* block_table;
    // Kept from one call to the next, for a layer in several; or null: the library's own.
    void* down;      // [tokens][query_rank + latent + rope]: in the end the normed and rotated ones
    void* query;     // [tokens][heads][nope + rope], in the end rotated
    void* attended;  // [tokens][heads][value]
    int64_t table_stride;
    int32_t table_width;
    int32_t sequences;
    int32_t tokens, decoded;
    int32_t first_layer;
};

// The parts of a layer in their order. After kOutput and after kMlp `hidden` is what a rank has of
// a sum.
enum LatentStage : int { kProject = 0, kWrite = 1, kAttend = 2, kOutput = 3, kMlp = 4 };

// Does the stages from `first` to `last`. Everything is checked before anything is changed.
Status latent_layer(const LatentWeights& weights, const PagedCache* cache, const LatentStep& step,
                    int first, int last);

// Its halves: the stages up to kOutput, and kMlp; the checks are what either does before it begins.
Status check_latent_attention(const LatentWeights& weights, const PagedCache* cache,
                              const LatentStep& step, int first, int last);
Status latent_attention(const LatentWeights& weights, const PagedCache* cache,
                        const LatentStep& step, int first, int last);
Status check_latent_mlp(const LatentWeights& weights);
Status latent_mlp(const LatentWeights& weights, const LatentStep& step);

}  // namespace tunan

TUNAN_API int tunan_latent_layer(const tunan::LatentWeights* weights,
                                 const tunan::PagedCache* cache, const tunan::LatentStep* step,
                                 int first, int last);
