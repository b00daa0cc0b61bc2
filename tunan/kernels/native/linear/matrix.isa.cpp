// Linear layers with matrix registers: one panel of 32 outputs times up to 32 rows, two tiles of
// 16 each way. The sums are exact, and what follows is what panel.isa.cpp does: the same bits.
#include TUNAN_VEC_HEADER
#include "linear/kernels.h"
#include "linear/results.h"

namespace tunan::TUNAN_ISA {

#ifdef TUNAN_HAS_TILES

namespace {

constexpr int kMostRows = 2 * kTileRows;
constexpr int kStepBytes = kPanel * 4;
constexpr int kMostGroup = 128;
// Every CPU with tiles has 2 MiB of second-level cache.
constexpr int kBlockBytes = 1 << 20;

// The tiles: sums are (rows, outputs) low-low, low-high, high-low, high-high.
constexpr int kX = 4, kWeights = 6;

using Sums = int32_t[kMostRows][kPanel];

// Rows that this thread's tiles are configured for; 0: released.
thread_local int configured = 0;

void configure(int rows) {
    if (configured == rows) return;
    const int high_rows = rows > kTileRows ? rows - kTileRows : 0;
    TileConfig config;
    for (int i = 0; i < 2; i++) {
        const auto part = static_cast<uint8_t>(i ? high_rows : rows - high_rows);
        if (part) {
            config.rows[2 * i] = config.rows[2 * i + 1] = config.rows[kX + i] = part;
            config.row_bytes[2 * i] = config.row_bytes[2 * i + 1] = kTileBytes;
            config.row_bytes[kX + i] = kTileBytes;
        }
        config.rows[kWeights + i] = kTileRows;
        config.row_bytes[kWeights + i] = kTileBytes;
    }
    configure_tiles(config);
    configured = rows;
}

// The registers cost every switch between threads, as long as they are in use.
void release() {
    if (!configured) return;
    release_tiles();
    configured = 0;
}

template <bool BOTH>
TUNAN_INLINE void sum_products(const uint8_t* weights, const int8_t* x, int rows, int64_t depth,
                               Sums& sums) {
    clear_tile<0>();
    clear_tile<1>();
    if constexpr (BOTH) {
        clear_tile<2>();
        clear_tile<3>();
    }
    for (int64_t k = 0; k < depth; k += kTileBytes) {
        load_tile<kX>(x, kTileBytes);
        load_tile<kWeights>(weights, kStepBytes);
        multiply_tiles<0, kX, kWeights>();
        load_tile<kWeights + 1>(weights + kTileBytes, kStepBytes);
        multiply_tiles<1, kX, kWeights + 1>();
        if constexpr (BOTH) {
            load_tile<kX + 1>(x + kTileRows * kTileBytes, kTileBytes);
            multiply_tiles<2, kX + 1, kWeights>();
            multiply_tiles<3, kX + 1, kWeights + 1>();
        }
        weights += kPanel * kTileBytes;
        x += rows * kTileBytes;
    }
    store_tile<0>(&sums[0][0], sizeof sums[0]);
    store_tile<1>(&sums[0][kTileRows], sizeof sums[0]);
    if constexpr (BOTH) {
        store_tile<2>(&sums[kTileRows][0], sizeof sums[0]);
        store_tile<3>(&sums[kTileRows][kTileRows], sizeof sums[0]);
    }
}

void all_products(const uint8_t* weights, const int8_t* x, int rows, int64_t depth, Sums& sums) {
    configure(rows);
    if (rows > kTileRows) {
        sum_products<true>(weights, x, rows, depth, sums);
    } else {
        sum_products<false>(weights, x, rows, depth, sums);
    }
}

void per_channel8(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    alignas(64) Sums sums;
    all_products(panel.data, tile.values, tile.rows, panel.depth, sums);
    alignas(64) ResultRows<kMostRows> results;
    for (int n = 0; n < kPanel; n += kLanes) {
        const Floats scale = load_floats(panel.scales + n), bias = load_floats(panel.bias + n);
        for (int m = 0; m < tile.rows; m++) {
            const Ints shift = broadcast(zero_point(8) * tile.sums[m]);
            const Floats exact = to_floats(subtract(load_ints(&sums[m][n]), shift));
            store(&results[m][n],
                  multiply_add(multiply(exact, scale), broadcast(tile.scales[m]), bias));
        }
    }
    write(results, tile.rows, to);
}

// [G/8][32][4] pairs of 4 bits as [G/4][32][4] bytes.
TUNAN_INLINE void unpack(const uint8_t* packed, int group, uint8_t* to) {
    for (int k = 0; k < group; k += 8) {
        for (int i = 0; i < kStepBytes; i += kTileBytes) {
            const Bytes pairs = load_bytes(packed + i);
            store_bytes(to + i, low_nibbles(pairs));
            store_bytes(to + kStepBytes + i, high_nibbles(pairs));
        }
        packed += kStepBytes;
        to += 2 * kStepBytes;
    }
}

template <int BITS>
void grouped(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    const GroupSizes sizes(panel, BITS);
    alignas(64) Sums sums;
    alignas(64) uint8_t unpacked[kPanel * kMostGroup];
    alignas(64) ResultRows<kMostRows> totals = {};
    const uint8_t* scales = panel.data;
    const int8_t* x = tile.values;
    const int32_t* input_sums = tile.sums;
    for (int64_t k = 0; k < panel.depth; k += panel.group) {
        const uint8_t* zeros = scales + sizes.scales;
        const uint8_t* weights = zeros + sizes.zeros;
        if constexpr (BITS == 4) {
            unpack(weights, panel.group, unpacked);
            weights = unpacked;
        }
        all_products(weights, x, tile.rows, panel.group, sums);
        for (int n = 0; n < kPanel; n += kLanes) {
            const Floats scale = load_group_scale(panel, scales, n);
            const Ints zero = panel.has_zeros ? widen_u8(zeros + n) : broadcast(zero_point(BITS));
            for (int m = 0; m < tile.rows; m++) {
                const Ints shift = multiply(zero, broadcast(input_sums[m]));
                const Floats exact = to_floats(subtract(load_ints(&sums[m][n]), shift));
                store(&totals[m][n], multiply_add(exact, scale, load_floats(&totals[m][n])));
            }
        }
        scales += sizes.all;
        x += tile.rows * panel.group;
        input_sums += tile.rows;
    }
    for (int n = 0; n < kPanel; n += kLanes) {
        const Floats bias = load_floats(panel.bias + n);
        for (int m = 0; m < tile.rows; m++) {
            float* total = &totals[m][n];
            store(total, multiply_add(load_floats(total), broadcast(tile.scales[m]), bias));
        }
    }
    write(totals, tile.rows, to);
}

}  // namespace

const PanelKernels* matrix_kernels() {
    static constexpr PanelKernels kernels = {kMostRows,  kTileBytes, kBlockBytes, per_channel8,
                                             grouped<8>, grouped<4>, release};
    return &kernels;
}

#else

const PanelKernels* matrix_kernels() { return nullptr; }

#endif

}  // namespace tunan::TUNAN_ISA
