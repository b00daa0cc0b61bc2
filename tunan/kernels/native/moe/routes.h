// Which token goes to which expert, sorted by expert.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/moe.h"

namespace tunan {

// A slot is one token at one expert. Slots are in the order of experts, those of one expert in the
// order of tokens.
struct Routes {
    std::vector<int64_t> first_slot;  // [count + 1], of every expert
    std::vector<int32_t> token;       // [slots]
    std::vector<float> weight;        // [slots]
    std::vector<int64_t> first_of;    // [rows + 1], of every token in `slot_of`
    std::vector<int32_t> slot_of;     // [slots], a token's in ascending order

    int64_t slots() const { return static_cast<int64_t>(token.size()); }
};

// Fails if an expert is none of call.count.
Status sort_routes(const ExpertsCall& call, Routes* routes);

}  // namespace tunan
