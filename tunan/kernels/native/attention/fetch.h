// Where a tile's keys and values come from: in place from the paged cache, or, for MLA, packed
// from the rows of the latent cache. Included by one translation unit per instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attention/cache_layout.h"
#include "attention/kernels.h"

namespace tunan {
namespace {

// At most kTileGroups groups of 16 tokens; pointers beyond the tile's count are not set.
struct Tile {
    const char* keys[kTileGroups];
    const char* values[kTileGroups];
    const float* key_scales[kTileGroups];
    const float* rope_scales[kTileGroups];
    alignas(64) float value_scales[kTile];  // 0 for tokens that do not exist
    bool defined;                           // no value scale is a NaN
};

// An item's working memory, carved from one piece.
struct ItemMemory {
    ItemMemory() = default;
    ItemMemory(const AttentionShape& shape, int rows, char* memory) {
        const size_t state_bytes = sizeof(float) * partial_floats(rows, shape.value_size);
        state = take<float>(memory, state_bytes);
        total = take<float>(memory, state_bytes);
        queries = take<char>(memory, sizeof(float) * rows * shape.layout.head_size);
        query_scale = take<float>(memory, sizeof(float) * rows);
        rope_scale = take<float>(memory, sizeof(float) * rows);
        query_sum = take<int32_t>(memory, sizeof(int32_t) * rows);
        rope_sum = take<int32_t>(memory, sizeof(int32_t) * rows);
        tile = take<char>(memory, tile_bytes(shape));
        joined = take<char>(memory, joined_bytes(shape));
    }

    static size_t bytes(const AttentionShape& shape, int rows) {
        return 2 * rounded(sizeof(float) * partial_floats(rows, shape.value_size)) +
               rounded(sizeof(float) * rows * shape.layout.head_size) +
               4 * rounded(sizeof(float) * rows) + tile_bytes(shape) + joined_bytes(shape);
    }

    template <class T>
    T* query() const {
        return reinterpret_cast<T*>(queries);
    }

    float* state;   // of the current part
    float* total;   // of all parts so far
    char* queries;  // rows of the type that the products take
    float *query_scale, *rope_scale;
    int32_t *query_sum, *rope_sum;
    char* tile;
    char* joined;  // values of a tile in one piece

  private:
    static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }
    static size_t tile_bytes(const AttentionShape& shape) {
        return shape.rope_size ? 2 * kTileGroups * shape.layout.group_bytes()
                               : shape.layout.group_bytes();
    }
    static size_t joined_bytes(const AttentionShape& shape) {
        return kTileGroups * shape.layout.group_bytes();
    }
    template <class T>
    static T* take(char*& memory, size_t bytes) {
        T* taken = reinterpret_cast<T*>(memory);
        memory += rounded(bytes);
        return taken;
    }
};

template <DType kType>
class TileSource {
  public:
    TileSource() = default;
    TileSource(const AttentionShape& shape, const AttentionItem& item, char* scratch)
        : shape_(&shape), item_(&item), scratch_(scratch) {}

    // The tile of `count` tokens from token `start` of the sequence, a multiple of kTile.
    Tile fetch(int start, int count) const {
        return shape_->rope_size ? fetch_latent(start, count) : fetch_paged(start, count);
    }

  private:
    Tile fetch_paged(int start, int count) const {
        const CacheLayout& layout = shape_->layout;
        Tile tile = empty_tile();
        for (int g = 0; g * kGroup < count; ++g) {
            const int token = start + g * kGroup;
            const int offset = token % layout.block_size;
            const char* region = region_of(token);
            const size_t group = offset / kGroup * layout.group_bytes();
            tile.keys[g] = region + group;
            tile.values[g] = region + layout.values() + group;
            if (kType == DType::int8) {
                tile.key_scales[g] = scales(region + layout.key_scales(), offset);
                take_scales(tile, g, scales(region + layout.value_scales(), offset), count);
            } else if (count - g * kGroup < kGroup) {
                tile.values[g] = without_the_unwritten(tile.values[g], count - g * kGroup);
            }
        }
        return tile;
    }

    static Tile empty_tile() {
        Tile tile;
        if (kType == DType::int8) {
            std::memset(tile.value_scales, 0, sizeof tile.value_scales);
            tile.defined = true;
        }
        return tile;
    }

    static void take_scales(Tile& tile, int g, const float* from, int count) {
        const int present = count - g * kGroup < kGroup ? count - g * kGroup : kGroup;
        float* to = tile.value_scales + g * kGroup;
        if (present == kGroup)
            std::memcpy(to, from, sizeof(float) * kGroup);
        else
            for (int t = 0; t < present; ++t) to[t] = from[t];
        int undefined = 0;
        for (int t = 0; t < kGroup; ++t) undefined |= to[t] != to[t];
        tile.defined &= !undefined;
    }

    const char* region_of(int token) const {
        return item_->region +
               item_->blocks[token / shape_->layout.block_size] * item_->block_stride;
    }

    static const float* scales(const char* p, int offset) {
        return reinterpret_cast<const float*>(p) + offset;
    }

    // A group of values of which only `count` tokens exist. What lies behind them may be no number
    // at all, and 0 times that would be none either.
    const char* without_the_unwritten(const char* values, int count) const {
        constexpr int u = unit(kType);
        using Element = std::conditional_t<kType == DType::f32, float, uint16_t>;
        Element* copy = reinterpret_cast<Element*>(scratch_);
        std::memcpy(copy, values, shape_->layout.group_bytes());
        for (int t = count; t < kGroup; ++t)
            for (int d = 0; d < shape_->value_size; ++d)
                copy[(t / u * shape_->value_size + d) * u + t % u] = 0;
        return scratch_;
    }

    // Latent rows: [block][head_size], int8 rows followed by the block's latent scales and rope
    // scales. Rows of tokens that do not exist are packed as zeros.
    Tile fetch_latent(int start, int count) const {
        const CacheLayout& layout = shape_->layout;
        const int group_bytes = static_cast<int>(layout.group_bytes());
        Tile tile = empty_tile();
        for (int g = 0; g * kGroup < count; ++g) {
            const int token = start + g * kGroup;
            const int offset = token % layout.block_size;
            const char* region = region_of(token);
            const int tokens = count - g * kGroup < kGroup ? count - g * kGroup : kGroup;
            char* keys = scratch_ + g * group_bytes;
            char* values = scratch_ + (kTileGroups + g) * group_bytes;
            const size_t row_bytes = layout.group_bytes() / kGroup;
            pack_keys(region + offset * row_bytes, tokens, keys);
            pack_values(region + offset * row_bytes, tokens, values);
            tile.keys[g] = keys;
            tile.values[g] = values;
            if (kType == DType::int8) {
                tile.key_scales[g] = scales(region + layout.key_bytes(), offset);
                tile.rope_scales[g] = tile.key_scales[g] + layout.block_size;
                take_scales(tile, g, tile.key_scales[g], count);
            }
        }
        return tile;
    }

    // Rows of 32-bit units become columns of 16 tokens.
    void pack_keys(const char* rows, int tokens, char* keys) const {
        const int units = shape_->layout.head_size / unit(kType);
        const uint32_t flip = kType == DType::int8 ? 0x80808080u : 0;
        const uint32_t* from = reinterpret_cast<const uint32_t*>(rows);
        uint32_t* to = reinterpret_cast<uint32_t*>(keys);
        if (tokens < kGroup) std::memset(keys, 0, shape_->layout.group_bytes());
        for (int t = 0; t < tokens; ++t)
            for (int i = 0; i < units; ++i)
                to[i * kGroup + t] = from[static_cast<int64_t>(t) * units + i] ^ flip;
    }

    // Every `unit` rows are interleaved element by element.
    void pack_values(const char* rows, int tokens, char* values) const {
        constexpr int u = unit(kType);
        using Element =
            std::conditional_t<kType == DType::f32, float,
                               std::conditional_t<kType == DType::bf16, uint16_t, uint8_t>>;
        const int size = shape_->value_size;
        const int64_t row = shape_->layout.head_size;
        Element* to = reinterpret_cast<Element*>(values);
        if (tokens < kGroup) std::memset(values, 0, shape_->layout.group_bytes());
        for (int t = 0; t < tokens; t += u) {
            const Element* from = reinterpret_cast<const Element*>(rows) + t * row;
            Element* group = to + static_cast<int64_t>(t) * size;
            const int present = tokens - t < u ? tokens - t : u;
            for (int j = 0; j < present; ++j)
                for (int d = 0; d < size; ++d) group[d * u + j] = from[j * row + d];
        }
    }

    const AttentionShape* shape_ = nullptr;
    const AttentionItem* item_ = nullptr;
    char* scratch_ = nullptr;
};

}  // namespace
}  // namespace tunan
