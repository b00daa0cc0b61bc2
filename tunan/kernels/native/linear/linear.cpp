#include "linear/linear.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "linear/kernels.h"
#include "linear/select.h"
#include "pool.h"

namespace tunan {
namespace {

// What a chunk should read at least, so that taking it costs nothing in comparison.
constexpr int64_t kChunkBytes = 64 << 10;

struct Tile {
    int64_t first;
    int rows;
};

// `rows` in tiles of at most `most`, as even as can be.
std::vector<Tile> cut(int64_t rows, int most) {
    const int64_t count = (rows + most - 1) / most;
    std::vector<Tile> tiles;
    tiles.reserve(count);
    int64_t first = 0;
    for (int64_t i = 0; i < count; i++) {
        const int size = static_cast<int>(rows / count + (i < rows % count));
        tiles.push_back({first, size});
        first += size;
    }
    return tiles;
}

// Activations as the kernels read them: rows of a tile interleaved, sums over the weights' groups.
class PackedRows {
  public:
    PackedRows(const Activations& x, const PackedShape& shape, const PanelKernels& kernels)
        : x_(x),
          shape_(shape),
          unit_(kernels.unit),
          tiles_(cut(x.rows, kernels.max_rows)),
          sums_per_row_(std::max<int64_t>(shape.groups(), 1)) {}

    const std::vector<Tile>& tiles() const { return tiles_; }

    bool pack() {
        static thread_local Scratch values_scratch, sums_scratch;
        const bool one = x_.rows == 1;
        values_ = one ? const_cast<int8_t*>(x_.values)
                      : static_cast<int8_t*>(values_scratch.get(x_.rows * shape_.depth()));
        sums_ = static_cast<int32_t*>(sums_scratch.get(x_.rows * sums_per_row_ * sizeof(int32_t)));
        if (!values_ || !sums_) return false;
        const int64_t tile_bytes = shape_.depth() * tiles_[0].rows;
        const int64_t grain = std::max<int64_t>(1, kChunkBytes / tile_bytes);
        parallel_for(tiles_.size(), grain, [&](int64_t begin, int64_t end, int) {
            for (int64_t t = begin; t < end; t++) {
                add_sums(tiles_[t]);
                if (!one) interleave(tiles_[t]);
            }
        });
        return true;
    }

    RowTile tile(const Tile& tile) const {
        return {values_ + tile.first * shape_.depth(), sums_ + tile.first * sums_per_row_,
                x_.scales + tile.first, tile.rows};
    }

  private:
    void interleave(const Tile& tile) {
        if (unit_ == 4) {
            interleave<4>(tile);
        } else {
            interleave<64>(tile);
        }
    }

    template <int UNIT>
    void interleave(const Tile& tile) {
        const int64_t stride = activation_stride(x_.inputs);
        int8_t* to = values_ + tile.first * shape_.depth();
        for (int m = 0; m < tile.rows; m++) {
            const int8_t* from = x_.values + (tile.first + m) * stride;
            for (int64_t k = 0; k < shape_.depth(); k += UNIT) {
                std::memcpy(to + k * tile.rows + m * UNIT, from + k, UNIT);
            }
        }
    }

    void add_sums(const Tile& tile) {
        const int64_t all = activation_sums(x_.inputs);
        const int64_t together = shape_.group ? shape_.group / 32 : all;
        int32_t* to = sums_ + tile.first * sums_per_row_;
        for (int m = 0; m < tile.rows; m++) {
            const int32_t* from = x_.sums + (tile.first + m) * all;
            for (int64_t g = 0; g < sums_per_row_; g++) {
                const int64_t end = std::min((g + 1) * together, all);
                int32_t sum = 0;
                for (int64_t i = g * together; i < end; i++) sum += from[i];
                to[g * tile.rows + m] = sum;
            }
        }
    }

    const Activations& x_;
    const PackedShape& shape_;
    const int unit_;
    std::vector<Tile> tiles_;
    int64_t sums_per_row_;
    int8_t* values_ = nullptr;
    int32_t* sums_ = nullptr;
};

const PanelKernels& kernels_for(const LinearKernels& kernels, const PackedShape& shape,
                                int64_t rows) {
    const PanelKernels* matrices = kernels.matrices;
    if (!matrices || rows < kernels.matrix_rows) return kernels.vectors;
    return shape.group && shape.group < matrices->unit ? kernels.vectors : *matrices;
}

PanelKernel kernel_for(const PanelKernels& kernels, const PackedShape& shape) {
    if (!shape.group) return kernels.per_channel8;
    return shape.bits == 4 ? kernels.grouped4 : kernels.grouped8;
}

// The panel's part of the bias, zero where there is none.
void copy_bias(const float* bias, int64_t outputs, int64_t panel, float (&to)[kPanel]) {
    for (int n = 0; n < kPanel; n++) {
        const int64_t at = panel * kPanel + n;
        to[n] = bias && at < outputs ? bias[at] : 0.0f;
    }
}

}  // namespace

void quantize_rows(const void* x, FloatType type, int64_t x_stride, int64_t rows, int64_t inputs,
                   int8_t* values, float* scales, int32_t* sums) {
    const LinearKernels& kernels = selected_linear_kernels();
    const int64_t stride = activation_stride(inputs);
    const int64_t grain = std::max<int64_t>(1, kChunkBytes / (inputs * float_bytes(type)));
    parallel_for(rows, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t m = begin; m < end; m++) {
            const char* row = static_cast<const char*>(x) + m * x_stride * float_bytes(type);
            kernels.quantize_row(row, type, inputs, stride, values + m * stride, scales + m,
                                 sums + m * (stride / 32));
        }
    });
}

Status linear(const void* packed, const Activations& x, const float* bias,
              const LinearResult& result) {
    const PackedHeader* header = read_header(packed);
    if (!header) return kBadPacking;
    const PackedShape shape(*header);
    if (shape.inputs != x.inputs) {
        return fail(kBadArgument, "activations of %lld inputs for weights of %lld",
                    static_cast<long long>(x.inputs), static_cast<long long>(shape.inputs));
    }
    if (x.rows == 0) return kOk;
    const PanelKernels& kernels = kernels_for(selected_linear_kernels(), shape, x.rows);
    const PanelKernel kernel = kernel_for(kernels, shape);
    PackedRows rows(x, shape, kernels);
    if (!rows.pack())
        return fail(kOutOfMemory, "no memory for %lld packed rows", static_cast<long long>(x.rows));

    const uint8_t* base = static_cast<const uint8_t*>(packed);
    const float* scales = reinterpret_cast<const float*>(base + shape.scales_offset());
    const std::vector<Tile>& tiles = rows.tiles();
    const int64_t tile_bytes = shape.depth() * tiles[0].rows;
    const int64_t tiles_a_block = std::max<int64_t>(1, kernels.block_bytes / tile_bytes);
    const int64_t blocks = (tiles.size() + tiles_a_block - 1) / tiles_a_block;
    const int64_t panels = shape.panels();
    const int64_t fair = std::max<int64_t>(1, blocks * panels / (8 * pool_threads()));
    const int64_t grain = std::min(fair, std::max<int64_t>(1, kChunkBytes / shape.panel_bytes()));

    // One task: a panel times a block of tiles; panels follow one another within a block.
    parallel_for(blocks * panels, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t task = begin; task < end; task++) {
            const int64_t block = task / panels, p = task % panels;
            alignas(64) float panel_bias[kPanel];
            copy_bias(bias, shape.outputs, p, panel_bias);
            const WeightPanel panel = {base + shape.panels_offset() + p * shape.panel_bytes(),
                                       scales + p * kPanel,
                                       panel_bias,
                                       shape.depth(),
                                       shape.group,
                                       shape.scale_type,
                                       shape.has_zeros};
            const int columns =
                static_cast<int>(std::min<int64_t>(kPanel, shape.outputs - p * kPanel));
            const int64_t last = std::min<int64_t>(tiles.size(), (block + 1) * tiles_a_block);
            for (int64_t t = block * tiles_a_block; t < last; t++) {
                const int64_t at = tiles[t].first * result.stride + p * kPanel;
                char* data = static_cast<char*>(result.data) + at * float_bytes(result.type);
                kernel(panel, rows.tile(tiles[t]), {data, result.type, result.stride, columns});
            }
        }
        if (kernels.release) kernels.release();
    });
    return kOk;
}

}  // namespace tunan
