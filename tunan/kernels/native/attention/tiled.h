// Up to 16 rows of an item at once, for instruction sets with matrix registers (Ops::kRowsOfTiles).
// Included by one translation unit per instruction set.
#pragma once

#include "attention/fetch.h"
#include "attention/softmax.h"

namespace tunan {
namespace {

// Scores from the integer products of `rows` rows; kAdd: added to what is there.
template <bool kAdd>
inline void scale_dots(int rows, const int32_t* dots, const float* const* key_scales,
                       const float* query_scales, int groups, float* scores) {
    for (int r = 0; r < rows; ++r) {
        for (int g = 0; g < groups; ++g) {
            const int at = r * kTile + g * kGroup;
            for (int t = 0; t < kGroup; t += kLanes) {
                const FloatVector scale = load(key_scales[g] + t) * broadcast(query_scales[r]);
                const FloatVector dot = to_floats(load_ints(dots + at + t));
                store(scores + at + t, kAdd ? load(scores + at + t) + dot * scale : dot * scale);
            }
        }
    }
}

template <class Ops, DType kType>
class TiledRows {
  public:
    TiledRows(const AttentionShape& shape, const ItemMemory& memory)
        : shape_(shape), memory_(memory) {}

    // Of int8 the bits are those of the other products, so that few rows may take those, which are
    // faster then; of bf16 they are not, so that all rows have to take tiles. A row's 64 bytes may
    // end in the middle of a key, but not in that of a latent or its rope.
    static bool fit(const AttentionShape& shape, int rows) {
        if constexpr (kType == DType::f32) return false;
        if (kType == DType::int8 && rows < kFewRows) return false;
        const int step = 64 / element_bytes(kType);
        return !shape.rope_size || (shape.value_size % step == 0 && shape.rope_size % step == 0);
    }

    void begin(int rows) const {
        Ops::begin_tiles(rows < Ops::kRowsOfTiles ? rows : Ops::kRowsOfTiles,
                         shape_.layout.head_size * element_bytes(kType));
    }

    // Before any row: where the tile's values lie, one step of tokens after the other.
    void take_values(const Tile& tile, int groups) {
        steps_ = (groups + kStepGroups - 1) / kStepGroups;
        for (int s = 0; s < steps_; ++s) values_[s] = joined(tile, s * kStepGroups, groups);
    }

    // As Item::score, for `rows` rows from `row` on.
    void score(const Tile& tile, int row, int rows, int groups, float* scores) const {
        const int bytes = shape_.layout.head_size * element_bytes(kType);
        const char* query = memory_.queries + static_cast<int64_t>(row) * bytes;
        if constexpr (kType == DType::bf16) {
            Ops::template score_tiles<kType>(query, bytes, bytes, tile.keys, groups, scores);
        } else {
            const int latent = bytes - shape_.rope_size;
            alignas(64) int32_t dots[Ops::kRowsOfTiles * kTile];
            Ops::template score_tiles<kType>(query, bytes, latent, tile.keys, groups, dots);
            take_offset(dots, memory_.query_sum + row, rows, groups);
            scale_dots<false>(rows, dots, tile.key_scales, memory_.query_scale + row, groups,
                              scores);
            if (!shape_.rope_size) return;
            const char* keys[kTileGroups];
            for (int g = 0; g < groups; ++g)
                keys[g] = tile.keys[g] + static_cast<int64_t>(latent) * kGroup;
            Ops::template score_tiles<kType>(query + latent, bytes, shape_.rope_size, keys, groups,
                                             dots);
            take_offset(dots, memory_.rope_sum + row, rows, groups);
            scale_dots<true>(rows, dots, tile.rope_scales, memory_.rope_scale + row, groups,
                             scores);
        }
    }

    // As Item::weigh: acc[r] = alpha[r] acc[r] + the tile's weighted values.
    void weigh(const Tile& tile, int rows, const float* weights, const float* alpha,
               float* acc) const {
        constexpr int most = Ops::kRowsOfTiles;
        using Weight = std::conditional_t<kType == DType::bf16, uint16_t, uint8_t>;
        alignas(64) Weight narrow[most * kTile];
        float step[most] = {};
        if constexpr (kType == DType::bf16) {
            Ops::narrow(weights, rows * kTile, narrow);
        } else {
            for (int r = 0; r < rows; ++r) {
                step[r] =
                    quantize_weights(weights + r * kTile, tile.value_scales, narrow + r * kTile);
                if (!tile.defined) step[r] = NAN;
            }
        }
        using Sum = std::conditional_t<kType == DType::bf16, float, int32_t>;
        alignas(64) Sum sums[most * kTile];
        const int size = shape_.value_size;
        for (int column = 0; column < size; column += kTile) {
            const int columns = size - column < kTile ? size - column : kTile;
            Ops::template weigh_tiles<kType>(reinterpret_cast<const char*>(narrow), values_, steps_,
                                             int64_t{size} * 4, column, columns / kGroup, sums);
            for (int r = 0; r < rows; ++r) {
                float* to = acc + static_cast<int64_t>(r) * size + column;
                for (int i = 0; i < columns; i += kLanes)
                    store(to + i,
                          total(load(to + i) * broadcast(alpha[r]), sums + r * kTile + i, step[r]));
            }
        }
    }

  private:
    static constexpr int kFewRows = 8;
    static constexpr int kStepGroups = unit(kType);  // whose weights are 64 bytes

    static void take_offset(int32_t* dots, const int32_t* sums, int rows, int groups) {
        for (int r = 0; r < rows; ++r)
            for (int t = 0; t < groups * kGroup; ++t) dots[r * kTile + t] -= 128 * sums[r];
    }

    static FloatVector total(FloatVector kept, const float* sum, float) { return kept + load(sum); }
    static FloatVector total(FloatVector kept, const int32_t* sum, float step) {
        return fma(to_floats(load_ints(sum)), broadcast(step), kept);
    }

    // A step's groups of values in one piece, with zeros for those that the tile lacks.
    const char* joined(const Tile& tile, int first, int groups) const {
        const size_t bytes = size_t{kGroup} * shape_.value_size * element_bytes(kType);
        const int present = groups - first < kStepGroups ? groups - first : kStepGroups;
        bool in_one_piece = present == kStepGroups;
        for (int g = 1; g < present; ++g)
            in_one_piece &= tile.values[first + g] == tile.values[first] + g * bytes;
        if (in_one_piece) return tile.values[first];
        char* to = memory_.joined + first * bytes;
        for (int g = 0; g < present; ++g)
            std::memcpy(to + g * bytes, tile.values[first + g], bytes);
        std::memset(to + present * bytes, 0, (kStepGroups - present) * bytes);
        return to;
    }

    const AttentionShape& shape_;
    const ItemMemory& memory_;
    const char* values_[kTileGroups];
    int steps_ = 0;
};

}  // namespace
}  // namespace tunan
