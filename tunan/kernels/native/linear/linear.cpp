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
    int unit;
};

// `rows` rows from `first` on in tiles of at most the kernels' rows, as even as can be.
void cut(int64_t first, int64_t rows, const PanelKernels& kernels, int group,
         std::vector<Tile>* tiles) {
    const int unit = group ? std::min(kernels.unit, group) : kernels.unit;
    const int64_t count = (rows + kernels.max_rows - 1) / kernels.max_rows;
    for (int64_t i = 0; i < count; i++) {
        const int size = static_cast<int>(rows / count + (i < rows % count));
        tiles->push_back({first, size, unit});
        first += size;
    }
}

// Activations as the kernels read them: rows of a tile interleaved, sums over the weights' groups.
class PackedRows {
  public:
    PackedRows(const Activations& x, const int32_t* sources, int64_t rows, const PackedShape& shape,
               const std::vector<Tile>& tiles)
        : x_(x),
          sources_(sources),
          rows_(rows),
          shape_(shape),
          tiles_(tiles),
          sums_per_row_(std::max<int64_t>(shape.groups(), 1)),
          zero_point_(zero_point(shape)) {}

    bool pack() {
        static thread_local Scratch values_scratch, sums_scratch, scales_scratch;
        const bool one = rows_ == 1;
        values_ = one ? nullptr : static_cast<int8_t*>(values_scratch.get(rows_ * shape_.depth()));
        sums_ = static_cast<int32_t*>(sums_scratch.get(rows_ * sums_per_row_ * sizeof(int32_t)));
        scales_ =
            sources_ ? static_cast<float*>(scales_scratch.get(rows_ * sizeof(float))) : nullptr;
        if ((!one && !values_) || !sums_ || (sources_ && !scales_)) return false;
        const int64_t tile_bytes = shape_.depth() * tiles_[0].rows;
        const int64_t grain = std::max<int64_t>(1, kChunkBytes / tile_bytes);
        parallel_for(tiles_.size(), grain, [&](int64_t begin, int64_t end, int) {
            for (int64_t t = begin; t < end; t++) {
                add_sums(tiles_[t]);
                if (sources_) gather_scales(tiles_[t]);
                if (tiles_[t].rows > 1) interleave(tiles_[t]);
            }
        });
        return true;
    }

    // One row is interleaved as it is.
    RowTile tile(const Tile& tile) const {
        return {tile.rows == 1 ? row(tile.first) : values_ + tile.first * shape_.depth(),
                sums_ + tile.first * sums_per_row_, (sources_ ? scales_ : x_.scales) + tile.first,
                tile.rows};
    }

  private:
    // As RowTile's shifts have it.
    static int32_t zero_point(const PackedShape& shape) {
        if (shape.has_zeros) return 1;
        if (shape.bits == 4) return 8;
        return selected_linear_kernels().layout == WeightLayout::unsigned4 ? 128 : 0;
    }

    int64_t source(int64_t m) const { return sources_ ? sources_[m] : m; }
    const int8_t* row(int64_t m) const {
        return x_.values + source(m) * activation_stride(x_.inputs);
    }

    void interleave(const Tile& tile) {
        switch (tile.unit) {
            case 4: return interleave<4>(tile);
            case 8: return interleave<8>(tile);
            case 32: return interleave<32>(tile);
            default: return interleave<64>(tile);
        }
    }

    template <int UNIT>
    void interleave(const Tile& tile) {
        int8_t* to = values_ + tile.first * shape_.depth();
        for (int m = 0; m < tile.rows; m++) {
            const int8_t* from = row(tile.first + m);
            for (int64_t k = 0; k < shape_.depth(); k += UNIT) {
                std::memcpy(to + k * tile.rows + m * UNIT, from + k, UNIT);
            }
        }
    }

    void gather_scales(const Tile& tile) {
        for (int64_t m = tile.first; m < tile.first + tile.rows; m++) {
            scales_[m] = x_.scales[source(m)];
        }
    }

    void add_sums(const Tile& tile) {
        const int64_t all = activation_sums(x_.inputs);
        const int64_t together = shape_.group ? shape_.group / 32 : all;
        int32_t* to = sums_ + tile.first * sums_per_row_;
        for (int m = 0; m < tile.rows; m++) {
            const int32_t* from = x_.sums + source(tile.first + m) * all;
            for (int64_t g = 0; g < sums_per_row_; g++) {
                const int64_t end = std::min((g + 1) * together, all);
                int32_t sum = 0;
                for (int64_t i = g * together; i < end; i++) sum += from[i];
                to[g * tile.rows + m] = -zero_point_ * sum;
            }
        }
    }

    const Activations& x_;
    const int32_t* const sources_;
    const int64_t rows_;
    const PackedShape& shape_;
    const std::vector<Tile>& tiles_;
    const int64_t sums_per_row_;
    const int32_t zero_point_;
    int8_t* values_ = nullptr;
    int32_t* sums_ = nullptr;
    float* scales_ = nullptr;
};

const PanelKernels& kernels_for(const LinearKernels& kernels, int64_t rows) {
    return kernels.matrices && rows >= kernels.matrix_rows ? *kernels.matrices : kernels.vectors;
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

bool same_form(const PackedHeader& a, const PackedHeader& b) {
    return a.outputs == b.outputs && a.inputs == b.inputs && a.bits == b.bits &&
           a.group == b.group && a.scale_type == b.scale_type && a.has_zeros == b.has_zeros;
}

Status check_groups(const RowGroup* groups, int64_t count, int64_t inputs) {
    const PackedHeader* first = read_header(groups[0].packed);
    if (!first) return kBadPacking;
    if (first->inputs != inputs) {
        return fail(kBadArgument, "activations of %lld inputs for weights of %lld",
                    static_cast<long long>(inputs), static_cast<long long>(first->inputs));
    }
    for (int64_t g = 1; g < count; g++) {
        const PackedHeader* header = read_header(groups[g].packed);
        if (!header) return kBadPacking;
        if (!same_form(*first, *header))
            return fail(kBadPacking, "weights of different shapes or precisions in one product");
    }
    return kOk;
}

// One group cut up: its tasks are its panels times its blocks of tiles, panels following one
// another within a block, so that a block's activations stay in the cache.
struct Part {
    const RowGroup* group;
    const PanelKernels* kernels;
    int64_t first_tile, last_tile;
    int64_t tiles_a_block;
    int64_t first_task, last_task;
};

class Product {
  public:
    Product(const RowGroup* groups, int64_t count, const PackedShape& shape,
            const LinearResult& result)
        : shape_(shape), result_(result) {
        const LinearKernels& kernels = selected_linear_kernels();
        parts_.reserve(count);
        int64_t task = 0;
        for (int64_t g = 0; g < count; g++) {
            const PanelKernels& chosen = kernels_for(kernels, groups[g].rows);
            const int64_t first = tiles_.size();
            cut(rows_, groups[g].rows, chosen, shape.group, &tiles_);
            rows_ += groups[g].rows;
            const int64_t last = tiles_.size();
            if (first == last) continue;
            const int64_t tile_bytes = shape.depth() * tiles_[first].rows;
            const int64_t block = std::max<int64_t>(1, chosen.block_bytes / tile_bytes);
            const int64_t tasks = (last - first + block - 1) / block * shape.panels();
            parts_.push_back({groups + g, &chosen, first, last, block, task, task + tasks});
            task += tasks;
        }
    }

    int64_t rows() const { return rows_; }
    const std::vector<Tile>& tiles() const { return tiles_; }

    void run(const PackedRows& rows) const {
        const int64_t tasks = parts_.back().last_task;
        const int64_t fair = std::max<int64_t>(1, tasks / (8 * pool_threads()));
        const int64_t grain =
            std::min(fair, std::max<int64_t>(1, kChunkBytes / shape_.panel_bytes()));
        parallel_for(tasks, grain, [&](int64_t begin, int64_t end, int) {
            const Part* part = part_of(begin);
            void (*release)() = part->kernels->release;
            for (int64_t task = begin; task < end; task++) {
                if (task == part->last_task) {
                    part++;
                    if (part->kernels->release) release = part->kernels->release;
                }
                multiply(*part, task - part->first_task, rows);
            }
            if (release) release();
        });
    }

  private:
    const Part* part_of(int64_t task) const {
        const auto after = std::upper_bound(
            parts_.begin(), parts_.end(), task,
            [](int64_t wanted, const Part& part) { return wanted < part.first_task; });
        return &*(after - 1);
    }

    void multiply(const Part& part, int64_t task, const PackedRows& rows) const {
        const int64_t block = task / shape_.panels(), p = task % shape_.panels();
        const uint8_t* base = static_cast<const uint8_t*>(part.group->packed);
        alignas(64) float panel_bias[kPanel];
        copy_bias(part.group->bias, shape_.outputs, p, panel_bias);
        const float* scales = reinterpret_cast<const float*>(base + shape_.scales_offset());
        WeightPanel panel = {base + shape_.panels_offset() + p * shape_.panel_bytes(),
                             scales + p * kPanel,
                             panel_bias,
                             shape_.depth(),
                             shape_.group,
                             shape_.scale_type,
                             shape_.has_zeros,
                             nullptr};
        const int columns =
            static_cast<int>(std::min<int64_t>(kPanel, shape_.outputs - p * kPanel));
        const PanelKernel kernel = kernel_for(*part.kernels, shape_);
        const int64_t first = part.first_tile + block * part.tiles_a_block;
        const int64_t last = std::min(part.last_tile, first + part.tiles_a_block);
        if (last - first > 1) panel.unpacked = unpacked(*part.kernels, panel);
        for (int64_t t = first; t < last; t++) {
            const int64_t at = tiles_[t].first * result_.stride + p * kPanel;
            char* data = static_cast<char*>(result_.data) + at * float_bytes(result_.type);
            kernel(panel, rows.tile(tiles_[t]), {data, result_.type, result_.stride, columns});
        }
    }

    // Null where there is nothing to unpack, or no memory for it: then every tile does it.
    const uint8_t* unpacked(const PanelKernels& kernels, const WeightPanel& panel) const {
        if (shape_.bits != 4 || !kernels.unpack4) return nullptr;
        static thread_local Scratch scratch;
        uint8_t* to = static_cast<uint8_t*>(scratch.get(kPanel * panel.depth));
        if (to) kernels.unpack4(panel, to);
        return to;
    }

    const PackedShape& shape_;
    const LinearResult& result_;
    int64_t rows_ = 0;
    std::vector<Tile> tiles_;
    std::vector<Part> parts_;
};

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
    const RowGroup all = {packed, bias, x.rows};
    return linear_groups(&all, 1, x, nullptr, result);
}

Status linear_groups(const RowGroup* groups, int64_t count, const Activations& x,
                     const int32_t* sources, const LinearResult& result) {
    if (count == 0) return kOk;
    if (const Status status = check_groups(groups, count, x.inputs)) return status;
    const PackedShape shape(*static_cast<const PackedHeader*>(groups[0].packed));
    const Product product(groups, count, shape, result);
    if (product.rows() == 0) return kOk;
    PackedRows rows(x, sources, product.rows(), shape, product.tiles());
    if (!rows.pack())
        return fail(kOutOfMemory, "no memory for %lld packed rows",
                    static_cast<long long>(product.rows()));
    product.run(rows);
    return kOk;
}

}  // namespace tunan
