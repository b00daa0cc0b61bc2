// Writing keys and values into the pages of a cache, and reading them out.
#include "kernels.h"

namespace tunan {

void store_rows(const at::Tensor& cache, const at::Tensor& rows, const at::Tensor& slots) {
    cache.view({-1, cache.size(-1)}).index_copy_(0, slots, rows.to(cache.scalar_type()));
}

void store_rows_in_fractals(const at::Tensor& cache, int64_t block, const at::Tensor& rows,
                            const at::Tensor& slots) {
    int64_t width = 32 / static_cast<int64_t>(cache.element_size()),
            columns = rows.size(-1) / width;
    at::Tensor fractals = cache.view({-1, columns, block, width});
    at::Tensor values = rows.to(cache.scalar_type()).view({-1, columns, width});
    c10::List<std::optional<at::Tensor>> places;
    places.push_back(slots.div(block, "floor"));
    places.push_back(slots.remainder(block));
    fractals.permute({0, 2, 1, 3}).index_put_(places, values);
}

namespace {

bool in_fractals(const Call& call, const at::Tensor& cache) {
    return cache.dim() == 5 || call.text("mode") == "PA_NZ";
}

// rows [T, heads, D] at slots; a negative slot is padding. Caches are [blocks, block, heads, D], or
// in the matrix unit's layout [blocks, heads, D/n, block, n] or [blocks, heads * D/n, block, n].
void scatter(const Call& call, const char* rows_name, const char* cache_name) {
    at::Tensor rows = call.tensor(rows_name), cache = call.tensor(cache_name);
    at::Tensor slots = call.tensor("slots").to(at::kLong).reshape(-1);
    at::Tensor kept = slots.ge(0).nonzero().squeeze(-1);
    slots = slots.index_select(0, kept);
    rows = rows.reshape({rows.size(0), -1}).index_select(0, kept);
    if (in_fractals(call, cache)) return store_rows_in_fractals(cache, cache.size(-2), rows, slots);
    store_rows(cache.view({-1, rows.size(-1)}), rows, slots);
}

void scatter_pages(const Call& call) {
    scatter(call, "key", "key_cache");
    if (call.has("value") && call.has("value_cache")) scatter(call, "value", "value_cache");
}

void check_scatter_pages(const Call& call) {
    const std::string& mode = call.text("mode");
    call.require(mode.empty() || mode == "Norm" || mode == "PA_NZ",
                 "cacheMode " + mode + " is not supported, it should be in [Norm, PA_NZ].");
    call.require(!call.has("compress_lengths") && !call.has("compress_offsets"),
                 "compressLens and compressSeqOffset are not supported.");
    const auto &key = call.storage("key"), &cache = call.storage("key_cache"),
               &slots = call.storage("slots");
    call.require(key.sizes.size() >= 2 && slots.sizes.size() == 1 && slots.sizes[0] == key.sizes[0],
                 "The shape of slotMapping " + shape_text(slots.sizes) + " must be [" +
                     (key.sizes.empty() ? "" : std::to_string(key.sizes[0])) + "].");
    call.require(key.dtype == cache.dtype, std::string("The dtype of key ") +
                                               dtype_name(key.dtype) + " and keyCache " +
                                               dtype_name(cache.dtype) + " must be same.");
    call.require(cache.sizes.size() >= 3 && cache.sizes.size() <= 5,
                 "The dims of keyCache must be in range [3, 5].");
    int64_t width = 1, have = 1;
    for (size_t at = 1; at < key.sizes.size(); at++) width *= key.sizes[at];
    for (size_t at = 1; at < cache.sizes.size(); at++) have *= cache.sizes[at];
    bool fractal = cache.sizes.size() == 5 || mode == "PA_NZ";
    int64_t block = cache.sizes[fractal ? cache.sizes.size() - 2 : 1];
    call.require(have == width * block, "The shape of keyCache " + shape_text(cache.sizes) +
                                            " does not match key " + shape_text(key.sizes) + ".");
}

// Rows of each sequence, one sequence after another, out of [blocks, block, heads, D].
void gather_sequences(const Call& call) {
    at::Tensor table = call.tensor("table"), lengths = call.tensor("lengths").to(at::kLong);
    at::Tensor starts = call.tensor("starts");
    if (call.flag("totals")) lengths = at::diff(lengths);
    for (auto [from, to] : {std::pair{"key_cache", "key"}, {"value_cache", "value"}}) {
        at::Tensor cache = call.tensor(from), out = call.tensor(to);
        int64_t row = 0;
        for (int64_t at = 0; at < lengths.numel(); at++) {
            int64_t length = lengths[at].item<int64_t>();
            int64_t start = starts.defined() && starts.numel() ? starts[at].item<int64_t>() : 0;
            at::Tensor rows = gather_pages(cache, table[at], start + length).slice(0, start);
            out.slice(0, row, row + length).copy_(rows.reshape_as(out.slice(0, row, row + length)));
            row += length;
        }
    }
}

void check_gather_sequences(const Call& call) {
    call.require(call.text("mode") == "Norm",
                 "cacheMode " + call.text("mode") + " is not supported, it should be Norm.");
    const auto &table = call.storage("table").sizes, &lengths = call.storage("lengths").sizes;
    int64_t wanted = lengths.size() == 1 ? lengths[0] - (call.flag("totals") ? 1 : 0) : -1;
    call.require(table.size() == 2 && wanted >= 0 && table[0] >= wanted,
                 "The shape of blockTables " + shape_text(table) + " does not match seqLens " +
                     shape_text(lengths) + ".");
    for (auto [from, to] : {std::pair{"key_cache", "key"}, {"value_cache", "value"}}) {
        const auto &cache = call.storage(from), &out = call.storage(to);
        call.require(cache.sizes.size() == 4 && out.sizes.size() == 3 &&
                         cache.sizes[2] == out.sizes[1] && cache.sizes[3] == out.sizes[2] &&
                         cache.dtype == out.dtype,
                     std::string("The shape of ") + from + " " + shape_text(cache.sizes) +
                         " does not match " + to + " " + shape_text(out.sizes) + ".");
    }
}

KERNEL("scatter_pages", scatter_pages, check_scatter_pages);
KERNEL("gather_sequences", gather_sequences, check_gather_sequences);

}  // namespace
}  // namespace tunan
