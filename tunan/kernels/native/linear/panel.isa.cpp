// Linear layers, one panel of 32 outputs times one tile of rows.
//
// Sums of products are integers and exact, so that nothing depends on the order they are taken in;
// what follows in floating point is the same sequence of operations for every row, however many
// rows are in the tile, and in every instruction set.
#include TUNAN_VEC_HEADER
#include "linear/kernels.h"
#include "linear/results.h"

namespace tunan::TUNAN_ISA {
namespace {

constexpr int kUnit = 4;
constexpr int kVectorBytes = kLanes * kUnit;
constexpr int kStepBytes = kPanel * kUnit;  // weights of one unit of inputs, in all 32 channels
constexpr int kGroupOfSums = 32;
constexpr int kBlockBytes = 512 << 10;
#ifdef TUNAN_HAS_ROW_PAIRS
constexpr int kMatrixRows = 2;
#else
constexpr int kMatrixRows = 16;
#endif
// Far enough for memory, near enough not to be evicted; one row needs none, it does nothing but
// read.
constexpr int kPrefetchBytes = 8192;
constexpr int kPrefetchRows = 5;

template <int ROWS>
TUNAN_INLINE void prefetch(const uint8_t* weights) {
    if constexpr (ROWS < kPrefetchRows) return;
    for (int i = 0; i < kVectorBytes * vectors_at_once(ROWS); i += 64) {
        __builtin_prefetch(weights + kPrefetchBytes + i);
    }
}

template <int ROWS, int VECTORS>
TUNAN_INLINE void clear(Ints (&sums)[ROWS][VECTORS]) {
    TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
        TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) sums[m][v] = zero_ints();
    }
}

template <int ROWS, int VECTORS>
TUNAN_INLINE void step8(Ints (&sums)[ROWS][VECTORS], const uint8_t* weights, const int8_t* x) {
    Weights w[VECTORS];
    TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) {
        w[v] = prepare(load_bytes(weights + v * kVectorBytes));
    }
    TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
        const Bytes four = broadcast_bytes(x + m * kUnit);
        TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) sums[m][v] = dot(sums[m][v], w[v], four);
    }
}

// Sums over `depth` inputs, a multiple of 2 * kUnit.
template <int ROWS, int VECTORS>
TUNAN_INLINE void accumulate8(Ints (&sums)[ROWS][VECTORS], const uint8_t* weights, const int8_t* x,
                              int64_t depth) {
    clear(sums);
    if constexpr (ROWS == 1) {
        // One row has too few sums to hide a dot product's latency: twice as many, added at the
        // end.
        Ints others[ROWS][VECTORS];
        clear(others);
        for (int64_t k = 0; k < depth; k += 2 * kUnit) {
            step8(sums, weights, x);
            step8(others, weights + kStepBytes, x + kUnit);
            weights += 2 * kStepBytes;
            x += 2 * kUnit;
        }
        TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) sums[0][v] = add(sums[0][v], others[0][v]);
    } else {
        _Pragma("GCC unroll 2") for (int64_t k = 0; k < depth; k += kUnit) {
            prefetch<ROWS>(weights);
            step8(sums, weights, x);
            weights += kStepBytes;
            x += ROWS * kUnit;
        }
    }
}

template <int ROWS, int VECTORS>
TUNAN_INLINE void accumulate4(Ints (&sums)[ROWS][VECTORS], const uint8_t* weights, const int8_t* x,
                              int64_t depth) {
    Ints others[ROWS == 1 ? 1 : ROWS][VECTORS];
    clear(sums);
    if constexpr (ROWS == 1) clear(others);
    _Pragma("GCC unroll 4") for (int64_t k = 0; k < depth; k += 2 * kUnit) {
        prefetch<ROWS>(weights);
        Bytes pairs[VECTORS];
        TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) {
            pairs[v] = load_bytes(weights + v * kVectorBytes);
        }
        TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
            const Bytes four = broadcast_bytes(x + m * kUnit);
            TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) {
                sums[m][v] = dot_nibbles(sums[m][v], low_nibbles(pairs[v]), four);
            }
        }
        TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
            const Bytes four = broadcast_bytes(x + (ROWS + m) * kUnit);
            TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) {
                Ints& to = ROWS == 1 ? others[0][v] : sums[m][v];
                to = dot_nibbles(to, high_nibbles(pairs[v]), four);
            }
        }
        weights += kStepBytes;
        x += 2 * ROWS * kUnit;
    }
    if constexpr (ROWS == 1) {
        TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) sums[0][v] = add(sums[0][v], others[0][v]);
    }
}

template <int ROWS>
void per_channel8(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    constexpr int vectors = vectors_at_once(ROWS);
    ResultRows<ROWS> results;
    for (int n = 0; n < kPanel; n += vectors * kLanes) {
        Ints sums[ROWS][vectors];
        accumulate8(sums, panel.data + n * kUnit, tile.values, panel.depth);
        TUNAN_UNROLL for (int v = 0; v < vectors; v++) {
            const int at = n + v * kLanes;
            const Floats scale = load_floats(panel.scales + at),
                         bias = load_floats(panel.bias + at);
            TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
                const Ints exact = subtract(sums[m][v], broadcast(zero_point(8) * tile.sums[m]));
                const Floats scaled = multiply(to_floats(exact), scale);
                store(&results[m][at], multiply_add(scaled, broadcast(tile.scales[m]), bias));
            }
        }
    }
    write(results, ROWS, to);
}

template <int BITS, int ROWS>
void grouped(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    constexpr int vectors = vectors_at_once(ROWS);
    const GroupSizes sizes(panel, BITS);
    ResultRows<ROWS> results;
    for (int n = 0; n < kPanel; n += vectors * kLanes) {
        Floats totals[ROWS][vectors];
        TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
            TUNAN_UNROLL for (int v = 0; v < vectors; v++) totals[m][v] = broadcast(0.0f);
        }
        const uint8_t* scales = panel.data;
        const int8_t* x = tile.values;
        const int32_t* input_sums = tile.sums;
        for (int64_t k = 0; k < panel.depth; k += panel.group) {
            const uint8_t* zeros = scales + sizes.scales;
            const uint8_t* weights = zeros + sizes.zeros + n * kUnit;
            Ints sums[ROWS][vectors];
            if constexpr (BITS == 4) {
                accumulate4(sums, weights, x, panel.group);
            } else {
                accumulate8(sums, weights, x, panel.group);
            }
            TUNAN_UNROLL for (int v = 0; v < vectors; v++) {
                const int at = n + v * kLanes;
                const Floats scale = load_group_scale(panel, scales, at);
                TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
                    const Ints shift =
                        panel.has_zeros ? multiply(widen_u8(zeros + at), broadcast(input_sums[m]))
                                        : broadcast(zero_point(BITS) * input_sums[m]);
                    const Floats exact = to_floats(subtract(sums[m][v], shift));
                    totals[m][v] = multiply_add(exact, scale, totals[m][v]);
                }
            }
            scales += sizes.all;
            x += ROWS * panel.group;
            input_sums += ROWS;
        }
        TUNAN_UNROLL for (int v = 0; v < vectors; v++) {
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

TUNAN_INLINE Floats load_as(FloatType type, const void* x, int64_t at) {
    switch (type) {
        case FloatType::bf16: return load_bf16(static_cast<const uint16_t*>(x) + at);
        case FloatType::f16: return load_f16(static_cast<const uint16_t*>(x) + at);
        default: return load_floats(static_cast<const float*>(x) + at);
    }
}

// Calls use(x, k) for every 32 inputs, x[0 ... 31] being those from k on, zero beyond the last.
template <class Use>
TUNAN_INLINE void each_32(const void* x, FloatType type, int64_t inputs, Use use) {
    const int64_t size = float_bytes(type);
    const int64_t whole = inputs / kGroupOfSums * kGroupOfSums;
    for (int64_t k = 0; k < whole; k += kGroupOfSums) {
        use(static_cast<const char*>(x) + k * size, k);
    }
    if (whole == inputs) return;
    alignas(64) char last[kGroupOfSums * sizeof(float)] = {};
    __builtin_memcpy(last, static_cast<const char*>(x) + whole * size, (inputs - whole) * size);
    use(last, whole);
}

void quantize_row(const void* x, FloatType type, int64_t inputs, int64_t stride, int8_t* values,
                  float* scale, int32_t* sums) {
    // Bits of magnitudes compare as the magnitudes do, and infinity and NaN are above all numbers.
    constexpr int32_t infinity_bits = 0x7f800000, tiny_bits = (127 - 100) << 23;
    Ints most = zero_ints();
    each_32(x, type, inputs, [&](const void* part, int64_t) {
        for (int i = 0; i < kGroupOfSums; i += kLanes) {
            most = larger(most, magnitude_bits(load_as(type, part, i)));
        }
    });
    const int32_t bits = largest(most);
    if (bits >= infinity_bits || bits < tiny_bits) {
        *scale = bits >= infinity_bits ? __builtin_nanf("") : 0.0f;
        __builtin_memset(values, 0, stride);
        __builtin_memset(sums, 0, stride / kGroupOfSums * sizeof *sums);
        return;
    }
    const float peak = float_of_bits(static_cast<uint32_t>(bits));
    *scale = peak / 127.0f;
    const Floats inverse = broadcast(127.0f / peak);
    each_32(x, type, inputs, [&](const void* part, int64_t k) {
        Ints total = zero_ints();
        for (int i = 0; i < kGroupOfSums; i += kLanes) {
            const Ints value = round_to_ints(multiply(load_as(type, part, i), inverse));
            total = add(total, value);
            store_bytes(values + k + i, value);
        }
        sums[k / kGroupOfSums] = sum(total);
    });
    const int64_t done = (inputs + kGroupOfSums - 1) / kGroupOfSums;
    __builtin_memset(values + done * kGroupOfSums, 0, stride - done * kGroupOfSums);
    __builtin_memset(sums + done, 0, (stride / kGroupOfSums - done) * sizeof *sums);
}

}  // namespace

const LinearKernels& linear_kernels() {
    static const LinearKernels kernels = {
        kWeightsAreUnsigned ? WeightLayout::unsigned4 : WeightLayout::signed4,
        {kMaxRows, kUnit, kBlockBytes, for_rows<PerChannel8, kMaxRows>,
         for_rows<Grouped8, kMaxRows>, for_rows<Grouped4, kMaxRows>, nullptr, nullptr},
        kMatrixRows,
        matrix_kernels(),
        quantize_row,
    };
    return kernels;
}

}  // namespace tunan::TUNAN_ISA
