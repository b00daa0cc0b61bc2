// Linear layers with matrix registers: one panel of 32 outputs times up to 32 rows, two tiles of
// 16 each way. The sums are exact, and what follows is what panel.isa.cpp does: the same bits.
#include <type_traits>

#include TUNAN_VEC_HEADER
#include "linear/kernels.h"
#include "linear/results.h"

namespace tunan::TUNAN_ISA {

#ifdef TUNAN_HAS_TILES

namespace {

constexpr int kMostRows = 2 * kTileRows;
constexpr int kStepBytes = kPanel * 4;
constexpr int kMostGroup = 128;
// Groups whose sums are taken before they are added up, so that totals are read and written less.
constexpr int kGroupsAtOnce = 4;
// Packed weights are asked for so far ahead: unpacking gives the CPU's own prefetching no time.
constexpr int kPrefetchBytes = 8192;
// Every CPU with tiles has 2 MiB of second-level cache.
constexpr int kBlockBytes = 1 << 20;

// The tiles: sums are (rows, outputs) low-low, low-high, high-low, high-high.
constexpr int kX = 4, kWeights = 6;

using Sums = int32_t[kMostRows][kPanel];

// Rows and inputs a step that this thread's tiles are configured for; 0: released.
thread_local int configured_rows = 0, configured_step = 0;

void configure(int rows, int step) {
    if (configured_rows == rows && configured_step == step) return;
    const int high_rows = rows > kTileRows ? rows - kTileRows : 0;
    TileConfig config;
    for (int i = 0; i < 2; i++) {
        const auto part = static_cast<uint8_t>(i ? high_rows : rows - high_rows);
        if (part) {
            config.rows[2 * i] = config.rows[2 * i + 1] = config.rows[kX + i] = part;
            config.row_bytes[2 * i] = config.row_bytes[2 * i + 1] = kTileBytes;
            config.row_bytes[kX + i] = static_cast<uint16_t>(step);
        }
        config.rows[kWeights + i] = static_cast<uint8_t>(step / 4);
        config.row_bytes[kWeights + i] = kTileBytes;
    }
    configure_tiles(config);
    configured_rows = rows;
    configured_step = step;
}

// The registers cost every switch between threads, as long as they are in use.
void release() {
    if (!configured_rows) return;
    release_tiles();
    configured_rows = 0;
}

template <bool SIGNED, int SUMS, int X, int WEIGHTS>
TUNAN_INLINE void add_products() {
    if constexpr (SIGNED) {
        multiply_tiles_ss<SUMS, X, WEIGHTS>();
    } else {
        multiply_tiles_su<SUMS, X, WEIGHTS>();
    }
}

// The activations of a block come from the second-level cache, panel after panel.
TUNAN_INLINE void prefetch(const int8_t* x, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(x + i);
}

// Weights are int8 if SIGNED, else uint8; STEP inputs are multiplied at once.
template <bool SIGNED, int STEP, bool BOTH>
TUNAN_INLINE void sum_products(const uint8_t* weights, const int8_t* x, int rows, int64_t depth,
                               Sums& sums) {
    clear_tile<0>();
    clear_tile<1>();
    if constexpr (BOTH) {
        clear_tile<2>();
        clear_tile<3>();
    }
    for (int64_t k = 0; k < depth; k += STEP) {
        load_tile<kX>(x, STEP);
        load_tile<kWeights>(weights, kStepBytes);
        add_products<SIGNED, 0, kX, kWeights>();
        load_tile<kWeights + 1>(weights + kTileBytes, kStepBytes);
        add_products<SIGNED, 1, kX, kWeights + 1>();
        if constexpr (BOTH) {
            load_tile<kX + 1>(x + kTileRows * STEP, STEP);
            add_products<SIGNED, 2, kX + 1, kWeights>();
            add_products<SIGNED, 3, kX + 1, kWeights + 1>();
        }
        prefetch(x + 2 * rows * STEP, rows * STEP);
        weights += kPanel * STEP;
        x += rows * STEP;
    }
    store_tile<0>(&sums[0][0], sizeof sums[0]);
    store_tile<1>(&sums[0][kTileRows], sizeof sums[0]);
    if constexpr (BOTH) {
        store_tile<2>(&sums[kTileRows][0], sizeof sums[0]);
        store_tile<3>(&sums[kTileRows][kTileRows], sizeof sums[0]);
    }
}

template <bool SIGNED, int STEP>
TUNAN_INLINE void all_products(const uint8_t* weights, const int8_t* x, int rows, int64_t depth,
                               Sums& sums) {
    if (rows > kTileRows) {
        sum_products<SIGNED, STEP, true>(weights, x, rows, depth, sums);
    } else {
        sum_products<SIGNED, STEP, false>(weights, x, rows, depth, sums);
    }
}

// One row of a panel's results.
TUNAN_INLINE void write_row(const ResultTile& to, int row, Floats low, Floats high) {
    char* at = static_cast<char*>(to.data) + row * to.stride * float_bytes(to.type);
    if (to.columns == kPanel && to.type == FloatType::bf16) {
        store_bf16(reinterpret_cast<uint16_t*>(at), low, high);
        return;
    }
    alignas(64) char whole[kPanel * sizeof(float)];
    void* target = to.columns == kPanel ? at : whole;
    store_as(to.type, target, 0, low);
    store_as(to.type, target, kLanes, high);
    if (target == whole) __builtin_memcpy(at, whole, to.columns * float_bytes(to.type));
}

void per_channel8(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    alignas(64) Sums sums;
    configure(tile.rows, kTileBytes);
    all_products<false, kTileBytes>(panel.data, tile.values, tile.rows, panel.depth, sums);
    const Floats scale[] = {load_floats(panel.scales), load_floats(panel.scales + kLanes)};
    const Floats bias[] = {load_floats(panel.bias), load_floats(panel.bias + kLanes)};
    for (int m = 0; m < tile.rows; m++) {
        const Ints shift = broadcast(tile.shifts[m]);
        const Floats row_scale = broadcast(tile.scales[m]);
        Floats result[2];
        TUNAN_UNROLL for (int v = 0; v < 2; v++) {
            const Floats exact = to_floats(add(load_ints(&sums[m][v * kLanes]), shift));
            result[v] = multiply_add(multiply(exact, scale[v]), row_scale, bias[v]);
        }
        write_row(to, m, result[0], result[1]);
    }
}

// [G/8][32][4] pairs of 4 bits as [G/4][32][4] int8, their zero points subtracted: uint8 [32], or 8
// where `zeros` is null.
TUNAN_INLINE void unpack(const uint8_t* packed, const uint8_t* zeros, int group, uint8_t* to) {
    TUNAN_UNROLL for (int half = 0; half < 2; half++) {
        const int at = half * kTileBytes;
        const Ints zero = zeros ? multiply(widen_u8(zeros + half * kLanes), broadcast(0x01010101))
                                : broadcast(0x08080808);
        for (int k = 0; k < group; k += 8) {
            const uint8_t* from = packed + k / 8 * kStepBytes + at;
            const Bytes pairs = load_bytes(from);
            __builtin_prefetch(from + kPrefetchBytes);
            uint8_t* step = to + k / 4 * kStepBytes + at;
            store_bytes(step, subtract_bytes(low_nibbles(pairs), zero));
            store_bytes(step + kStepBytes, subtract_bytes(high_nibbles(pairs), zero));
        }
    }
}

// Every group of a panel.
void unpack_panel(const WeightPanel& panel, uint8_t* to) {
    const GroupSizes sizes(panel, 4);
    for (int64_t k = 0; k < panel.depth; k += panel.group) {
        const uint8_t* zeros = panel.data + k / panel.group * sizes.all + sizes.scales;
        unpack(zeros + sizes.zeros, panel.has_zeros ? zeros : nullptr, panel.group,
               to + k * kPanel);
    }
}

// Adds the sums of GROUPS groups to the totals, one after the other; FIRST: the totals are not set.
template <int BITS, int GROUPS, bool FIRST>
TUNAN_INLINE void add_groups(const WeightPanel& panel, const GroupSizes& sizes,
                             const uint8_t* group, const int32_t* shifts, int rows,
                             const Sums* sums, ResultRows<kMostRows>& totals) {
    Floats scale[GROUPS][2];
    TUNAN_UNROLL for (int g = 0; g < GROUPS; g++) {
        TUNAN_UNROLL for (int v = 0; v < 2; v++) {
            scale[g][v] = load_group_scale(panel, group + g * sizes.all, v * kLanes);
        }
    }
    for (int m = 0; m < rows; m++) {
        TUNAN_UNROLL for (int v = 0; v < 2; v++) {
            float* at = &totals[m][v * kLanes];
            Floats total = FIRST ? broadcast(0.0f) : load_floats(at);
            TUNAN_UNROLL for (int g = 0; g < GROUPS; g++) {
                Ints exact = load_ints(&sums[g][m][v * kLanes]);
                if constexpr (BITS == 8) {  // those of 4 bits have theirs subtracted
                    exact = add(exact, broadcast(shifts[g * rows + m]));
                }
                total = multiply_add(to_floats(exact), scale[g][v], total);
            }
            store(at, total);
        }
    }
}

template <int BITS, int STEP>
void grouped_in_steps(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    const GroupSizes sizes(panel, BITS);
    alignas(64) Sums sums[kGroupsAtOnce];
    alignas(64) uint8_t unpacked[kPanel * kMostGroup];
    alignas(64) ResultRows<kMostRows> totals;
    configure(tile.rows, STEP);
    const auto take_sums = [&](int64_t g, Sums& to) {
        const uint8_t* zeros = panel.data + g * sizes.all + sizes.scales;
        const uint8_t* weights = zeros + sizes.zeros;
        if constexpr (BITS == 4) {
            if (panel.unpacked) {
                weights = panel.unpacked + g * panel.group * kPanel;
            } else {
                unpack(weights, panel.has_zeros ? zeros : nullptr, panel.group, unpacked);
                weights = unpacked;
            }
        }
        all_products<BITS == 4, STEP>(weights, tile.values + g * panel.group * tile.rows, tile.rows,
                                      panel.group, to);
    };
    const auto add = [&](auto count, auto first, int64_t g) {
        for (int i = 0; i < count(); i++) take_sums(g + i, sums[i]);
        add_groups<BITS, count(), first()>(panel, sizes, panel.data + g * sizes.all,
                                           tile.shifts + g * tile.rows, tile.rows, sums, totals);
    };
    constexpr std::integral_constant<int, kGroupsAtOnce> many;
    constexpr std::integral_constant<int, 1> one;
    const int64_t groups = panel.depth / panel.group;
    int64_t g = groups < kGroupsAtOnce ? 1 : kGroupsAtOnce;
    if (g == 1) {
        add(one, std::true_type(), 0);
    } else {
        add(many, std::true_type(), 0);
    }
    for (; g + kGroupsAtOnce <= groups; g += kGroupsAtOnce) add(many, std::false_type(), g);
    for (; g < groups; g++) add(one, std::false_type(), g);
    const Floats bias[] = {load_floats(panel.bias), load_floats(panel.bias + kLanes)};
    for (int m = 0; m < tile.rows; m++) {
        const Floats scale = broadcast(tile.scales[m]);
        write_row(to, m, multiply_add(load_floats(&totals[m][0]), scale, bias[0]),
                  multiply_add(load_floats(&totals[m][kLanes]), scale, bias[1]));
    }
}

template <int BITS>
void grouped(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    if (panel.group < kTileBytes) {
        grouped_in_steps<BITS, kTileBytes / 2>(panel, tile, to);
    } else {
        grouped_in_steps<BITS, kTileBytes>(panel, tile, to);
    }
}

}  // namespace

const PanelKernels* matrix_kernels() {
    static constexpr PanelKernels kernels = {kMostRows,  kTileBytes, kBlockBytes,  per_channel8,
                                             grouped<8>, grouped<4>, unpack_panel, release};
    return &kernels;
}

#elif !defined(TUNAN_HAS_ROW_PAIRS)  // those have pairs.isa.cpp

const PanelKernels* matrix_kernels() { return nullptr; }

#endif

}  // namespace tunan::TUNAN_ISA
