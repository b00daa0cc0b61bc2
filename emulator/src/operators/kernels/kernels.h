// What the hand-written kernels share.
#pragma once
#include <ATen/ATen.h>

#include "call.h"

#define TUNAN_JOIN_(a, b) a##b
#define TUNAN_JOIN(a, b) TUNAN_JOIN_(a, b)
// KERNEL("name", kernel) or KERNEL("name", kernel, check) at namespace level.
#define KERNEL(...) [[maybe_unused]] static const bool TUNAN_JOIN(defined_, __COUNTER__) = tunan::define(__VA_ARGS__)

namespace tunan {

// Applies a rotary embedding: mode 0 rotates halves, 1 rotates neighbours. Computed in float32.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t mode);

// x / sqrt(mean(x^2) + epsilon) over the trailing dimensions that gamma has: (normalised * gamma, rstd).
std::pair<at::Tensor, at::Tensor> normalise(const at::Tensor& x, const at::Tensor& gamma, double epsilon);

// One sequence: query [S, N, D], key [L, Nk, D], value [L, Nk, Dv] -> [S, N, Dv] in float32; `mask` is
// boolean, [S, L], true where a query must not look; lse, when wanted, gets [S, N, 1].
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double scale,
                  const at::Tensor& mask, at::Tensor* lse);

// The mask of the last S queries of a sequence of L: right-aligned causal.
at::Tensor causal_mask(int64_t queries, int64_t length);

// The first `length` rows of a sequence out of a paged cache [blocks, block size, ...].
at::Tensor gather_pages(const at::Tensor& cache, const at::Tensor& blocks, int64_t length);

// int8 matrices -> their product, exact, as float64.
at::Tensor integer_product(const at::Tensor& one, const at::Tensor& two);

// A scale in whichever form the caller has it -> float32.
at::Tensor scale_of(const at::Tensor& scale);

// Each row by its own largest value: (int8, float32 scale a row).
std::pair<at::Tensor, at::Tensor> quantise_rows(const at::Tensor& x);

}  // namespace tunan
