// How the weights of a linear layer are packed.
//
//   header    PackedHeader, 128 bytes
//   scales    8 bits a channel: f32 [N'], the scale of every output channel
//   panels    of 32 output channels each, in order
//
// N' is N up to a multiple of 32; the channels beyond N are zero. One panel:
//
//   per channel   [K'/U][32][U] bytes                                 K' = K up to 64
//   grouped       for every group of G inputs:                        K' = K up to G
//                     scales [32], f16 or f32
//                     zero points [32] u8, if there are any, up to 64 bytes
//                     8 bits: [G/U][32][U] bytes
//                     4 bits: [G/2U][32][U] bytes: U inputs in the low nibbles, the next U in the
//                     high
//
// so that one vector load has U inputs of consecutive channels and a panel is read front to back.
// U is 4 (dot products over 32-bit lanes). 8-bit weights are stored plus 128 where the CPU
// multiplies unsigned by signed, as they are elsewhere; 4-bit weights are 0 to 15 everywhere.
// Everything is at a multiple of 64 bytes from the start, which itself must be one.
//
// The data may be a read-only mapping of a file. What reads it checks that the header agrees with
// itself: a file from elsewhere is to be verified first (its hash, its form, and `bytes` against
// its size).
#pragma once

#include <cstdint>

#include "memory.h"

namespace tunan {

constexpr int kPanel = 32;
constexpr int kDepthStep = 64;  // K' of the per-channel form
constexpr uint32_t kPackedVersion = 1;
constexpr char kPackedMagic[8] = {'T', 'U', 'N', 'A', 'N', 'L', 'I', 'N'};

// The numbers are part of the format.
enum class WeightLayout : uint32_t { signed4 = 1, unsigned4 = 2 };

inline const char* layout_name(WeightLayout layout) {
    return layout == WeightLayout::signed4 ? "signed4" : "unsigned4";
}

enum class ScaleType : uint32_t { f32 = 0, f16 = 1 };

struct PackedHeader {
    char magic[8];
    uint32_t version;
    uint32_t layout;
    uint32_t bits;        // 8 or 4
    uint32_t group;       // inputs that share a scale; 0: all of a channel's
    uint32_t scale_type;  // of group scales
    uint32_t has_zeros;
    int64_t outputs;  // N
    int64_t inputs;   // K
    int64_t bytes;    // of all, this header included
    char reserved[72];
};
static_assert(sizeof(PackedHeader) == 128, "part of the format");

// Offsets and sizes that follow from a header.
struct PackedShape {
    int64_t outputs, inputs;
    int bits, group;
    ScaleType scale_type;
    bool has_zeros;

    explicit PackedShape(const PackedHeader& h)
        : outputs(h.outputs),
          inputs(h.inputs),
          bits(static_cast<int>(h.bits)),
          group(static_cast<int>(h.group)),
          scale_type(static_cast<ScaleType>(h.scale_type)),
          has_zeros(h.has_zeros != 0) {}

    int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
    int64_t groups() const { return group ? (inputs + group - 1) / group : 0; }
    int64_t depth() const { return group ? groups() * group : round_up64(inputs, kDepthStep); }
    int64_t scale_bytes() const { return kPanel * (scale_type == ScaleType::f32 ? 4 : 2); }
    int64_t zero_bytes() const { return has_zeros ? 64 : 0; }
    int64_t group_bytes() const { return scale_bytes() + zero_bytes() + kPanel * group * bits / 8; }
    int64_t panel_bytes() const { return group ? groups() * group_bytes() : kPanel * depth(); }
    int64_t scales_offset() const { return sizeof(PackedHeader); }
    int64_t panels_offset() const {
        return scales_offset() + (group ? 0 : panels() * kPanel * int64_t{sizeof(float)});
    }
    int64_t bytes() const { return panels_offset() + panels() * panel_bytes(); }

  private:
    static int64_t round_up64(int64_t value, int64_t multiple) {
        return (value + multiple - 1) / multiple * multiple;
    }
};

}  // namespace tunan
