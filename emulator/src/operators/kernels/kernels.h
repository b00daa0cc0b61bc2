// What the hand-written kernels share.
#pragma once
#include <ATen/ATen.h>

#include "call.h"

#define TUNAN_JOIN_(a, b) a##b
#define TUNAN_JOIN(a, b) TUNAN_JOIN_(a, b)
// KERNEL("name", kernel) or KERNEL("name", kernel, check) at namespace level.
#define KERNEL(...)                                                        \
    [[maybe_unused]] static const bool TUNAN_JOIN(defined_, __COUNTER__) = \
        tunan::define(__VA_ARGS__)

namespace tunan {

// Applies a rotary embedding: mode 0 rotates halves, 1 rotates neighbours. Computed in float32.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t mode);

// x / sqrt(mean(x^2) + epsilon) over the trailing dimensions that
// gamma has: (normalised * gamma, rstd).
std::pair<at::Tensor, at::Tensor> normalise(const at::Tensor& x, const at::Tensor& gamma,
                                            double epsilon);

// One sequence: query [S, N, D], key [L, Nk, D], value [L, Nk, Dv] -> [S, N, Dv] in float32; `mask`
// is boolean, [S, L], true where a query must not look; lse, when wanted, gets [S, N, 1].
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  double scale, const at::Tensor& mask, at::Tensor* lse);

// The mask of the last S queries of a sequence of L: right-aligned causal.
at::Tensor causal_mask(int64_t queries, int64_t length, at::Device device = at::kCPU);

// The first `length` rows of a sequence out of a paged cache [blocks, block size, ...].
at::Tensor gather_pages(const at::Tensor& cache, const at::Tensor& blocks, int64_t length);

// Stores rows [T, D] at slots of a cache [..., D], or of one in the matrix unit's layout, whose
// block is [D/n, block, n] with n columns in 32 bytes.
void store_rows(const at::Tensor& cache, const at::Tensor& rows, const at::Tensor& slots);
void store_rows_in_fractals(const at::Tensor& cache, int64_t block, const at::Tensor& rows,
                            const at::Tensor& slots);

// int8 matrices -> their product, exact, as float64.
at::Tensor integer_product(const at::Tensor& one, const at::Tensor& two);

// A scale in whichever form the caller has it -> float32.
at::Tensor scale_of(const at::Tensor& scale);

// The offset that such a 64-bit scale carries beside it: nine bits, signed.
at::Tensor offset_of(const at::Tensor& scale);

// Eight four-bit numbers out of each 32-bit one, along `dim`; and the reverse along the last one.
at::Tensor unpack_nibbles(const at::Tensor& packed, int64_t dim);
at::Tensor pack_nibbles(const at::Tensor& values);

// A weight [K, N] of eight bits, or of four packed along either dimension, as (weight + offset) *
// scale in float32; scale and offset have a value a column, or with a group size
// a row a group of K.
at::Tensor real_weight(const at::Tensor& weight, int64_t depth, const at::Tensor& scale,
                       const at::Tensor& offset, int64_t group_size);

// Rounds and stores as 8-bit numbers, or as 4-bit ones packed in 32
// bits, as the result's type says.
void write_rounded(const Call& call, const char* name, const at::Tensor& values);

// Each row by its own largest value: (int8, float32 scale a row).
std::pair<at::Tensor, at::Tensor> quantise_rows(const at::Tensor& x);

}  // namespace tunan
