// Plain loops that the compiler vectorises, one element after the other: the same bits everywhere.
#include "elements.h"
#include "moe/kernels.h"

namespace tunan::TUNAN_ISA {
namespace {

template <FloatType kType>
void add_weighted(float* totals, const void* row, float weight, int64_t size) {
    for (int64_t i = 0; i < size; i++) totals[i] += weight * load_one(row, kType, i);
}

template <FloatType kType>
void store(const float* totals, void* row, int64_t size) {
    for (int64_t i = 0; i < size; i++) store_one(row, kType, i, totals[i]);
}

template <FloatType kType>
void add_up(const AddExpertsCall& call, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
        store_one(call.routed, kType, i, load_one(call.routed, kType, i) * call.scale);
        if (!call.shared) continue;
        store_one(call.routed, kType, i,
                  load_one(call.shared, kType, i) + load_one(call.routed, kType, i));
    }
}

void add_weighted_of_any(float* totals, const void* row, FloatType type, float weight,
                         int64_t size) {
    switch (type) {
        case FloatType::f32: return add_weighted<FloatType::f32>(totals, row, weight, size);
        case FloatType::bf16: return add_weighted<FloatType::bf16>(totals, row, weight, size);
        case FloatType::f16: return add_weighted<FloatType::f16>(totals, row, weight, size);
    }
}

void store_as_any(const float* totals, void* row, FloatType type, int64_t size) {
    switch (type) {
        case FloatType::f32: return store<FloatType::f32>(totals, row, size);
        case FloatType::bf16: return store<FloatType::bf16>(totals, row, size);
        case FloatType::f16: return store<FloatType::f16>(totals, row, size);
    }
}

void add_up_any(const AddExpertsCall& call, int64_t first, int64_t last) {
    switch (call.type) {
        case FloatType::f32: return add_up<FloatType::f32>(call, first, last);
        case FloatType::bf16: return add_up<FloatType::bf16>(call, first, last);
        case FloatType::f16: return add_up<FloatType::f16>(call, first, last);
    }
}

}  // namespace

const ExpertKernels& expert_kernels() {
    static constexpr ExpertKernels kernels = {add_weighted_of_any, store_as_any, add_up_any};
    return kernels;
}

}  // namespace tunan::TUNAN_ISA
