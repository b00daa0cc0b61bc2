// AVX-512 as in avx512_vnni.h, and AMX: eight tiles of up to 16 rows of 64 bytes.
#pragma once

#include "vec/avx512_vnni.h"

#define TUNAN_HAS_TILES

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
// SUMS [rows][16] int32 += X [rows][64] int8 times WEIGHTS [16][16][4] uint8.
template <int SUMS, int X, int WEIGHTS>
TUNAN_INLINE void multiply_tiles() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(X), "i"(WEIGHTS));
}

TUNAN_INLINE void store_bytes(uint8_t* p, Bytes bytes) { _mm512_storeu_si512(p, bytes); }

}  // namespace tunan::TUNAN_ISA
