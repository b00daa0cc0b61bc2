// ATB's newer operators, called as two functions each with tensors of aclnn's kind.
#include "call.h"
#include "kernels.h"
#include "object.h"
#include "operation.h"

using namespace tunan;

namespace {

// Rows [start, start + length) of each sequence, out of the pages that the table names, one after
// another.
void load_pages(const Storage& cache, const Storage& table, const std::vector<int64_t>& lengths,
                const std::vector<int64_t>& starts, const Storage& into) {
    at::Tensor pages = cache.read(), blocks = table.read(), out = into.read();
    int64_t at_row = 0;
    for (size_t at = 0; at < lengths.size(); at++) {
        int64_t start = starts.empty() ? 0 : starts[at];
        at::Tensor rows = gather_pages(pages, blocks[at], start + lengths[at]).slice(0, start);
        out.slice(0, at_row, at_row + lengths[at])
            .copy_(rows.reshape({lengths[at], out.size(1), out.size(2)}));
        at_row += lengths[at];
    }
}

std::vector<int64_t> numbers(const Storage& storage) {
    at::Tensor values = storage.read().to(at::kLong).contiguous().reshape(-1);
    return {values.data_ptr<int64_t>(), values.data_ptr<int64_t>() + values.numel()};
}

// Running totals [0, a, a + b] -> [a, b].
std::vector<int64_t> differences(const std::vector<int64_t>& totals) {
    std::vector<int64_t> steps;
    for (size_t at = 1; at < totals.size(); at++) steps.push_back(totals[at] - totals[at - 1]);
    return steps;
}

}  // namespace

extern "C" {

int AtbPagedCacheLoadGetWorkspaceSize(const aclTensor* key_cache, const aclTensor* value_cache,
                                      const aclTensor* table, const aclTensor* lengths,
                                      const aclTensor* key, const aclTensor* value,
                                      const aclTensor* starts, int8_t, bool totals, bool has_starts,
                                      uint64_t* workspace, atb::Operation** operation,
                                      atb::Context*) {
    Storage caches[] = {storage_of(*key_cache), storage_of(*value_cache)},
            into[] = {storage_of(*key), storage_of(*value)};
    Storage blocks = storage_of(*table), counts = storage_of(*lengths);
    Storage first = has_starts ? storage_of(*starts) : Storage();
    *workspace = 0;
    *operation = make_operation("PagedCacheLoad", [=](const Tensors&, const Tensors&) {
        auto each = totals ? differences(numbers(counts)) : numbers(counts);
        auto begins = has_starts ? numbers(first) : std::vector<int64_t>();
        for (int at = 0; at < 2; at++) load_pages(caches[at], blocks, each, begins, into[at]);
    });
    return 0;
}

int AtbPagedCacheLoad(void* workspace, uint64_t size, atb::Operation* operation,
                      atb::Context* context) {
    static const atb::VariantPack none{};
    return operation->Execute(none, static_cast<uint8_t*>(workspace), size, context);
}

}  // extern "C"
