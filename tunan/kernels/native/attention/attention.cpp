#include "attention/attention.h"

#include <algorithm>
#include <vector>

#include "attention/kernels.h"
#include "guard.h"
#include "isa.h"
#include "memory.h"
#include "pool.h"

namespace tunan {

#define TUNAN_DECLARE(isa)                       \
    namespace isa {                              \
    const AttentionKernels& attention_kernels(); \
    }
TUNAN_ISAS(TUNAN_DECLARE)
#undef TUNAN_DECLARE

namespace {

// Rows that share one pass over the keys: enough to pay for it, few enough for the L1 cache.
constexpr int kRows = 32;
constexpr int kMostHeads = 64;
// Of a sequence: positions rounded up to a block or a part still fit 32 bits.
constexpr int kMostTokens = 1 << 30;
// Contexts are split while there are fewer units than this a thread.
constexpr int kUnitsPerThread = 4;

const AttentionKernels& selected_kernels() {
    switch (selected_isa()) {
#define TUNAN_CASE(isa) \
    case Isa::isa: return isa::attention_kernels();
        TUNAN_ISAS(TUNAN_CASE)
#undef TUNAN_CASE
        case Isa::count: break;
    }
    return scalar::attention_kernels();
}

// Query tokens of one sequence and heads of one key head, over the sequence's whole context.
struct Unit {
    int sequence, first_token, tokens;
    int key_head, first_head, heads;
    int first_part, last_part;
    size_t partial;  // index of the first of its partial states, when split
};

Status check_call(const AttentionCall& call, const PagedCache& cache) {
    if (const Status status = check_cache(cache)) return status;
    if (call.query_type != static_cast<int>(DType::f32) &&
        call.query_type != static_cast<int>(DType::bf16))
        return fail(kBadArgument, "attention: the query is of type %d; use f32 or bf16",
                    call.query_type);
    if (call.sequences < 0 || call.tokens < 0 || call.heads < 1 || call.heads % cache.heads)
        return fail(kBadArgument,
                    "attention: %d query heads do not divide among %d key heads (%d sequences, "
                    "%d tokens)",
                    call.heads, cache.heads, call.sequences, call.tokens);
    const int64_t value_size = cache.head_size - cache.rope_size;
    if (call.query_token_stride < static_cast<int64_t>(call.heads) * cache.head_size ||
        call.out_token_stride < call.heads * value_size)
        return fail(kBadArgument, "attention: rows of the query or the output overlap");
    if (!(call.softcap >= 0.f) || call.window < 0 || call.table_width < 0 ||
        call.table_stride < call.table_width)
        return fail(kBadArgument, "attention: softcap %g, window %d, block table of %d columns",
                    static_cast<double>(call.softcap), call.window, call.table_width);
    return kOk;
}

Status check_sequence(const AttentionCall& call, const PagedCache& cache, int i) {
    const int begin = call.query_start[i], end = call.query_start[i + 1];
    if (begin < 0 || end < begin || end > call.tokens)
        return fail(kBadArgument, "attention: sequence %d has query tokens %d to %d of %d", i,
                    begin, end, call.tokens);
    if (end == begin) return kOk;
    const int length = call.seq_lens[i];
    if (length < end - begin)
        return fail(kBadArgument, "attention: sequence %d is %d tokens long but has %d queries", i,
                    length, end - begin);
    if (length > kMostTokens)
        return fail(kBadArgument, "attention: sequence %d is %d tokens long; at most %d", i, length,
                    kMostTokens);
    const int blocks = (length + cache.block_size - 1) / cache.block_size;
    if (blocks > call.table_width)
        return fail(kBadArgument, "attention: sequence %d needs %d blocks, its table has %d", i,
                    blocks, call.table_width);
    const int32_t* table = call.block_table + i * call.table_stride;
    for (int b = 0; b < blocks; ++b)
        if (table[b] < 0 || table[b] >= cache.blocks)
            return fail(kBadArgument, "attention: sequence %d names block %d of %d", i, table[b],
                        cache.blocks);
    return kOk;
}

class Plan {
  public:
    Plan(const AttentionCall& call, const PagedCache& cache)
        : call_(call), cache_(cache), kernels_(selected_kernels()) {
        shape_.query_type = static_cast<DType>(call.query_type);
        shape_.layout = layout_of(cache);
        shape_.value_size = cache.head_size - cache.rope_size;
        shape_.rope_size = cache.rope_size;
        shape_.scale = call.scale;
        shape_.softcap = call.softcap;
        shape_.window = call.window;
        shape_.causal = call.causal != 0;
        const int shared = call.heads / cache.heads;
        heads_ = std::min(shared, kMostHeads);
        tokens_ = std::max(1, kRows / heads_);
        for (int i = 0; i < call.sequences; ++i) add_sequence(i, shared);
    }

    Status run() {
        const int64_t units = static_cast<int64_t>(units_.size());
        if (units < static_cast<int64_t>(kUnitsPerThread) * pool_threads() && pool_threads() > 1)
            return run_split();
        return run_items(units, [&](int64_t i) {
            const Unit& unit = units_[i];
            return item(unit, unit.first_part, unit.last_part, nullptr);
        });
    }

  private:
    void add_sequence(int i, int shared) {
        const int queries = call_.query_start[i + 1] - call_.query_start[i];
        const int before = call_.seq_lens[i] - queries;
        for (int t = 0; t < queries; t += tokens_) {
            Unit unit{};
            unit.sequence = i;
            unit.first_token = t;
            unit.tokens = std::min(tokens_, queries - t);
            const int low = shape_.window ? std::max(0, before + t - shape_.window + 1) : 0;
            const int high = shape_.causal ? before + t + unit.tokens : call_.seq_lens[i];
            unit.first_part = low / kPart;
            unit.last_part = parts(high);
            for (unit.key_head = 0; unit.key_head < cache_.heads; ++unit.key_head) {
                for (int h = 0; h < shared; h += heads_) {
                    unit.first_head = unit.key_head * shared + h;
                    unit.heads = std::min(heads_, shared - h);
                    units_.push_back(unit);
                }
            }
        }
    }

    AttentionItem item(const Unit& unit, int first_part, int last_part, float* partial) const {
        const int i = unit.sequence;
        const int64_t token = call_.query_start[i] + unit.first_token;
        const int bytes = element_bytes(shape_.query_type);
        const int queries = call_.query_start[i + 1] - call_.query_start[i];
        AttentionItem item{};
        item.query = static_cast<const char*>(call_.query) +
                     bytes * (token * call_.query_token_stride +
                              static_cast<int64_t>(unit.first_head) * shape_.layout.head_size);
        item.query_token_stride = call_.query_token_stride;
        item.out = static_cast<char*>(call_.out) +
                   bytes * (token * call_.out_token_stride +
                            static_cast<int64_t>(unit.first_head) * shape_.value_size);
        item.out_token_stride = call_.out_token_stride;
        item.tokens = unit.tokens;
        item.heads = unit.heads;
        item.seq_len = call_.seq_lens[i];
        item.first_position = item.seq_len - queries + unit.first_token;
        item.first_part = first_part;
        item.last_part = last_part;
        item.region = cache_.data + unit.key_head * cache_.head_stride;
        item.block_stride = cache_.block_stride;
        item.blocks = call_.block_table + i * call_.table_stride;
        item.alibi = call_.alibi ? call_.alibi + unit.first_head : nullptr;
        item.partial = partial;
        return item;
    }

    char* worker_memory() const {
        static thread_local Scratch scratch;
        return static_cast<char*>(
            scratch.get(kernels_.scratch_bytes(shape_, std::max(tokens_ * heads_, 1))));
    }

    template <class MakeItem>
    Status run_items(int64_t count, MakeItem make) const {
        bool starved = false;
        parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
            char* memory = worker_memory();
            if (!memory) {
                __atomic_store_n(&starved, true, __ATOMIC_RELAXED);
                return;
            }
            for (int64_t i = begin; i < end; ++i) kernels_.run(shape_, make(i), memory);
        });
        return starved ? fail(kOutOfMemory, "attention: no memory for a thread's rows") : kOk;
    }

    // Every part of every unit is an item; the second loop merges each unit's parts in order.
    Status run_split() {
        struct Piece {
            const Unit* unit;
            int part;
        };
        std::vector<Piece> pieces;
        for (Unit& unit : units_) {
            unit.partial = pieces.size();
            for (int p = unit.first_part; p < unit.last_part; ++p) pieces.push_back({&unit, p});
        }
        const size_t stride = partial_floats(tokens_ * heads_, shape_.value_size);
        static thread_local Scratch scratch;
        float* states = static_cast<float*>(scratch.get(sizeof(float) * stride * pieces.size()));
        if (!states) return fail(kOutOfMemory, "attention: no memory for split contexts");
        const Status status = run_items(pieces.size(), [&](int64_t i) {
            const Piece& piece = pieces[i];
            return item(*piece.unit, piece.part, piece.part + 1, states + i * stride);
        });
        if (status) return status;
        parallel_for(units_.size(), 1, [&](int64_t begin, int64_t end, int) {
            char* memory = worker_memory();  // already there: the first loop would have failed
            for (int64_t i = begin; memory && i < end; ++i) {
                const Unit& unit = units_[i];
                kernels_.merge(shape_, item(unit, unit.first_part, unit.last_part, nullptr),
                               states + unit.partial * stride, stride,
                               unit.last_part - unit.first_part, memory);
            }
        });
        return kOk;
    }

    const AttentionCall& call_;
    const PagedCache& cache_;
    const AttentionKernels& kernels_;
    AttentionShape shape_{};
    int heads_, tokens_;  // of a unit, at most
    std::vector<Unit> units_;
};

}  // namespace

Status attend(const AttentionCall& call, const PagedCache& cache) {
    if (const Status status = check_call(call, cache)) return status;
    for (int i = 0; i < call.sequences; ++i)
        if (const Status status = check_sequence(call, cache, i)) return status;
    return Plan(call, cache).run();
}

}  // namespace tunan

TUNAN_API int tunan_attention(const tunan::AttentionCall* call, const tunan::PagedCache* cache) {
    return tunan::guarded([&] { return tunan::attend(*call, *cache); });
}
