// The softmax of one row of a tile. Included by one translation unit per instruction set, after
// that set's fma().
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention/kernels.h"
#include "attention/vectors.h"
#include "norm/exponential.h"

namespace tunan {
namespace {

// exp_negative() of every lane.
inline FloatVector exp_lanes(FloatVector x) {
    const FloatVector least = broadcast(-87.f), magic = broadcast(12582912.f);
    const FloatVector t = larger(x, least) * broadcast(1.44269504f);
    const FloatVector n = (t + magic) - magic;  // rounds to an integer
    const FloatVector f = t - n;
    FloatVector p = fma(broadcast(1.535336188e-4f), f, broadcast(1.339887440e-3f));
    p = fma(p, f, broadcast(9.618437357e-3f));
    p = fma(p, f, broadcast(5.550332471e-2f));
    p = fma(p, f, broadcast(2.402264791e-1f));
    p = fma(p, f, broadcast(6.931472028e-1f));
    p = fma(p, f, broadcast(1.f));
    const FloatVector power = reinterpret_cast<FloatVector>((to_ints(n) + 127) << 23);
    const FloatVector result = x < least ? FloatVector{} : p * power;
    return x == x ? result : x;
}

// cap * tanh(s / cap)
inline float soften(float s, float cap) {
    const float x = s / cap;
    const float e = exp_negative(-2.f * (x < 0 ? -x : x));
    const float t = (1.f - e) / (1.f + e);
    return x < 0 ? -cap * t : cap * t;
}

// Folds 16 lanes, always in the same order.
template <class Fold>
inline float fold(float* lanes, Fold both) {
    for (int i = 0; i < 8; ++i) lanes[i] = both(lanes[i], lanes[i + 8]);
    for (int i = 0; i < 4; ++i) lanes[i] = both(lanes[i], lanes[i + 4]);
    return both(both(lanes[0], lanes[2]), both(lanes[1], lanes[3]));
}

inline float largest(const float* row, float least) {
    alignas(64) float lanes[kGroup];
    for (int i = 0; i < kGroup; i += kLanes) {
        FloatVector best = broadcast(least);
        for (int g = i; g < kTile; g += kGroup) best = larger(load(row + g), best);
        store(lanes + i, best);
    }
    return fold(lanes, [](float a, float b) { return a > b ? a : b; });
}

// Turns the scores at [low, high) of a row into weights exp(score - max), all others into 0, and
// brings the row's running maximum and sum up to date. Returns what earlier sums are scaled by.
inline float softmax_row(float* row, int low, int high, float& max, float& sum) {
    if (low < 0) low = 0;
    if (low >= high) {
        std::memset(row, 0, sizeof(float) * kTile);
        return 1.f;
    }
    for (int t = 0; t < low; ++t) row[t] = -INFINITY;
    for (int t = high; t < kTile; ++t) row[t] = -INFINITY;
    float top = largest(row, max);
    if (top == -INFINITY) top = 0.f;  // every score is -inf
    alignas(64) float lanes[kGroup];
    for (int i = 0; i < kGroup; i += kLanes) {
        FloatVector total = {};
        for (int g = i; g < kTile; g += kGroup) {
            const FloatVector weight = exp_lanes(load(row + g) - broadcast(top));
            store(row + g, weight);
            total += weight;
        }
        store(lanes + i, total);
    }
    const float alpha = exp_negative(max - top);
    max = top;
    sum = sum * alpha + fold(lanes, [](float a, float b) { return a + b; });
    return alpha;
}

// Weights times their values' scales, in 255 steps of the largest; returns the step. The scales of
// tokens that do not exist are 0.
inline float quantize_weights(const float* row, const float* scales, uint8_t* steps) {
    alignas(64) float scaled[kTile];
    for (int t = 0; t < kTile; t += kLanes) store(scaled + t, load(row + t) * load(scales + t));
    const float top = largest(scaled, 0.f);
    if (!(top > 1e-30f)) {
        std::memset(steps, 0, kTile);
        return 0.f;
    }
    const FloatVector inverse = broadcast(255.f / top), half = broadcast(0.5f);
    for (int t = 0; t < kTile; t += kLanes) {
        const IntVector step = to_ints(load(scaled + t) * inverse + half);
        *reinterpret_cast<ByteVector*>(steps + t) = __builtin_convertvector(step, ByteVector);
    }
    return top / 255.f;
}

}  // namespace
}  // namespace tunan
