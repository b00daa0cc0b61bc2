#include "moe/moe.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "guard.h"
#include "linear/linear.h"
#include "memory.h"
#include "moe/kernels.h"
#include "moe/routes.h"
#include "norm/norm.h"
#include "pool.h"

namespace tunan {

#define TUNAN_DECLARE(isa)                 \
    namespace isa {                        \
    const ExpertKernels& expert_kernels(); \
    }
TUNAN_ISAS(TUNAN_DECLARE)
#undef TUNAN_DECLARE

namespace {

// Slots that are worked on at once, so that a long prompt needs no more memory for what lies
// between gate and down than a middling one. An expert's slots are never parted.
constexpr int64_t kMostSlots = 4096;
constexpr int64_t kMostRows = INT32_MAX;
constexpr int64_t kChunkBytes = 16 << 10;

const ExpertKernels& selected_kernels() {
    switch (selected_isa()) {
#define TUNAN_CASE(isa) \
    case Isa::isa: return isa::expert_kernels();
        TUNAN_ISAS(TUNAN_CASE)
#undef TUNAN_CASE
        case Isa::count: break;
    }
    return scalar::expert_kernels();
}

// Consecutive experts and their slots.
struct Wave {
    int32_t first_expert, last_expert;
    int64_t first, last;

    int64_t slots() const { return last - first; }
};

std::vector<Wave> waves_of(const Routes& routes, int32_t experts) {
    std::vector<Wave> waves;
    int32_t begin = 0;
    for (int32_t e = 1; e <= experts; e++) {
        const int64_t first = routes.first_slot[begin];
        const bool full = e < experts && routes.first_slot[e + 1] - first > kMostSlots;
        if (e < experts && !full) continue;
        if (routes.first_slot[e] > first) waves.push_back({begin, e, first, routes.first_slot[e]});
        begin = e;
    }
    return waves;
}

struct Rows {
    int8_t* values;
    float* scales;
    int32_t* sums;
};

// Of one call; kept by the calling thread for the next.
struct Buffers {
    Rows tokens;    // x, quantised
    Rows between;   // SwiGLU's results, quantised, of a wave's slots
    char* wide;     // gate and up of a wave's slots
    char* down;     // of a wave's slots
    float* totals;  // [rows][hidden]

    bool get(const ExpertsCall& call, int64_t slots) {
        static thread_local Scratch scratch;
        const int64_t bytes = float_bytes(static_cast<FloatType>(call.type));
        const int64_t hidden = call.hidden, intermediate = call.intermediate;
        const size_t sizes[] = {
            rows_bytes(call.rows, hidden),
            rows_bytes(slots, intermediate),
            round_up(slots * 2 * intermediate * bytes, kCacheLine),
            round_up(slots * hidden * bytes, kCacheLine),
            round_up(call.rows * hidden * sizeof(float), kCacheLine),
        };
        size_t total = 0;
        for (const size_t size : sizes) total += size;
        char* at = static_cast<char*>(scratch.get(total));
        if (!at) return false;
        tokens = rows_at(at, call.rows, hidden);
        between = rows_at(at += sizes[0], slots, intermediate);
        wide = at += sizes[1];
        down = at += sizes[2];
        totals = reinterpret_cast<float*>(at += sizes[3]);
        return true;
    }

  private:
    static size_t values_bytes(int64_t rows, int64_t inputs) {
        return round_up(rows * activation_stride(inputs), kCacheLine);
    }
    static size_t scales_bytes(int64_t rows) { return round_up(rows * sizeof(float), kCacheLine); }
    static size_t rows_bytes(int64_t rows, int64_t inputs) {
        return values_bytes(rows, inputs) + scales_bytes(rows) +
               round_up(rows * activation_sums(inputs) * sizeof(int32_t), kCacheLine);
    }
    static Rows rows_at(char* at, int64_t rows, int64_t inputs) {
        char* scales = at + values_bytes(rows, inputs);
        return {reinterpret_cast<int8_t*>(at), reinterpret_cast<float*>(scales),
                reinterpret_cast<int32_t*>(scales + scales_bytes(rows))};
    }
};

class Experts {
  public:
    explicit Experts(const ExpertsCall& call)
        : call_(call), type_(static_cast<FloatType>(call.type)), kernels_(selected_kernels()) {}

    Status run() {
        if (const Status status = check()) return status;
        if (call_.rows == 0) return kOk;
        if (const Status status = sort_routes(call_, &routes_)) return status;
        const std::vector<Wave> waves = waves_of(routes_, call_.count);
        int64_t most = 0;
        for (const Wave& wave : waves) most = std::max(most, wave.slots());
        if (!buffers_.get(call_, most))
            return fail(kOutOfMemory, "experts: no memory for %lld tokens at %lld experts at once",
                        static_cast<long long>(call_.rows), static_cast<long long>(most));
        quantize_rows(call_.x, type_, call_.x_stride, call_.rows, call_.hidden,
                      buffers_.tokens.values, buffers_.tokens.scales, buffers_.tokens.sums);
        std::memset(buffers_.totals, 0, call_.rows * call_.hidden * sizeof(float));
        for (const Wave& wave : waves) {
            if (const Status status = run(wave)) return status;
            add(wave);
        }
        store();
        return kOk;
    }

  private:
    Status check() const {
        if (!is_float_type(call_.type))
            return fail(kBadArgument, "experts: there is no type %d", call_.type);
        if (call_.rows < 0 || call_.rows > kMostRows / std::max(1, call_.top_k) ||
            call_.top_k < 1 || call_.count < 1 || call_.hidden < 1 || call_.intermediate < 1)
            return fail(kBadArgument, "experts: %lld rows at %d of %d experts of %d x %d",
                        static_cast<long long>(call_.rows), call_.top_k, call_.count,
                        call_.intermediate, call_.hidden);
        if (call_.x_stride < call_.hidden || call_.out_stride < call_.hidden)
            return fail(kBadArgument, "experts: rows overlap");
        if (const Status status = check_weights("gate_up", call_.gate_up, call_.gate_up_bytes,
                                                2 * int64_t{call_.intermediate}, call_.hidden))
            return status;
        return check_weights("down", call_.down, call_.down_bytes, call_.hidden,
                             call_.intermediate);
    }

    // The first expert's: that the others are like it, linear_groups() checks.
    Status check_weights(const char* name, const void* packed, int64_t bytes, int64_t outputs,
                         int64_t inputs) const {
        const PackedHeader* header = read_header(packed);
        if (!header) return kBadPacking;
        if (header->outputs != outputs || header->inputs != inputs)
            return fail(kBadArgument, "experts: %s is packed %lld x %lld; %lld x %lld is needed",
                        name, static_cast<long long>(header->outputs),
                        static_cast<long long>(header->inputs), static_cast<long long>(outputs),
                        static_cast<long long>(inputs));
        if (header->bytes != bytes)
            return fail(kBadArgument, "experts: %s takes %lld bytes, but the next one is %lld on",
                        name, static_cast<long long>(header->bytes), static_cast<long long>(bytes));
        return kOk;
    }

    Status run(const Wave& wave) {
        if (const Status status =
                multiply(wave, call_.gate_up, call_.gate_up_bytes, buffers_.tokens, call_.hidden,
                         routes_.token.data() + wave.first, buffers_.wide, 2 * call_.intermediate))
            return status;
        SwigluCall activate{};
        activate.x = buffers_.wide;
        activate.x_stride = 2 * int64_t{call_.intermediate};
        activate.quantized = {buffers_.between.values, buffers_.between.scales,
                              buffers_.between.sums};
        activate.rows = wave.slots();
        activate.size = call_.intermediate;
        activate.type = call_.type;
        if (const Status status = swiglu(activate)) return status;
        return multiply(wave, call_.down, call_.down_bytes, buffers_.between, call_.intermediate,
                        nullptr, buffers_.down, call_.hidden);
    }

    Status multiply(const Wave& wave, const void* packed, int64_t stride, const Rows& x,
                    int64_t inputs, const int32_t* sources, void* out, int64_t outputs) {
        groups_.clear();
        for (int32_t e = wave.first_expert; e < wave.last_expert; e++) {
            const int64_t rows = routes_.first_slot[e + 1] - routes_.first_slot[e];
            if (rows)
                groups_.push_back({static_cast<const char*>(packed) + e * stride, nullptr, rows});
        }
        const Activations from = {x.values, x.scales, x.sums, wave.slots(), inputs};
        return linear_groups(groups_.data(), groups_.size(), from, sources, {out, type_, outputs});
    }

    // Adds what a wave found to its tokens' totals.
    void add(const Wave& wave) {
        each_token([&](int64_t m) {
            for (int64_t i = routes_.first_of[m]; i < routes_.first_of[m + 1]; i++) {
                const int64_t slot = routes_.slot_of[i];
                if (slot < wave.first || slot >= wave.last) continue;
                const char* row =
                    buffers_.down + (slot - wave.first) * call_.hidden * float_bytes(type_);
                kernels_.add_weighted(buffers_.totals + m * call_.hidden, row, type_,
                                      routes_.weight[slot], call_.hidden);
            }
        });
    }

    void store() {
        each_token([&](int64_t m) {
            kernels_.store(
                buffers_.totals + m * call_.hidden,
                static_cast<char*>(call_.out) + m * call_.out_stride * float_bytes(type_), type_,
                call_.hidden);
        });
    }

    template <class Use>
    void each_token(Use use) {
        const int64_t row_bytes = call_.hidden * int64_t{sizeof(float)};
        parallel_for(call_.rows, std::max<int64_t>(1, kChunkBytes / row_bytes),
                     [&](int64_t begin, int64_t end, int) {
                         for (int64_t m = begin; m < end; m++) use(m);
                     });
    }

    const ExpertsCall& call_;
    const FloatType type_;
    const ExpertKernels& kernels_;
    Routes routes_;
    Buffers buffers_{};
    std::vector<RowGroup> groups_;
};

}  // namespace

Status run_experts(const ExpertsCall& call) { return Experts(call).run(); }

void add_up_experts(const AddExpertsCall& call) {
    const ExpertKernels& kernels = selected_kernels();
    parallel_for(call.size, kChunkBytes,
                 [&](int64_t begin, int64_t end, int) { kernels.add_up(call, begin, end); });
}

}  // namespace tunan

TUNAN_API int tunan_experts(const tunan::ExpertsCall* call) {
    return tunan::guarded([&] { return tunan::run_experts(*call); });
}
