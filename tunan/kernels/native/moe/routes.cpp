#include "moe/routes.h"

#include <algorithm>

namespace tunan {

Status sort_routes(const ExpertsCall& call, Routes* routes) {
    const int64_t entries = call.rows * call.top_k;
    routes->first_slot.assign(call.count + 1, 0);
    routes->first_of.assign(call.rows + 1, 0);
    for (int64_t i = 0; i < entries; i++) {
        const int32_t expert = call.experts[i];
        if (expert >= call.count)
            return fail(kBadArgument, "experts: there is no expert %d, there are %d", expert,
                        call.count);
        if (expert < 0) continue;
        routes->first_slot[expert + 1]++;
        routes->first_of[i / call.top_k + 1]++;
    }
    for (int e = 0; e < call.count; e++) routes->first_slot[e + 1] += routes->first_slot[e];
    for (int64_t m = 0; m < call.rows; m++) routes->first_of[m + 1] += routes->first_of[m];

    const int64_t slots = routes->first_slot[call.count];
    routes->token.resize(slots);
    routes->weight.resize(slots);
    routes->slot_of.resize(slots);
    std::vector<int64_t> next(routes->first_slot.begin(), routes->first_slot.end() - 1);
    for (int64_t m = 0; m < call.rows; m++) {
        int32_t* own = routes->slot_of.data() + routes->first_of[m];
        int32_t* end = own;
        for (int64_t i = m * call.top_k; i < (m + 1) * call.top_k; i++) {
            if (call.experts[i] < 0) continue;
            const int64_t slot = next[call.experts[i]]++;
            routes->token[slot] = static_cast<int32_t>(m);
            routes->weight[slot] = call.weights[i];
            *end++ = static_cast<int32_t>(slot);
        }
        std::sort(own, end);
    }
    return kOk;
}

}  // namespace tunan
