// What layers share: memory cut into pieces, quantised rows, a weight's shape, norm and MLP.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

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

// Lets `take` place its pieces in the scratch; false if there is no memory for them.
template <class Take>
bool place(Scratch& scratch, const Take& take) {
    Pieces counted(nullptr);
    take(counted);
    char* memory = static_cast<char*>(scratch.get(counted.bytes()));
    if (!memory) return false;
    Pieces placed(memory);
    take(placed);
    return true;
}

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

// The norm of a step's hidden + residual, or, if `first`, of hidden alone, which becomes the
// residual: quantised and, unless that is null, in `out`.
template <class Weights, class Step>
Status norm_states(const Weights& w, const Step& step, const void* weight, bool first, void* out,
                   const QuantizedRoom& rows) {
    NormCall call{};
    call.x = step.hidden;
    call.x_stride = call.residual_stride = call.out_stride = w.hidden;
    if (first) {
        const FloatType type = static_cast<FloatType>(w.type);
        std::memcpy(step.residual, step.hidden,
                    static_cast<size_t>(step.tokens) * w.hidden * float_bytes(type));
    } else {
        call.residual = step.residual;
    }
    call.weight = weight;
    call.out = out;
    call.quantized = rows.rows();
    call.rows = step.tokens;
    call.size = w.hidden;
    call.type = w.type;
    call.epsilon = w.epsilon;
    return rms_norm(call);
}

// Gate and up, SwiGLU and down, of rows that are quantised; `wide` [tokens][2 intermediate].
template <class Weights>
Status feed_forward(const Weights& w, const QuantizedRoom& rows, int64_t tokens, void* wide,
                    void* out) {
    const FloatType type = static_cast<FloatType>(w.type);
    const int64_t width = 2 * int64_t{w.intermediate};
    if (const Status status =
            linear(w.gate_up, rows.activations(tokens, w.hidden), nullptr, {wide, type, width}))
        return status;
    SwigluCall call{};
    call.x = wide;
    call.x_stride = width;
    call.quantized = rows.rows();
    call.rows = tokens;
    call.size = w.intermediate;
    call.type = w.type;
    if (const Status status = swiglu(call)) return status;
    return linear(w.down, rows.activations(tokens, w.intermediate), nullptr, {out, type, w.hidden});
}

}  // namespace tunan
