// A decoder layer of the Llama family (Llama, Qwen2) in one call: norm and quantise, qkv, rotation
// and cache write, attention, output projection, norm of the new residual and quantise, gate and
// up, SwiGLU and quantise, down. The same operations as one by one, so the same bits.
// Layouts of plain C: the Python side mirrors them field by field.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "status.h"

namespace tunan {

// What stays: weights packed by linear_pack(), norms in the activations' type, biases f32 or null.
struct LayerWeights {
    const void* input_norm;  // [hidden]
    const void* post_norm;   // [hidden]
    const void* qkv;         // packed [(heads + 2 key_heads) head_size][hidden]
    const float* qkv_bias;
    const void* output;  // packed [hidden][heads head_size]
    const float* output_bias;
    const void* gate_up;  // packed [2 intermediate][hidden]
    const void* down;     // packed [hidden][intermediate]
    const void* cos_sin;  // [max_position][rotary_size], in the activations' type
    int64_t max_position;
    int32_t hidden, intermediate;
    int32_t heads, key_heads, head_size, rotary_size;
    int32_t neox;
    int32_t type;  // FloatType of the activations: f32 or bf16
    float epsilon;
    float scale;     // of the scores
    int32_t window;  // as in AttentionCall
};

// What a step brings. `hidden` is the last layer's output, or the embedding; with a residual it is
// added to that; without one (first layer), `residual` is set to it. Both are replaced.
struct LayerStep {
    void* hidden;              // [tokens][hidden]
    void* residual;            // [tokens][hidden]
    const int64_t* positions;  // [tokens]
    const int64_t* slots;      // [tokens]
    const int32_t* query_start;
    const int32_t* seq_lens;
    const int32_t* block_table;
    int64_t table_stride;
    int32_t table_width;
    int32_t sequences;
    int32_t tokens;
    int32_t first_layer;
};

Status decoder_layer(const LayerWeights& weights, const PagedCache& cache, const LayerStep& step);

// The same in two calls, for tensor parallelism: weights are a rank's share, and after each call
// the ranks' `hidden` are to be added up. The first ends with the output projection, the second
// begins with the norm of hidden + residual.
Status attention_half(const LayerWeights& weights, const PagedCache& cache, const LayerStep& step);
Status mlp_half(const LayerWeights& weights, const LayerStep& step);

}  // namespace tunan

TUNAN_API int tunan_decoder_layer(const tunan::LayerWeights* weights,
                                  const tunan::PagedCache* cache, const tunan::LayerStep* step);
TUNAN_API int tunan_attention_half(const tunan::LayerWeights* weights,
                                   const tunan::PagedCache* cache, const tunan::LayerStep* step);
TUNAN_API int tunan_mlp_half(const tunan::LayerWeights* weights, const tunan::LayerStep* step);
