// Writes weights in the layout of the instruction set in use (layout.h).
#pragma once

#include "linear/layout.h"
#include "status.h"

namespace tunan {

// Weights as a checkpoint has them: value[n][k] in rows of `inputs` bytes, 8 bits -128 ... 127 or
// 4 bits 0 ... 15. Per channel (group 0): scales [outputs] f32. Grouped: scales [outputs][groups]
// of the header's type, zeros [outputs][groups] 0 ... 15 or null for 8 (4 bits) and 0 (8 bits).
struct PlainWeights {
    const int8_t* values;
    const void* scales;
    const uint8_t* zeros;
};

// A header for the layout in use; fails if the kernels have no such form.
Status make_header(int64_t outputs, int64_t inputs, int bits, int group, int scale_type,
                   bool has_zeros, PackedHeader* header);

// Writes all `header.bytes` at `out`, a multiple of 64.
void pack(const PackedHeader& header, const PlainWeights& weights, void* out);

}  // namespace tunan
