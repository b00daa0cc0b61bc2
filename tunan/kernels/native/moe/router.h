// Which experts a token goes to, and with which weights: DeepSeek-V2's routing (greedy, or limited
// to groups) and V3's (sigmoid, chosen with a bias that is not part of the weights).
#pragma once

#include <cstdint>

#include "float_type.h"
#include "status.h"

namespace tunan {

// Scores are the softmax or the sigmoid of the logits. Of `groups` groups of equally many experts
// the `kept_groups` best are looked at: by their best score, or, with a bias, by their two best
// scores with it. Of those the `top_k` best scores, with the bias if there is one; their weights
// are the scores without it, divided by their sum if `renormalise`, times `scale`. Of equals those
// are taken that PyTorch's topk takes. Layout of plain C: the Python side mirrors it.
struct RouterCall {
    const void* logits;  // [rows][experts] of `type`
    FloatType type;
    int64_t rows;
    int32_t experts, groups, kept_groups, top_k;
    int32_t sigmoid, renormalise;
    float scale;
    const float* bias;      // [experts] or null
    const int32_t* placed;  // [experts]: what each is called on this rank, -1: not here; or null
    int32_t* chosen;        // [rows][top_k]
    float* weights;         // [rows][top_k]
};

Status route(const RouterCall& call);

}  // namespace tunan

TUNAN_API int tunan_route(const tunan::RouterCall* call);
