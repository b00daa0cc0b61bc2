#include "dense/dense.h"

#include <algorithm>

#include "dense/kernels.h"
#include "guard.h"
#include "memory.h"
#include "pool.h"

namespace tunan {

#define TUNAN_DECLARE(isa)               \
    namespace isa {                      \
    const DenseKernels& dense_kernels(); \
    }
TUNAN_ISAS(TUNAN_DECLARE)
#undef TUNAN_DECLARE

namespace {

// What a chunk should read at least, so that taking it costs nothing in comparison; and outputs of
// a chunk at least, so that rows of x are not read for a few of them.
constexpr int64_t kChunkBytes = 64 << 10;
constexpr int64_t kOutputs = 32;

const DenseKernels& selected_kernels() {
    switch (selected_isa()) {
#define TUNAN_CASE(isa) \
    case Isa::isa: return isa::dense_kernels();
        TUNAN_ISAS(TUNAN_CASE)
#undef TUNAN_CASE
        case Isa::count: break;
    }
    return scalar::dense_kernels();
}

Status check(const DenseCall& call) {
    if (call.type != FloatType::f32 && call.type != FloatType::bf16)
        return fail(kBadArgument, "dense: values of type %d; use f32 or bf16",
                    static_cast<int>(call.type));
    if (call.rows < 0 || call.inputs < 1 || call.outputs < 1 || call.batches < 1)
        return fail(kBadArgument, "dense: %lld rows of %lld by %lld, %lld times",
                    static_cast<long long>(call.rows), static_cast<long long>(call.inputs),
                    static_cast<long long>(call.outputs), static_cast<long long>(call.batches));
    if (call.weight_stride < (call.transposed ? call.outputs : call.inputs))
        return fail(kBadArgument, "dense: rows of weights overlap");
    return kOk;
}

}  // namespace

Status dense(const DenseCall& call) {
    if (const Status status = check(call)) return status;
    if (call.rows == 0) return kOk;
    const DenseKernels& kernels = selected_kernels();
    const int64_t padded = dense_padded(call.inputs), rows = call.batches * call.rows;
    static thread_local Scratch scratch;
    float* x = static_cast<float*>(scratch.get(rows * padded * sizeof(float)));
    if (!x)
        return fail(kOutOfMemory, "dense: no memory for %lld rows", static_cast<long long>(rows));
    parallel_for(rows, std::max<int64_t>(1, kChunkBytes / (padded * int64_t{sizeof(float)})),
                 [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; i++)
                         kernels.widen(call, i / call.rows, i % call.rows, x + i * padded);
                 });
    const int64_t parts = (call.outputs + kOutputs - 1) / kOutputs;
    const int64_t part_bytes = kOutputs * call.inputs * float_bytes(call.type);
    parallel_for(call.batches * parts, std::max<int64_t>(1, kChunkBytes / part_bytes),
                 [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; i++) {
                         const int64_t batch = i / parts, first = i % parts * kOutputs;
                         kernels.run(call, batch, x + batch * call.rows * padded, first,
                                     std::min(first + kOutputs, call.outputs));
                     }
                 });
    return kOk;
}

}  // namespace tunan

TUNAN_API int tunan_dense(const tunan::DenseCall* call) {
    return tunan::guarded([&] { return tunan::dense(*call); });
}
