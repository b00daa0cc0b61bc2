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
// Where matrix registers take over: two rows fill those of row pairs; tiles are worth their loading
// where the vectors need a second tile of rows.
#ifdef TUNAN_HAS_ROW_PAIRS
constexpr int kMatrixRows = 2;
#else
constexpr int kMatrixRows = kMaxRows + 1;
#endif
// Dot products in flight that hide the latency of one.
constexpr int kEnoughSums = 8;
// Far enough for memory, near enough not to be evicted; into the second-level cache, whose misses
// the CPU can have more of on their way than of the first. A row of 8 bits needs none: it does
// nothing but read.
constexpr int kPrefetchBytes = 8192;
constexpr int kSecondLevel = 2;

template <int ROWS>
TUNAN_INLINE void prefetch(const uint8_t* weights) {
    for (int i = 0; i < kVectorBytes * vectors_at_once(ROWS); i += 64) {
        __builtin_prefetch(weights + kPrefetchBytes + i, 0, kSecondLevel);
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

// Adds products over `depth` inputs, a multiple of 2 * kUnit, to the sums.
template <int ROWS, int VECTORS>
TUNAN_INLINE void accumulate8(Ints (&sums)[ROWS][VECTORS], const uint8_t* weights, const int8_t* x,
                              int64_t depth) {
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

// Adds products over `depth` inputs, a multiple of kGroupOfSums, to the sums.
template <int ROWS, int VECTORS>
TUNAN_INLINE void accumulate4(Ints (&sums)[ROWS][VECTORS], const uint8_t* weights, const int8_t* x,
                              int64_t depth) {
    // Few sums do not hide a dot product's latency: twice as many, added at the end.
    constexpr bool split = ROWS == 1 || ROWS * VECTORS < kEnoughSums;
    Ints others[ROWS][VECTORS];
    if constexpr (split) clear(others);
    auto& high_sums = *(split ? &others : &sums);
    for (int64_t k = 0; k < depth; k += kGroupOfSums) {
        TUNAN_UNROLL for (int i = 0; i < kGroupOfSums; i += 2 * kUnit) {
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
                    high_sums[m][v] = dot_nibbles(high_sums[m][v], high_nibbles(pairs[v]), four);
                }
            }
            weights += kStepBytes;
            x += 2 * ROWS * kUnit;
        }
    }
    if constexpr (split) {
        TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
            TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) {
                sums[m][v] = add(sums[m][v], others[m][v]);
            }
        }
    }
}

// What sums of products begin with, since weights are stored plus a zero point: RowTile's shifts,
// times the zero points where weights have their own.
template <int ROWS, int VECTORS>
TUNAN_INLINE void begin_sums(Ints (&sums)[ROWS][VECTORS], const int32_t* shifts,
                             const uint8_t* zeros) {
    TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
        TUNAN_UNROLL for (int v = 0; v < VECTORS; v++) {
            sums[m][v] = broadcast(shifts[m]);
            if (zeros) sums[m][v] = multiply(sums[m][v], widen_u8(zeros + v * kLanes));
        }
    }
}

template <int ROWS>
void per_channel8(const WeightPanel& panel, const RowTile& tile, const ResultTile& to) {
    constexpr int vectors = vectors_at_once(ROWS);
    ResultRows<ROWS> results;
    for (int n = 0; n < kPanel; n += vectors * kLanes) {
        Ints sums[ROWS][vectors];
        begin_sums(sums, tile.shifts, nullptr);
        accumulate8(sums, panel.data + n * kUnit, tile.values, panel.depth);
        TUNAN_UNROLL for (int v = 0; v < vectors; v++) {
            const int at = n + v * kLanes;
            const Floats scale = load_floats(panel.scales + at),
                         bias = load_floats(panel.bias + at);
            TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
                const Floats scaled = multiply(to_floats(sums[m][v]), scale);
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
        const int32_t* shifts = tile.shifts;
        for (int64_t k = 0; k < panel.depth; k += panel.group) {
            const uint8_t* zeros = scales + sizes.scales;
            const uint8_t* weights = zeros + sizes.zeros + n * kUnit;
            Ints sums[ROWS][vectors];
            begin_sums(sums, shifts, panel.has_zeros ? zeros + n : nullptr);
            if constexpr (BITS == 4) {
                accumulate4(sums, weights, x, panel.group);
            } else {
                accumulate8(sums, weights, x, panel.group);
            }
            TUNAN_UNROLL for (int v = 0; v < vectors; v++) {
                const Floats scale = load_group_scale(panel, scales, n + v * kLanes);
                TUNAN_UNROLL for (int m = 0; m < ROWS; m++) {
                    totals[m][v] = multiply_add(to_floats(sums[m][v]), scale, totals[m][v]);
                }
            }
            scales += sizes.all;
            x += ROWS * panel.group;
            shifts += ROWS;
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
