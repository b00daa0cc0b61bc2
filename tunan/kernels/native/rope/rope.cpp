#include "rope/rope.h"

#include "guard.h"
#include "pool.h"
#include "rope/kernels.h"

namespace tunan {

#define TUNAN_DECLARE(isa)             \
    namespace isa {                    \
    const RopeKernels& rope_kernels(); \
    }
TUNAN_ISAS(TUNAN_DECLARE)
#undef TUNAN_DECLARE

namespace {

constexpr int64_t kTokensAtOnce = 4;
constexpr int kMostHeadSize = 1024;

const RopeKernels& selected_kernels() {
    switch (selected_isa()) {
#define TUNAN_CASE(isa) \
    case Isa::isa: return isa::rope_kernels();
        TUNAN_ISAS(TUNAN_CASE)
#undef TUNAN_CASE
        case Isa::count: break;
    }
    return scalar::rope_kernels();
}

Status check_rotation(const Rotation& r, int64_t tokens) {
    if (!is_float_type(r.type) || !is_float_type(r.cos_sin_type))
        return fail(kBadArgument, "rotation: there is no type %d or %d", r.type, r.cos_sin_type);
    if (r.rotary_size < 2 || r.rotary_size % 2 || r.rotary_size > r.head_size ||
        r.head_size > kMostHeadSize)
        return fail(kBadArgument, "rotation: %d elements of heads of %d", r.rotary_size,
                    r.head_size);
    if ((r.query && (r.query_heads < 0 || r.query_head_stride < r.rotary_size)) ||
        (r.key && (r.key_heads < 0 || r.key_head_stride < r.rotary_size)))
        return fail(kBadArgument, "rotation: heads overlap");
    for (int64_t t = 0; t < tokens; ++t)
        if (r.positions[t] < 0 || r.positions[t] >= r.max_position)
            return fail(kBadArgument, "rotation: token %lld is at position %lld of %lld",
                        static_cast<long long>(t), static_cast<long long>(r.positions[t]),
                        static_cast<long long>(r.max_position));
    return kOk;
}

Status check_write(const CacheWrite& write, const PagedCache* cache, int64_t tokens) {
    if (!cache) return fail(kBadArgument, "cache write: there is no cache");
    if (const Status status = check_cache(*cache)) return status;
    if (write.type != static_cast<int>(FloatType::f32) &&
        write.type != static_cast<int>(FloatType::bf16))
        return fail(kBadArgument, "cache write: keys are of type %d; use f32 or bf16", write.type);
    const int64_t slots = static_cast<int64_t>(cache->blocks) * cache->block_size;
    for (int64_t t = 0; t < tokens; ++t)
        if (write.slots[t] >= slots)
            return fail(kBadArgument, "cache write: token %lld goes to slot %lld of %lld",
                        static_cast<long long>(t), static_cast<long long>(write.slots[t]),
                        static_cast<long long>(slots));
    return kOk;
}

}  // namespace

Status rotate_and_write(const Rotation* rotation, const CacheWrite* write, const PagedCache* cache,
                        int64_t tokens) {
    if (tokens < 0)
        return fail(kBadArgument, "rotation: %lld tokens", static_cast<long long>(tokens));
    if (rotation)
        if (const Status status = check_rotation(*rotation, tokens)) return status;
    if (write)
        if (const Status status = check_write(*write, cache, tokens)) return status;
    const RopeKernels& kernels = selected_kernels();
    parallel_for(tokens, kTokensAtOnce, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
            if (rotation) kernels.rotate_token(*rotation, t);
            if (write && write->slots[t] >= 0) kernels.write_token(*write, *cache, t);
        }
    });
    return kOk;
}

}  // namespace tunan

TUNAN_API int tunan_rotate_and_write(const tunan::Rotation* rotation,
                                     const tunan::CacheWrite* write, const tunan::PagedCache* cache,
                                     int64_t tokens) {
    return tunan::guarded([&] { return tunan::rotate_and_write(rotation, write, cache, tokens); });
}
