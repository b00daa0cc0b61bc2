// What the kernels of one instruction set share once sums are there; included after the set's
// vector header.
#pragma once

#include <utility>

#include "linear/kernels.h"

#define TUNAN_UNROLL _Pragma("GCC unroll 32")

namespace tunan::TUNAN_ISA {
namespace {

template <int ROWS>
using ResultRows = float[ROWS][kPanel];

TUNAN_INLINE void store_as(FloatType type, void* row, int64_t at, Floats value) {
    switch (type) {
        case FloatType::f32: store(static_cast<float*>(row) + at, value); break;
        case FloatType::bf16: store_bf16(static_cast<uint16_t*>(row) + at, value); break;
        case FloatType::f16: store_f16(static_cast<uint16_t*>(row) + at, value); break;
    }
}

template <int ROWS>
TUNAN_INLINE void write(const ResultRows<ROWS>& results, int rows, const ResultTile& to) {
    const int64_t size = float_bytes(to.type);
    for (int m = 0; m < rows; m++) {
        char* row = static_cast<char*>(to.data) + m * to.stride * size;
        alignas(64) char whole[kPanel * sizeof(float)];
        void* target = to.columns == kPanel ? row : whole;
        for (int n = 0; n < kPanel; n += kLanes) {
            store_as(to.type, target, n, load_floats(&results[m][n]));
        }
        if (target == whole) __builtin_memcpy(row, whole, to.columns * size);
    }
}

// Bytes of a group of weights, as layout.h says.
struct GroupSizes {
    int64_t scales, zeros, all;

    TUNAN_INLINE GroupSizes(const WeightPanel& panel, int bits)
        : scales(kPanel * (panel.scale_type == ScaleType::f32 ? 4 : 2)),
          zeros(panel.has_zeros ? 64 : 0),
          all(scales + zeros + kPanel * panel.group * bits / 8) {}
};

TUNAN_INLINE Floats load_group_scale(const WeightPanel& panel, const uint8_t* scales, int at) {
    if (panel.scale_type == ScaleType::f32) {
        return load_floats(reinterpret_cast<const float*>(scales) + at);
    }
    return load_f16(reinterpret_cast<const uint16_t*>(scales) + at);
}

// Calls the kernel for as many rows as the tile has, of KERNEL<1> to KERNEL<MOST>.
template <template <int> class KERNEL, int... I>
TUNAN_INLINE void choose(std::integer_sequence<int, I...>, const WeightPanel& panel,
                         const RowTile& tile, const ResultTile& to) {
    static constexpr PanelKernel kernels[] = {KERNEL<I + 1>::run...};
    kernels[tile.rows - 1](panel, tile, to);
}

template <template <int> class KERNEL, int MOST>
void for_rows(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    choose<KERNEL>(std::make_integer_sequence<int, MOST>{}, panel, tile, to);
}

}  // namespace
}  // namespace tunan::TUNAN_ISA
