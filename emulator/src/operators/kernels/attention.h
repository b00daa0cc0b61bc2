// What the attention kernels share.
#pragma once
#include "kernels.h"

namespace tunan {

constexpr int64_t NO_MASK = 0, ALL_MASK = 1, LEFT_UP_CAUSAL = 2, RIGHT_DOWN_CAUSAL = 3;

struct Heads {
    int64_t query, key;
};

// The number of heads of queries and of keys; a call that gives none for keys means the same.
Heads heads_of(const Call& call);

// The fused operator; what it refuses is in fused_attention_check.cpp.
void fused_attention(const Call& call);

}  // namespace tunan
