// What one instruction set provides for rotation and cache writes: one token each.
#pragma once

#include "isa.h"
#include "rope/rope.h"

namespace tunan {

struct RopeKernels {
    void (*rotate_token)(const Rotation& rotation, int64_t token);
    // The token's slot is not negative.
    void (*write_token)(const CacheWrite& write, const PagedCache& cache, int64_t token);
};

}  // namespace tunan
