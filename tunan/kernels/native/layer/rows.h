// What the halves of a layer share: memory cut into pieces, quantised rows, a weight's shape.
#pragma once

#include <algorithm>
#include <cstdint>

#include "float_type.h"
#include "linear/linear.h"
#include "memory.h"
#include "norm/norm.h"

namespace tunan {

// Pieces one after the other, each at a multiple of 64 bytes: first counted, then placed.
class Pieces {
  public:
    explicit Pieces(char* memory) : memory_(memory) {}

    template <class T>
    void take(T** piece, int64_t count) {
        if (memory_) *piece = reinterpret_cast<T*>(memory_ + bytes_);
        bytes_ +=
            round_up(static_cast<size_t>(std::max<int64_t>(count, 0)) * sizeof(T), kCacheLine);
    }
    size_t bytes() const { return bytes_; }

  private:
    char* memory_;
    size_t bytes_ = 0;
};

// Room for rows of at most `inputs` values, quantised.
struct QuantizedRoom {
    int8_t* values;
    float* scales;
    int32_t* sums;

    void take(Pieces& pieces, int64_t rows, int64_t inputs) {
        pieces.take(&values, rows * activation_stride(inputs));
        pieces.take(&scales, rows);
        pieces.take(&sums, rows * activation_sums(inputs));
    }
    QuantizedRows rows() const { return {values, scales, sums}; }
    Activations activations(int64_t count, int64_t inputs) const {
        return {values, scales, sums, count, inputs};
    }
};

inline Status check_packed(const char* what, const void* packed, const char* name, int64_t outputs,
                           int64_t inputs) {
    const PackedHeader* header = read_header(packed);
    if (!header) return kBadPacking;
    if (header->outputs == outputs && header->inputs == inputs) return kOk;
    return fail(kBadArgument, "%s: %s is packed %lld x %lld; %lld x %lld is needed", what, name,
                static_cast<long long>(header->outputs), static_cast<long long>(header->inputs),
                static_cast<long long>(outputs), static_cast<long long>(inputs));
}

}  // namespace tunan
