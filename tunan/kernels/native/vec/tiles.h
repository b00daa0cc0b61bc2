// AMX: eight tiles of up to 16 rows of 64 bytes.
#pragma once

#include <cstdint>

#include "float_type.h"

namespace tunan::TUNAN_ISA {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row

// What ldtilecfg reads.
struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Assembly, not the intrinsics: GCC 12's do not say that they read memory, and take no constants of
// templates.
TUNAN_INLINE void configure_tiles(const TileConfig& config) {
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
TUNAN_INLINE void release_tiles() { asm volatile("tilerelease"); }

template <int TILE>
TUNAN_INLINE void clear_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
// Rows are `stride` bytes apart.
template <int TILE>
TUNAN_INLINE void load_tile(const void* data, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(data), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
TUNAN_INLINE void store_tile(void* data, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(data), "r"(stride), "i"(TILE) : "memory");
}
// SUMS [rows][16] int32 += X [rows][64] times Y [16][16][4], of int8 (s) or uint8 (u).
template <int SUMS, int X, int Y>
TUNAN_INLINE void multiply_tiles_su() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(X), "i"(Y));
}
template <int SUMS, int X, int Y>
TUNAN_INLINE void multiply_tiles_ss() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(X), "i"(Y));
}
template <int SUMS, int X, int Y>
TUNAN_INLINE void multiply_tiles_us() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(X), "i"(Y));
}
// SUMS [rows][16] float += X [rows][32] times Y [16][16][2], of bf16; subnormals count as zero.
template <int SUMS, int X, int Y>
TUNAN_INLINE void multiply_tiles_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(X), "i"(Y));
}

}  // namespace tunan::TUNAN_ISA
