// One item of attention: tiles of 64 keys, online softmax in float32, parts merged in order.
// Included by one translation unit per instruction set (see vector_ops.h); `Ops` is that set's.
#pragma once

#include "attention/fetch.h"
#include "attention/queries.h"
#include "attention/softmax.h"
#include "attention/tiled.h"
#include "attention/vector_ops.h"

namespace tunan {
namespace {

template <class Ops, DType kType>
class Item {
  public:
    Item(const AttentionShape& shape, const AttentionItem& item, char* memory)
        : shape_(shape), item_(item), rows_(item.tokens * item.heads) {
        memory_ = ItemMemory(shape, rows_, memory);
        tiles_ = TileSource<kType>(shape, item, memory_.tile);
        row_low_ = row_limit(0).low;
        row_high_ = row_limit(rows_ - 1).high;
        tiled_ = kTiled && TiledRows<Ops, kType>::fit(shape, rows_);
    }

    void run() {
        prepare_queries();
        if constexpr (kTiled)
            if (tiled_) tiled_rows().begin(rows_);
        for (int part = item_.first_part; part < item_.last_part; ++part) {
            clear(memory_.state);
            attend_part(part);
            if (item_.partial)
                std::memcpy(item_.partial, memory_.state,
                            sizeof(float) * partial_floats(rows_, shape_.value_size));
            else if (part == item_.first_part)
                clear(memory_.total), merge_state(memory_.state);
            else
                merge_state(memory_.state);
        }
        if constexpr (kTiled)
            if (tiled_) Ops::end_tiles();
        if (!item_.partial) write_output();
    }

    void merge(const float* states, size_t stride, int count) {
        clear(memory_.total);
        for (int i = 0; i < count; ++i) merge_state(states + i * stride);
        write_output();
    }

  private:
    static constexpr bool kTiled = Ops::kRowsOfTiles > 0 && kType != DType::f32;

    TiledRows<Ops, kType> tiled_rows() const { return {shape_, memory_}; }

    struct Limit {
        int low, high;  // keys the row sees
    };

    Limit row_limit(int row) const {
        const int position = item_.first_position + row / item_.heads;
        const int high = shape_.causal ? position + 1 : item_.seq_len;
        const int low = shape_.window > 0 ? position - shape_.window + 1 : 0;
        return {low < 0 ? 0 : low, high};
    }

    void clear(float* state) const {
        for (int r = 0; r < rows_; ++r) state[r] = -INFINITY;
        std::memset(state + rows_, 0, sizeof(float) * rows_ * (1 + shape_.value_size));
    }

    // `total` becomes the state over the keys of both.
    void merge_state(const float* state) {
        const int size = shape_.value_size;
        float* total = memory_.total;
        for (int r = 0; r < rows_; ++r) {
            if (state[r] == -INFINITY) continue;
            const float top = state[r] > total[r] ? state[r] : total[r];
            const float keep = exp_negative(total[r] - top), add = exp_negative(state[r] - top);
            total[r] = top;
            total[rows_ + r] = total[rows_ + r] * keep + state[rows_ + r] * add;
            float* t = total + 2 * rows_ + static_cast<int64_t>(r) * size;
            const float* s = state + 2 * rows_ + static_cast<int64_t>(r) * size;
            for (int d = 0; d < size; ++d) t[d] = t[d] * keep + s[d] * add;
        }
    }

    void write_output() const {
        const int size = shape_.value_size;
        for (int r = 0; r < rows_; ++r) {
            const float sum = memory_.total[rows_ + r];
            const float inverse = sum > 0.f || sum != sum ? 1.f / sum : 0.f;
            const float* t = memory_.total + 2 * rows_ + static_cast<int64_t>(r) * size;
            const int64_t at = (r / item_.heads) * item_.out_token_stride +
                               static_cast<int64_t>(r % item_.heads) * size;
            if (shape_.query_type == DType::f32) {
                float* o = static_cast<float*>(item_.out) + at;
                for (int d = 0; d < size; ++d) o[d] = t[d] * inverse;
            } else {
                uint16_t* o = static_cast<uint16_t*>(item_.out) + at;
                for (int d = 0; d < size; ++d) o[d] = bf16_of_float(t[d] * inverse);
            }
        }
    }

    const char* query_row(int row) const {
        const int64_t at = (row / item_.heads) * item_.query_token_stride +
                           static_cast<int64_t>(row % item_.heads) * shape_.layout.head_size;
        return static_cast<const char*>(item_.query) + at * element_bytes(shape_.query_type);
    }

    void prepare_queries() {
        const int size = shape_.layout.head_size;
        const int latent = shape_.layout.head_size - shape_.rope_size;
        for (int r = 0; r < rows_; ++r) {
            const char* q = query_row(r);
            const int64_t at = static_cast<int64_t>(r) * size;
            if constexpr (kType == DType::int8) {
                memory_.query_scale[r] = shape_.scale * quantize_query(q, shape_.query_type, latent,
                                                                       memory_.query<int8_t>() + at,
                                                                       memory_.query_sum[r]);
                if (shape_.rope_size)
                    memory_.rope_scale[r] =
                        shape_.scale * quantize_query(q + latent * element_bytes(shape_.query_type),
                                                      shape_.query_type, shape_.rope_size,
                                                      memory_.query<int8_t>() + at + latent,
                                                      memory_.rope_sum[r]);
            } else if constexpr (kType == DType::bf16 && Ops::kBf16Products) {
                for (int d = 0; d < size; ++d)
                    memory_.query<uint16_t>()[at + d] =
                        bf16_of_float(load_float(q, shape_.query_type, d));
            } else {
                for (int d = 0; d < size; ++d)
                    memory_.query<float>()[at + d] = load_float(q, shape_.query_type, d);
            }
        }
    }

    void attend_part(int part) {
        const int low = row_low_ > part * kPart ? row_low_ : part * kPart;
        const int high = row_high_ < (part + 1) * kPart ? row_high_ : (part + 1) * kPart;
        for (int start = low / kTile * kTile; start < high; start += kTile) {
            const int count = high - start < kTile ? high - start : kTile;
            const Tile tile = tiles_.fetch(start, count);
            if constexpr (kTiled) {
                if (tiled_) {
                    attend_in_tiles(tile, start, count);
                    continue;
                }
            }
            int r = 0;
            for (; r + 4 <= rows_; r += 4) attend_rows<4>(tile, r, start, count);
            if (rows_ - r == 3) attend_rows<3>(tile, r, start, count);
            if (rows_ - r == 2) attend_rows<2>(tile, r, start, count);
            if (rows_ - r == 1) attend_rows<1>(tile, r, start, count);
        }
    }

    void attend_in_tiles(const Tile& tile, int start, int count) {
        alignas(64) float scores[Ops::kRowsOfTiles * kTile];
        float alpha[Ops::kRowsOfTiles];
        const int groups = (count + kGroup - 1) / kGroup;
        TiledRows<Ops, kType> tiled = tiled_rows();
        tiled.take_values(tile, groups);
        for (int row = 0; row < rows_; row += Ops::kRowsOfTiles) {
            const int rows = at_most(rows_ - row, Ops::kRowsOfTiles);
            tiled.score(tile, row, rows, groups, scores);
            weights_of(scores, row, rows, start, count, alpha);
            tiled.weigh(tile, rows, scores, alpha, accumulated(row));
        }
    }

    // Scores of `rows` rows become weights, and alpha what earlier sums are scaled by.
    void weights_of(float* scores, int row, int rows, int start, int count, float* alpha) {
        const int groups = (count + kGroup - 1) / kGroup;
        for (int r = 0; r < rows; ++r) {
            const Limit limit = row_limit(row + r);
            float* s = scores + r * kTile;
            adjust_scores(s, row + r, start, groups * kGroup);
            alpha[r] = softmax_row(s, limit.low - start, at_most(limit.high - start, count),
                                   memory_.state[row + r], memory_.state[rows_ + row + r]);
        }
    }

    float* accumulated(int row) const {
        return memory_.state + 2 * rows_ + static_cast<int64_t>(row) * shape_.value_size;
    }

    template <int R>
    void attend_rows(const Tile& tile, int row, int start, int count) {
        alignas(64) float scores[R * kTile];
        float alpha[R];
        const int groups = (count + kGroup - 1) / kGroup;
        score<R>(tile, row, groups, scores);
        weights_of(scores, row, R, start, count, alpha);
        weigh<R>(tile, row, count, scores, alpha);
    }

    static int at_most(int value, int most) { return value < most ? value : most; }

    template <int R>
    void score(const Tile& tile, int row, int groups, float* scores) const {
        const int size = shape_.layout.head_size;
        const int64_t at = static_cast<int64_t>(row) * size;
        if constexpr (kType == DType::int8) {
            const int latent = size - shape_.rope_size;
            alignas(64) int32_t dots[R * kTile];
            each_groups<R>(groups, [&](auto count, int g) {
                Ops::template keys_int8<R, count()>(memory_.query<int8_t>() + at, size,
                                                    memory_.query_sum + row, tile.keys + g, latent,
                                                    dots + g * kGroup);
            });
            scale_dots<false>(R, dots, tile.key_scales, memory_.query_scale + row, groups, scores);
            if (!shape_.rope_size) return;
            each_groups<R>(groups, [&](auto count, int g) {
                const char* keys[kTileGroups];
                for (int i = 0; i < count(); ++i)
                    keys[i] = tile.keys[g + i] + static_cast<int64_t>(latent) * kGroup;
                Ops::template keys_int8<R, count()>(memory_.query<int8_t>() + at + latent, size,
                                                    memory_.rope_sum + row, keys, shape_.rope_size,
                                                    dots + g * kGroup);
            });
            scale_dots<true>(R, dots, tile.rope_scales, memory_.rope_scale + row, groups, scores);
        } else if constexpr (kType == DType::bf16) {
            using Query = std::conditional_t<Ops::kBf16Products, uint16_t, float>;
            each_groups<R>(groups, [&](auto count, int g) {
                Ops::template keys_bf16<R, count()>(memory_.query<Query>() + at, size,
                                                    tile.keys + g, size, scores + g * kGroup);
            });
        } else {
            each_groups<R>(groups, [&](auto count, int g) {
                Ops::template keys_f32<R, count()>(memory_.query<float>() + at, size, tile.keys + g,
                                                   size, scores + g * kGroup);
            });
        }
    }

    // Calls with as many groups at once as the instruction set takes, then one by one.
    template <int R, class F>
    static void each_groups(int groups, F f) {
        int g = 0;
        for (; g + Ops::kKeyGroups <= groups; g += Ops::kKeyGroups)
            f(std::integral_constant<int, Ops::kKeyGroups>(), g);
        for (; g < groups; ++g) f(std::integral_constant<int, 1>(), g);
    }

    void adjust_scores(float* scores, int row, int start, int count) const {
        if constexpr (kType != DType::int8)  // there it is in the query's scale
            for (int t = 0; t < count; t += kLanes)
                store(scores + t, load(scores + t) * broadcast(shape_.scale));
        if (shape_.softcap > 0.f)
            for (int t = 0; t < count; ++t) scores[t] = soften(scores[t], shape_.softcap);
        if (item_.alibi) {
            const float slope = item_.alibi[row % item_.heads];
            const int distance = start - (item_.first_position + row / item_.heads);
            for (int t = 0; t < count; ++t) scores[t] += slope * static_cast<float>(distance + t);
        }
    }

    template <int R>
    void weigh(const Tile& tile, int row, int count, const float* weights, const float* alpha) {
        const int size = shape_.value_size, groups = (count + kGroup - 1) / kGroup;
        float* acc = accumulated(row);
        if constexpr (kType == DType::int8) {
            alignas(64) uint8_t steps[R * kTile];
            float step[R];
            for (int r = 0; r < R; ++r) {
                step[r] =
                    quantize_weights(weights + r * kTile, tile.value_scales, steps + r * kTile);
                if (!tile.defined) step[r] = NAN;
            }
            each_columns(size, [&](auto blocks, int c) {
                Ops::template values_int8<R, blocks()>(steps, tile.values, groups, size, c, acc,
                                                       size, alpha, step);
            });
        } else if constexpr (kType == DType::bf16 && Ops::kBf16Products) {
            alignas(64) uint16_t narrow[R * kTile];
            Ops::narrow(weights, R * kTile, narrow);
            each_columns(size, [&](auto blocks, int c) {
                Ops::template values_bf16<R, blocks()>(narrow, tile.values, groups, size, c, acc,
                                                       size, alpha);
            });
        } else if constexpr (kType == DType::bf16) {
            each_columns(size, [&](auto blocks, int c) {
                Ops::template values_bf16<R, blocks()>(weights, tile.values, groups, size, c, acc,
                                                       size, alpha);
            });
        } else {
            each_columns(size, [&](auto blocks, int c) {
                Ops::template values_f32<R, blocks()>(weights, tile.values, groups, size, c, acc,
                                                      size, alpha);
            });
        }
    }

    template <class F>
    static void each_columns(int size, F f) {
        int c = 0;
        for (; c + Ops::kValueBlocks * kGroup <= size; c += Ops::kValueBlocks * kGroup)
            f(std::integral_constant<int, Ops::kValueBlocks>(), c);
        for (; c < size; c += kGroup) f(std::integral_constant<int, 1>(), c);
    }

    const AttentionShape& shape_;
    const AttentionItem& item_;
    int rows_;
    int row_low_, row_high_;
    bool tiled_;
    ItemMemory memory_;
    TileSource<kType> tiles_;
};

template <class Ops>
AttentionKernels attention_kernels_of() {
    AttentionKernels kernels;
    kernels.scratch_bytes = [](const AttentionShape& shape, int rows) {
        return ItemMemory::bytes(shape, rows);
    };
    kernels.run = [](const AttentionShape& shape, const AttentionItem& item, char* scratch) {
        if (shape.layout.type == DType::f32) Item<Ops, DType::f32>(shape, item, scratch).run();
        if (shape.layout.type == DType::bf16) Item<Ops, DType::bf16>(shape, item, scratch).run();
        if (shape.layout.type == DType::int8) Item<Ops, DType::int8>(shape, item, scratch).run();
    };
    kernels.merge = [](const AttentionShape& shape, const AttentionItem& item, const float* states,
                       size_t stride, int count, char* scratch) {
        Item<Ops, DType::f32>(shape, item, scratch).merge(states, stride, count);
    };
    return kernels;
}

}  // namespace
}  // namespace tunan
