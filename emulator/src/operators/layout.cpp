// Between ND tensors and the layouts that the device stores: ND, and FRACTAL_NZ, the matrix unit's
// own: [..., K, N] as [..., N/n0, K/16, 16, n0] with n0 such that a row of a fractal is 32 bytes.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "call.h"

namespace tunan {
namespace {

constexpr int FRACTAL_NZ = 29;
constexpr int64_t FRACTAL_ROWS = 16;

struct Fractal {
    std::vector<int64_t> logical;  // ND sizes of the whole matrix, outermost first
    int64_t rows, columns, width;

    int64_t row_blocks() const { return (rows + FRACTAL_ROWS - 1) / FRACTAL_ROWS; }
    int64_t column_blocks() const { return (columns + width - 1) / width; }
};

// A view (a transposed one, most often) names the matrix by its strides: ordered by them, its sizes
// are the matrix's.
Fractal fractal_of(const Storage& storage) {
    std::vector<size_t> order(storage.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return storage.strides[a] > storage.strides[b]; });
    Fractal fractal;
    for (size_t at : order) fractal.logical.push_back(storage.sizes[at]);
    fractal.rows = fractal.logical[fractal.logical.size() - 2];
    fractal.columns = fractal.logical.back();
    fractal.width = storage.storage.empty()
                        ? 32 / static_cast<int64_t>(c10::elementSize(storage.dtype))
                        : storage.storage.back();
    return fractal;
}

at::Tensor blob(const Storage& storage, at::IntArrayRef sizes) {
    return at::from_blob(storage.data, sizes, at::TensorOptions().dtype(storage.dtype));
}

// The stored fractals as [batch, column block, row block, row, column].
at::Tensor fractals(const Storage& storage, const Fractal& fractal) {
    int64_t batch = 1;
    for (size_t at = 0; at + 2 < fractal.logical.size(); at++) batch *= fractal.logical[at];
    return blob(storage, {batch, fractal.column_blocks(), fractal.row_blocks(), FRACTAL_ROWS,
                          fractal.width});
}

at::Tensor read_fractal(const Storage& storage) {
    Fractal fractal = fractal_of(storage);
    at::Tensor padded = fractals(storage, fractal)
                            .permute({0, 2, 3, 1, 4})
                            .reshape({-1, fractal.row_blocks() * FRACTAL_ROWS,
                                      fractal.column_blocks() * fractal.width});
    at::Tensor whole = padded.slice(1, 0, fractal.rows).slice(2, 0, fractal.columns).contiguous();
    return whole.view(fractal.logical).as_strided(storage.sizes, storage.strides);
}

void write_fractal(const Storage& storage, const at::Tensor& value) {
    Fractal fractal = fractal_of(storage);
    at::Tensor whole = at::empty(fractal.logical, at::TensorOptions().dtype(storage.dtype));
    whole.as_strided(storage.sizes, storage.strides).copy_(value);
    at::Tensor padded =
        at::constant_pad_nd(whole.view({-1, fractal.rows, fractal.columns}),
                            {0, fractal.column_blocks() * fractal.width - fractal.columns, 0,
                             fractal.row_blocks() * FRACTAL_ROWS - fractal.rows});
    fractals(storage, fractal)
        .copy_(padded
                   .view({-1, fractal.row_blocks(), FRACTAL_ROWS, fractal.column_blocks(),
                          fractal.width})
                   .permute({0, 3, 1, 2, 4}));
}

}  // namespace

at::Tensor Storage::read() const {
    if (format == FRACTAL_NZ && sizes.size() >= 2) return read_fractal(*this);
    return at::from_blob(data, sizes, strides, at::TensorOptions().dtype(dtype));
}

void Storage::write(const at::Tensor& value) const {
    if (format == FRACTAL_NZ && sizes.size() >= 2)
        write_fractal(*this, value);
    else
        read().copy_(value);
}

}  // namespace tunan
