// Sixteen lanes of sums in the compiler's own vectors. A product of two bf16 is exact in float32,
// and every sum is taken in one order, so every instruction set has the same bits.
#include <cstring>

#include "dense/kernels.h"
#include "elements.h"

#if defined(__AVX512F__)
#define TUNAN_DENSE_BYTES 64
#elif defined(__AVX2__)
#define TUNAN_DENSE_BYTES 32
#else
#define TUNAN_DENSE_BYTES 16
#endif

namespace tunan::TUNAN_ISA {
namespace {

typedef float Floats __attribute__((vector_size(TUNAN_DENSE_BYTES), may_alias, aligned(4)));
// A row of bf16 may begin at any of them.
typedef int32_t Ints __attribute__((vector_size(TUNAN_DENSE_BYTES), may_alias, aligned(2)));

constexpr int kSums = 16;
constexpr int kLanes = TUNAN_DENSE_BYTES / 4;
constexpr int kVectors = kSums / kLanes;  // that hold the sixteen sums
constexpr int kStep = static_cast<int>(kDenseStep);

TUNAN_INLINE Floats load(const float* p) { return *reinterpret_cast<const Floats*>(p); }
TUNAN_INLINE void store(float* p, Floats v) { *reinterpret_cast<Floats*>(p) = v; }

template <FloatType kType>
constexpr int64_t kBytes = kType == FloatType::f32 ? 4 : 2;

// Of 32 elements, those at even places and those at odd ones (bf16, whose pairs share a lane), or
// the first 16 and the others (f32).
template <FloatType kType>
struct Pair {
    Floats first[kVectors], second[kVectors];

    TUNAN_INLINE explicit Pair(const char* p) {
        for (int v = 0; v < kVectors; v++) {
            if constexpr (kType == FloatType::f32) {
                const float* floats = reinterpret_cast<const float*>(p);
                first[v] = load(floats + v * kLanes);
                second[v] = load(floats + kSums + v * kLanes);
            } else {
                const Ints both = *reinterpret_cast<const Ints*>(p + v * TUNAN_DENSE_BYTES);
                first[v] = reinterpret_cast<Floats>(both << 16);
                second[v] = reinterpret_cast<Floats>(both & static_cast<int32_t>(0xffff0000));
            }
        }
    }
};

// Where element i of 32 lies once they are parted as in Pair.
template <FloatType kType>
TUNAN_INLINE int place(int i) {
    return kType == FloatType::f32 ? i : i / 2 + (i % 2) * kSums;
}

template <FloatType kType>
void widen(const DenseCall& call, int64_t batch, int64_t row, float* to) {
    const char* x = static_cast<const char*>(call.x) +
                    (batch * call.x_batch_stride + row * call.x_stride) * kBytes<kType>;
    const int64_t padded = dense_padded(call.inputs);
    if (call.transposed) {
        for (int64_t k = 0; k < call.inputs; k++) to[k] = load_one(x, kType, k);
        return;
    }
    for (int64_t k = 0; k < padded; k += kStep)
        for (int i = 0; i < kStep; i++)
            to[k + place<kType>(i)] = k + i < call.inputs ? load_one(x, kType, k + i) : 0.f;
}

TUNAN_INLINE float folded(const Floats (&sums)[kVectors]) {
    float lanes[kSums];
    for (int v = 0; v < kVectors; v++) store(lanes + v * kLanes, sums[v]);
    for (int half = kSums / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

template <FloatType kType>
TUNAN_INLINE void put(const DenseCall& call, int64_t batch, int64_t row, int64_t output,
                      float value) {
    store_one(call.out, kType, batch * call.out_batch_stride + row * call.out_stride + output,
              value);
}

template <FloatType kType>
TUNAN_INLINE const char* weights_at(const DenseCall& call, int64_t batch, int64_t row,
                                    int64_t column) {
    return static_cast<const char*>(call.weight) +
           (batch * call.weight_batch_stride + row * call.weight_stride + column) * kBytes<kType>;
}

// R rows times N rows of weights.
template <FloatType kType, int R, int N>
TUNAN_INLINE void dots(const DenseCall& call, int64_t batch, const float* x, int64_t m, int64_t n) {
    Floats sums[R][N][kVectors] = {};
    const int64_t padded = dense_padded(call.inputs), whole = call.inputs / kStep * kStep;
    const auto step = [&](int64_t k, int j, const char* weights) {
        const Pair<kType> w(weights);
        for (int r = 0; r < R; r++) {
            const float* row = x + (m + r) * padded + k;
            for (int v = 0; v < kVectors; v++) {
                sums[r][j][v] += w.first[v] * load(row + v * kLanes);
                sums[r][j][v] += w.second[v] * load(row + kSums + v * kLanes);
            }
        }
    };
    for (int64_t k = 0; k < whole; k += kStep)
        for (int j = 0; j < N; j++) step(k, j, weights_at<kType>(call, batch, n + j, k));
    if (whole < padded) {
        for (int j = 0; j < N; j++) {
            alignas(4) char rest[kStep * kBytes<kType>] = {};
            std::memcpy(rest, weights_at<kType>(call, batch, n + j, whole),
                        (call.inputs - whole) * kBytes<kType>);
            step(whole, j, rest);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) put<kType>(call, batch, m + r, n + j, folded(sums[r][j]));
}

template <FloatType kType, int R, int N>
TUNAN_INLINE void dots_of_rows(const DenseCall& call, int64_t batch, const float* x, int64_t m,
                               int64_t first, int64_t last) {
    int64_t n = first;
    for (; n + N <= last; n += N) dots<kType, R, N>(call, batch, x, m, n);
    for (; n < last; n++) dots<kType, R, 1>(call, batch, x, m, n);
}

// R rows times 32 columns of the weights, one after the other down the columns.
template <FloatType kType, int R>
TUNAN_INLINE void columns(const DenseCall& call, int64_t batch, const float* x, int64_t m,
                          int64_t n) {
    Floats first[R][kVectors] = {}, second[R][kVectors] = {};
    const int64_t padded = dense_padded(call.inputs);
    for (int64_t k = 0; k < call.inputs; k++) {
        const Pair<kType> w(weights_at<kType>(call, batch, k, n));
        for (int r = 0; r < R; r++) {
            const float factor = x[(m + r) * padded + k];
            for (int v = 0; v < kVectors; v++) {
                first[r][v] += w.first[v] * factor;
                second[r][v] += w.second[v] * factor;
            }
        }
    }
    for (int r = 0; r < R; r++) {
        float sums[kStep];
        for (int v = 0; v < kVectors; v++) {
            store(sums + v * kLanes, first[r][v]);
            store(sums + kSums + v * kLanes, second[r][v]);
        }
        for (int i = 0; i < kStep; i++)
            put<kType>(call, batch, m + r, n + i, sums[place<kType>(i)]);
    }
}

// The same of one column, for those that are left over.
template <FloatType kType>
TUNAN_INLINE void column(const DenseCall& call, int64_t batch, const float* x, int64_t m,
                         int64_t n) {
    float sum = 0.f;
    for (int64_t k = 0; k < call.inputs; k++)
        sum += load_one(weights_at<kType>(call, batch, k, n), kType, 0) *
               x[m * dense_padded(call.inputs) + k];
    put<kType>(call, batch, m, n, sum);
}

template <FloatType kType, int R>
TUNAN_INLINE void columns_of_rows(const DenseCall& call, int64_t batch, const float* x, int64_t m,
                                  int64_t first, int64_t last) {
    int64_t n = first;
    for (; n + kStep <= last; n += kStep) columns<kType, R>(call, batch, x, m, n);
    for (; n < last; n++)
        for (int r = 0; r < R; r++) column<kType>(call, batch, x, m + r, n);
}

template <FloatType kType>
void run(const DenseCall& call, int64_t batch, const float* x, int64_t first, int64_t last) {
    int64_t m = 0;
    if (call.transposed) {
        for (; m + 4 <= call.rows; m += 4)
            columns_of_rows<kType, 4>(call, batch, x, m, first, last);
        for (; m < call.rows; m++) columns_of_rows<kType, 1>(call, batch, x, m, first, last);
        return;
    }
    for (; m + 4 <= call.rows; m += 4) dots_of_rows<kType, 4, 2>(call, batch, x, m, first, last);
    for (; m < call.rows; m++) dots_of_rows<kType, 1, 4>(call, batch, x, m, first, last);
}

void widen_any(const DenseCall& call, int64_t batch, int64_t row, float* to) {
    if (call.type == FloatType::f32) return widen<FloatType::f32>(call, batch, row, to);
    return widen<FloatType::bf16>(call, batch, row, to);
}

void run_any(const DenseCall& call, int64_t batch, const float* x, int64_t first, int64_t last) {
    if (call.type == FloatType::f32) return run<FloatType::f32>(call, batch, x, first, last);
    return run<FloatType::bf16>(call, batch, x, first, last);
}

}  // namespace

const DenseKernels& dense_kernels() {
    static constexpr DenseKernels kernels = {widen_any, run_any};
    return kernels;
}

}  // namespace tunan::TUNAN_ISA
