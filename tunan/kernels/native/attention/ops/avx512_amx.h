// AVX-512 with bf16 products, and tiles for the products of bf16 and int8 with 16 rows at once.
#include "attention/ops/avx512_base.h"
#include "vec/tiles.h"

namespace tunan {
namespace {

// Tiles 0 to 3 are sums, for 16 keys or 16 columns of values each. A row of kX is 64 bytes of a
// query or of weights; one of kTailX what is left of a query.
struct AmxOps : Avx512Bf16Ops {
    static constexpr int kRowsOfTiles = avx512_amx::kTileRows;
    static constexpr int kX = 4, kCache = 5, kTailX = 6, kTailCache = 7;
    static constexpr int kStep = avx512_amx::kTileBytes;

    // For at most `rows` rows at once, and queries of `query_bytes`.
    static void begin_tiles(int rows, int query_bytes) {
        avx512_amx::TileConfig config;
        const auto set = [&](int tile, int tile_rows, int bytes) {
            config.rows[tile] = static_cast<uint8_t>(tile_rows);
            config.row_bytes[tile] = static_cast<uint16_t>(bytes);
        };
        for (int i = 0; i < kTileGroups; ++i) set(i, rows, kStep);
        set(kX, rows, kStep);
        set(kCache, avx512_amx::kTileRows, kStep);
        if (const int tail = query_bytes % kStep) {
            set(kTailX, rows, tail);
            set(kTailCache, tail / 4, kStep);
        }
        avx512_amx::configure_tiles(config);
    }
    static void end_tiles() { avx512_amx::release_tiles(); }

    // scores[r][16 g + t] = sum over d of query[r][d] key[g][d][t]: float of bf16; int32 of int8,
    // with keys as they lie in the cache, 128 too large. Rows of queries are `stride` bytes apart.
    template <DType kType>
    static void score_tiles(const char* query, int64_t stride, int bytes, const char* const* keys,
                            int groups, void* scores) {
        clear();
        int at = 0;
        for (; at + kStep <= bytes; at += kStep) {
            avx512_amx::load_tile<kX>(query + at, stride);
            each_of(groups, [&](auto g) {
                avx512_amx::load_tile<kCache>(keys[g()] + at * kGroup, kStep);
                multiply<kType, g(), kX, kCache, true>();
            });
        }
        if (at < bytes) {
            avx512_amx::load_tile<kTailX>(query + at, stride);
            each_of(groups, [&](auto g) {
                avx512_amx::load_tile<kTailCache>(keys[g()] + at * kGroup, kStep);
                multiply<kType, g(), kTailX, kTailCache, true>();
            });
        }
        store(groups, scores);
    }

    // sums[r][16 c + i] = sum over tokens of weight[r][t] value[t][column + 16 c + i], float or
    // int32, for at most four c. `values` are `steps` pointers to as many tokens as 64 bytes of
    // weights weigh; their rows are `row_bytes` apart.
    template <DType kType>
    static void weigh_tiles(const char* weights, const char* const* values, int steps,
                            int64_t row_bytes, int column, int blocks, void* sums) {
        clear();
        for (int s = 0; s < steps; ++s) {
            avx512_amx::load_tile<kX>(weights + s * kStep, kTile * element_bytes(kType));
            each_of(blocks, [&](auto c) {
                const int at = (column + c() * kGroup) * 4;
                avx512_amx::load_tile<kCache>(values[s] + at, row_bytes);
                multiply<kType, c(), kX, kCache, false>();
            });
        }
        store(blocks, sums);
    }

  private:
    template <class F>
    static void each_of(int count, F f) {
        if (count > 0) f(std::integral_constant<int, 0>());
        if (count > 1) f(std::integral_constant<int, 1>());
        if (count > 2) f(std::integral_constant<int, 2>());
        if (count > 3) f(std::integral_constant<int, 3>());
    }

    static void clear() {
        each_of(kTileGroups, [](auto i) { avx512_amx::clear_tile<i()>(); });
    }

    static void store(int count, void* to) {
        each_of(count, [&](auto i) {
            avx512_amx::store_tile<i()>(static_cast<float*>(to) + i() * kGroup,
                                        kTile * sizeof(float));
        });
    }

    template <DType kType, int kSums, int kLeft, int kRight, bool kKeys>
    static void multiply() {
        if constexpr (kType == DType::bf16)
            avx512_amx::multiply_tiles_bf16<kSums, kLeft, kRight>();
        else if constexpr (kKeys)
            avx512_amx::multiply_tiles_su<kSums, kLeft, kRight>();
        else
            avx512_amx::multiply_tiles_us<kSums, kLeft, kRight>();
    }
};

inline AttentionKernels best_attention_kernels() { return attention_kernels_of<AmxOps>(); }

}  // namespace
}  // namespace tunan
