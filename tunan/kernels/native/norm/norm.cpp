#include "norm/norm.h"

#include <algorithm>

#include "guard.h"
#include "memory.h"
#include "norm/kernels.h"
#include "pool.h"

namespace tunan {

#define TUNAN_DECLARE(isa)             \
    namespace isa {                    \
    const NormKernels& norm_kernels(); \
    }
TUNAN_ISAS(TUNAN_DECLARE)
#undef TUNAN_DECLARE

namespace {

// What a chunk should read at least, so that taking it costs nothing in comparison.
constexpr int64_t kChunkBytes = 16 << 10;

const NormKernels& selected_kernels() {
    switch (selected_isa()) {
#define TUNAN_CASE(isa) \
    case Isa::isa: return isa::norm_kernels();
        TUNAN_ISAS(TUNAN_CASE)
#undef TUNAN_CASE
        case Isa::count: break;
    }
    return scalar::norm_kernels();
}

Status check(const char* name, int type, int64_t rows, int64_t size, const void* out,
             const QuantizedRows& quantized) {
    if (!is_float_type(type)) return fail(kBadArgument, "%s: there is no type %d", name, type);
    if (rows < 0 || size < 1)
        return fail(kBadArgument, "%s: %lld rows of %lld", name, static_cast<long long>(rows),
                    static_cast<long long>(size));
    const int parts =
        (quantized.values != nullptr) + (quantized.scales != nullptr) + (quantized.sums != nullptr);
    if (parts % 3 || (rows > 0 && !out && !parts))
        return fail(kBadArgument, "%s: give an output, or values, scales and sums, or both", name);
    return kOk;
}

// Calls use(row, work) for every row.
template <class Use>
Status each_row(int64_t rows, int64_t size, Use use) {
    bool starved = false;
    const int64_t grain = std::max<int64_t>(1, kChunkBytes / (size * int64_t{sizeof(float)}));
    parallel_for(rows, grain, [&](int64_t begin, int64_t end, int) {
        static thread_local Scratch scratch;
        float* work = static_cast<float*>(scratch.get(size * sizeof(float)));
        if (!work) {
            __atomic_store_n(&starved, true, __ATOMIC_RELAXED);
            return;
        }
        for (int64_t row = begin; row < end; ++row) use(row, work);
    });
    return starved ? fail(kOutOfMemory, "no memory for a row of %lld", static_cast<long long>(size))
                   : kOk;
}

}  // namespace

Status rms_norm(const NormCall& call) {
    if (const Status status =
            check("rms_norm", call.type, call.rows, call.size, call.out, call.quantized))
        return status;
    if (call.x_stride < call.size || (call.residual && call.residual_stride < call.size) ||
        (call.out && call.out_stride < call.size))
        return fail(kBadArgument, "rms_norm: rows overlap");
    const NormKernels& kernels = selected_kernels();
    return each_row(call.rows, call.size,
                    [&](int64_t row, float* work) { kernels.norm_row(call, row, work); });
}

Status swiglu(const SwigluCall& call) {
    if (const Status status =
            check("swiglu", call.type, call.rows, call.size, call.out, call.quantized))
        return status;
    if (call.x_stride < 2 * call.size || (call.out && call.out_stride < call.size))
        return fail(kBadArgument, "swiglu: rows overlap");
    const NormKernels& kernels = selected_kernels();
    return each_row(call.rows, call.size,
                    [&](int64_t row, float* work) { kernels.swiglu_row(call, row, work); });
}

}  // namespace tunan

TUNAN_API int tunan_rms_norm(const tunan::NormCall* call) {
    return tunan::guarded([&] { return tunan::rms_norm(*call); });
}

TUNAN_API int tunan_swiglu(const tunan::SwigluCall* call) {
    return tunan::guarded([&] { return tunan::swiglu(*call); });
}
