// Linear layers where the CPU multiplies two rows by two outputs at once: one panel of 32 outputs
// times up to eight rows. The sums are exact, and what follows is what panel.isa.cpp does: the same
// bits.
#include TUNAN_VEC_HEADER
#include "linear/kernels.h"
#include "linear/results.h"

namespace tunan::TUNAN_ISA {

#ifdef TUNAN_HAS_ROW_PAIRS

namespace {

constexpr int kMostRows = 8;
constexpr int kUnit = 8;
constexpr int kStepBytes = kPanel * 4;  // weights of four inputs, in all 32 channels
constexpr int kOutputs = 8;             // at once: two vectors of weights, four pairs
constexpr int kBlockBytes = 512 << 10;

template <int ROWS>
using PairSums = Ints[(ROWS + 1) / 2][kOutputs / 2];

// One unit of inputs: weights of the outputs in two vectors, four inputs in `first` and four in
// `second`.
template <int ROWS>
TUNAN_INLINE void step(PairSums<ROWS>& sums, const Bytes (&first)[2], const Bytes (&second)[2],
                       const int8_t* x) {
    const Bytes weights[] = {low_pair(first[0], second[0]), high_pair(first[0], second[0]),
                             low_pair(first[1], second[1]), high_pair(first[1], second[1])};
    TUNAN_UNROLL for (int p = 0; p < (ROWS + 1) / 2; p++) {
        const int8_t* rows = x + 2 * p * kUnit;
        const Bytes pair = 2 * p + 1 < ROWS ? load_pair(rows) : load_single(rows);
        TUNAN_UNROLL for (int i = 0; i < kOutputs / 2; i++) {
            sums[p][i] = multiply_pairs(sums[p][i], pair, weights[i]);
        }
    }
}

// exact[m][0 ... 7] becomes the sums over `depth` inputs for the outputs whose weights begin at
// `weights`.
template <int BITS, int ROWS>
TUNAN_INLINE void sum_products(const uint8_t* weights, const int8_t* x, int64_t depth,
                               Ints (&exact)[ROWS][2]) {
    PairSums<ROWS> sums;
    TUNAN_UNROLL for (int p = 0; p < (ROWS + 1) / 2; p++) {
        TUNAN_UNROLL for (int i = 0; i < kOutputs / 2; i++) sums[p][i] = zero_ints();
    }
    for (int64_t k = 0; k < depth; k += kUnit) {
        const Bytes here[] = {load_bytes(weights), load_bytes(weights + 4 * kLanes)};
        if constexpr (BITS == 4) {
            const Bytes first[] = {low_nibbles(here[0]), low_nibbles(here[1])};
            const Bytes second[] = {high_nibbles(here[0]), high_nibbles(here[1])};
            step<ROWS>(sums, first, second, x);
            weights += kStepBytes;
        } else {
            const uint8_t* after = weights + kStepBytes;
            const Bytes second[] = {load_bytes(after), load_bytes(after + 4 * kLanes)};
            step<ROWS>(sums, here, second, x);
            weights += 2 * kStepBytes;
        }
        x += ROWS * kUnit;
    }
    TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
        TUNAN_UNROLL for (int v = 0; v < 2; v++) {
            const Ints a = sums[m / 2][2 * v], b = sums[m / 2][2 * v + 1];
            exact[m][v] = m % 2 ? second_rows(a, b) : first_rows(a, b);
        }
    }
}

template <int ROWS>
void per_channel8(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    ResultRows<ROWS> results;
    for (int n = 0; n < kPanel; n += kOutputs) {
        Ints exact[ROWS][2];
        sum_products<8>(panel.data + n * 4, tile.values, panel.depth, exact);
        TUNAN_UNROLL for (int v = 0; v < 2; v++) {
            const int at = n + v * kLanes;
            const Floats scale = load_floats(panel.scales + at);
            const Floats bias = load_floats(panel.bias + at);
            TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
                const Floats product = multiply(to_floats(exact[m][v]), scale);
                store(&results[m][at], multiply_add(product, broadcast(tile.scales[m]), bias));
            }
        }
    }
    write(results, ROWS, to);
}

template <int BITS, int ROWS>
void grouped(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    const GroupSizes sizes(panel, BITS);
    ResultRows<ROWS> results;
    for (int n = 0; n < kPanel; n += kOutputs) {
        Floats totals[ROWS][2];
        TUNAN_UNROLL for (int m = 0; m < ROWS; m++) totals[m][0] = totals[m][1] = broadcast(0.0f);
        const uint8_t* scales = panel.data;
        const int8_t* x = tile.values;
        const int32_t* shifts = tile.shifts;
        for (int64_t k = 0; k < panel.depth; k += panel.group) {
            const uint8_t* zeros = scales + sizes.scales;
            Ints exact[ROWS][2];
            sum_products<BITS>(zeros + sizes.zeros + n * 4, x, panel.group, exact);
            TUNAN_UNROLL for (int v = 0; v < 2; v++) {
                const int at = n + v * kLanes;
                const Floats scale = load_group_scale(panel, scales, at);
                TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
                    Ints shift = broadcast(shifts[m]);
                    if (panel.has_zeros) shift = multiply(shift, widen_u8(zeros + at));
                    const Floats sum = to_floats(add(exact[m][v], shift));
                    totals[m][v] = multiply_add(sum, scale, totals[m][v]);
                }
            }
            scales += sizes.all;
            x += ROWS * panel.group;
            shifts += ROWS;
        }
        TUNAN_UNROLL for (int v = 0; v < 2; v++) {
            const int at = n + v * kLanes;
            const Floats bias = load_floats(panel.bias + at);
            TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
                store(&results[m][at], multiply_add(totals[m][v], broadcast(tile.scales[m]), bias));
            }
        }
    }
    write(results, ROWS, to);
}

template <int ROWS>
struct PerChannel8 {
    static constexpr PanelKernel run = per_channel8<ROWS>;
};
template <int ROWS>
struct Grouped8 {
    static constexpr PanelKernel run = grouped<8, ROWS>;
};
template <int ROWS>
struct Grouped4 {
    static constexpr PanelKernel run = grouped<4, ROWS>;
};

}  // namespace

const PanelKernels* matrix_kernels() {
    static constexpr PanelKernels kernels = {kMostRows,
                                             kUnit,
                                             kBlockBytes,
                                             for_rows<PerChannel8, kMostRows>,
                                             for_rows<Grouped8, kMostRows>,
                                             for_rows<Grouped4, kMostRows>,
                                             nullptr,
                                             nullptr};
    return &kernels;
}

#endif

}  // namespace tunan::TUNAN_ISA
