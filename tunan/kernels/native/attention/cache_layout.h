// How one (block, head) region of the paged cache is laid out inside.
//
// Tokens come in groups of 16, which is one 512-bit vector of 32-bit lanes: a group of keys holds,
// for every unit of U head dimensions, the 16 tokens' units side by side, so that a dot product
// instruction (U elements a lane) scores 16 tokens at once; a group of values holds, for every U
// tokens, all dimensions with the U tokens' elements side by side, so that the same instruction
// adds U weighted tokens. U is 4 bytes over the element size: 1 (f32), 2 (bf16), 4 (int8).
//
//   keys    [block/16][head_size/U][16][U]      int8 keys are stored as value + 128 (u8)
//   values  [block/U][head_size][U]             int8 values are stored as they are (s8)
//   int8 only: key scales [block] f32, value scales [block] f32
//
// A block is a multiple of 16 tokens, so every region of an aligned cache is 64-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tunan {

// The numbers are part of the C ABI.
enum class DType : int { f32 = 0, bf16 = 1, int8 = 2 };

constexpr int kGroup = 16;

constexpr int element_bytes(DType type) {
    return type == DType::f32 ? 4 : type == DType::bf16 ? 2 : 1;
}

// Elements that share one 32-bit lane.
constexpr int unit(DType type) { return 4 / element_bytes(type); }

struct CacheLayout {
    DType type;
    int head_size;
    int block_size;

    size_t key_bytes() const {
        return static_cast<size_t>(block_size) * head_size * element_bytes(type);
    }
    size_t group_bytes() const {
        return static_cast<size_t>(kGroup) * head_size * element_bytes(type);
    }
    size_t values() const { return key_bytes(); }
    size_t key_scales() const { return 2 * key_bytes(); }
    size_t value_scales() const { return key_scales() + sizeof(float) * block_size; }
    size_t region_bytes() const {
        return 2 * key_bytes() + (type == DType::int8 ? 2 * sizeof(float) * block_size : 0);
    }
    // Element index, inside the keys, of dimension `d` of the token at `offset` in its block.
    size_t key_index(int offset, int d) const {
        const int u = unit(type);
        return static_cast<size_t>(offset / kGroup) * kGroup * head_size +
               static_cast<size_t>(d / u) * kGroup * u + (offset % kGroup) * u + d % u;
    }
    size_t value_index(int offset, int d) const {
        const int u = unit(type);
        return static_cast<size_t>(offset / u) * head_size * u + static_cast<size_t>(d) * u +
               offset % u;
    }
};

}  // namespace tunan
