#include "linear/pack.h"

#include <algorithm>
#include <cstring>

#include "linear/linear.h"
#include "linear/select.h"
#include "pool.h"

namespace tunan {
namespace {

// -128 * 127 * inputs has to fit 32 bits.
constexpr int64_t kMostInputs = 131072;
// So that no size derived from a header, which may be a file's, leaves 64 bits.
constexpr int64_t kMostOutputs = INT32_MAX;
constexpr int kUnit = 4;

long long number(int64_t value) { return static_cast<long long>(value); }

class Packer {
  public:
    Packer(const PackedHeader& header, const PlainWeights& weights, uint8_t* out)
        : shape_(header),
          weights_(weights),
          out_(out),
          offset_(header.bits == 8 &&
                          header.layout == static_cast<uint32_t>(WeightLayout::unsigned4)
                      ? 128
                      : 0) {}

    void write_channel_scales() const {
        float* to = reinterpret_cast<float*>(out_ + shape_.scales_offset());
        std::memset(to, 0, shape_.panels() * kPanel * sizeof(float));
        std::memcpy(to, weights_.scales, shape_.outputs * sizeof(float));
    }

    void write_panel(int64_t panel) const {
        uint8_t* to = out_ + shape_.panels_offset() + panel * shape_.panel_bytes();
        if (!shape_.group) {
            write_values8(panel, 0, shape_.depth(), to);
            return;
        }
        for (int64_t g = 0; g < shape_.groups(); g++)
            write_group(panel, g, to + g * shape_.group_bytes());
    }

  private:
    uint8_t value(int64_t n, int64_t k) const {
        const bool inside = n < shape_.outputs && k < shape_.inputs;
        const int plain = inside ? weights_.values[n * shape_.inputs + k] : 0;
        return static_cast<uint8_t>(plain + offset_);
    }

    void write_values8(int64_t panel, int64_t first, int64_t count, uint8_t* to) const {
        for (int64_t k = first; k < first + count; k += kUnit) {
            for (int n = 0; n < kPanel; n++) {
                for (int u = 0; u < kUnit; u++) *to++ = value(panel * kPanel + n, k + u);
            }
        }
    }

    void write_values4(int64_t panel, int64_t first, int64_t count, uint8_t* to) const {
        for (int64_t k = first; k < first + count; k += 2 * kUnit) {
            for (int n = 0; n < kPanel; n++) {
                for (int u = 0; u < kUnit; u++) {
                    const int low = value(panel * kPanel + n, k + u) & 15;
                    const int high = value(panel * kPanel + n, k + kUnit + u) & 15;
                    *to++ = static_cast<uint8_t>(low | high << 4);
                }
            }
        }
    }

    void write_group(int64_t panel, int64_t group, uint8_t* to) const {
        const int64_t size = shape_.scale_bytes() / kPanel;
        std::memset(to, 0, shape_.scale_bytes() + shape_.zero_bytes());
        for (int n = 0; n < kPanel && panel * kPanel + n < shape_.outputs; n++) {
            const int64_t at = (panel * kPanel + n) * shape_.groups() + group;
            std::memcpy(to + n * size, static_cast<const char*>(weights_.scales) + at * size, size);
            if (shape_.has_zeros) to[shape_.scale_bytes() + n] = weights_.zeros[at];
        }
        to += shape_.scale_bytes() + shape_.zero_bytes();
        const int64_t first = group * shape_.group;
        if (shape_.bits == 4) {
            write_values4(panel, first, shape_.group, to);
        } else {
            write_values8(panel, first, shape_.group, to);
        }
    }

    const PackedShape shape_;
    const PlainWeights& weights_;
    uint8_t* const out_;
    const int offset_;
};

}  // namespace

Status make_header(int64_t outputs, int64_t inputs, int bits, int group, int scale_type,
                   bool has_zeros, PackedHeader* header) {
    if (outputs < 1 || outputs > kMostOutputs || inputs < 1 || inputs > kMostInputs) {
        return fail(kBadArgument, "a weight of %lld x %lld; at least 1 x 1 and at most %lld inputs",
                    number(outputs), number(inputs), number(kMostInputs));
    }
    if (bits != 8 && bits != 4) return fail(kBadArgument, "weights of %d bits; 8 or 4", bits);
    const bool per_channel = group == 0 && bits == 8;
    if (!per_channel && group != 32 && group != 64 && group != 128) {
        return fail(kBadArgument, "groups of %d inputs; 32, 64 or 128", group);
    }
    if (scale_type < 0 || scale_type > 1 || (per_channel && scale_type != 0)) {
        return fail(kBadArgument, "scales of type %d; 0 (f32), or 1 (f16) in groups", scale_type);
    }
    if (has_zeros && bits != 4) return fail(kBadArgument, "zero points are for 4 bits only");
    *header = {};
    std::memcpy(header->magic, kPackedMagic, sizeof header->magic);
    header->version = kPackedVersion;
    header->layout = static_cast<uint32_t>(selected_linear_kernels().layout);
    header->bits = static_cast<uint32_t>(bits);
    header->group = static_cast<uint32_t>(group);
    header->scale_type = static_cast<uint32_t>(scale_type);
    header->has_zeros = has_zeros;
    header->outputs = outputs;
    header->inputs = inputs;
    header->bytes = PackedShape(*header).bytes();
    return kOk;
}

void pack(const PackedHeader& header, const PlainWeights& weights, void* out) {
    const PackedShape shape(header);
    const Packer packer(header, weights, static_cast<uint8_t*>(out));
    advise_huge_pages(out, header.bytes);
    std::memcpy(out, &header, sizeof header);
    if (!shape.group) packer.write_channel_scales();
    parallel_for(shape.panels(), 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t p = begin; p < end; p++) packer.write_panel(p);
    });
}

const PackedHeader* read_header(const void* packed) {
    const PackedHeader* header = static_cast<const PackedHeader*>(packed);
    if (reinterpret_cast<uintptr_t>(packed) % kCacheLine) {
        fail(kBadPacking, "packed weights have to begin at a multiple of 64 bytes");
        return nullptr;
    }
    if (std::memcmp(header->magic, kPackedMagic, sizeof header->magic) != 0) {
        fail(kBadPacking, "these are no packed weights");
        return nullptr;
    }
    const WeightLayout layout = selected_linear_kernels().layout;
    if (header->version != kPackedVersion || header->layout != static_cast<uint32_t>(layout)) {
        fail(kBadPacking, "weights packed as %s version %u, but %s reads %s version %u: pack again",
             layout_name(static_cast<WeightLayout>(header->layout)), header->version,
             isa_name(selected_isa()), layout_name(layout), kPackedVersion);
        return nullptr;
    }
    PackedHeader sound;
    if (header->has_zeros > 1 ||
        make_header(header->outputs, header->inputs, static_cast<int>(header->bits),
                    static_cast<int>(header->group), static_cast<int>(header->scale_type),
                    header->has_zeros != 0, &sound) != kOk ||
        header->bytes != sound.bytes) {
        fail(kBadPacking, "packed weights whose header contradicts itself: pack again");
        return nullptr;
    }
    return header;
}

}  // namespace tunan
