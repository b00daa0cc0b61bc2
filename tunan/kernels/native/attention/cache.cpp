#include "attention/attention.h"

namespace tunan {

constexpr int kMaxHeadSize = 1024;
constexpr int kMaxBlockSize = 1 << 16;

CacheLayout layout_of(const PagedCache& cache) {
    return {static_cast<DType>(cache.type), cache.head_size, cache.block_size};
}

int64_t region_bytes(const PagedCache& cache) {
    const CacheLayout layout = layout_of(cache);
    if (cache.rope_size == 0) return static_cast<int64_t>(layout.region_bytes());
    const bool scaled = layout.type == DType::int8;
    return static_cast<int64_t>(layout.key_bytes()) +
           (scaled ? 2 * static_cast<int64_t>(sizeof(float)) * cache.block_size : 0);
}

static Status check_sizes(const PagedCache& cache) {
    if (cache.type < 0 || cache.type > static_cast<int>(DType::int8))
        return fail(kBadArgument, "cache: there is no type %d", cache.type);
    if (cache.block_size < kGroup || cache.block_size % kGroup || cache.block_size > kMaxBlockSize)
        return fail(kBadArgument, "cache: the block size is %d tokens; use a multiple of %d",
                    cache.block_size, kGroup);
    if (cache.head_size < kGroup || cache.head_size % kGroup || cache.head_size > kMaxHeadSize)
        return fail(kBadArgument, "cache: the head size is %d; use a multiple of %d up to %d",
                    cache.head_size, kGroup, kMaxHeadSize);
    if (cache.rope_size < 0 || cache.rope_size % kGroup || cache.rope_size >= cache.head_size)
        return fail(kBadArgument, "cache: the rope size is %d of a row of %d; use a multiple of %d",
                    cache.rope_size, cache.head_size, kGroup);
    if (cache.heads < 1 || (cache.rope_size && cache.heads != 1))
        return fail(kBadArgument, "cache: it has %d heads%s", cache.heads,
                    cache.rope_size ? ", but a latent cache has 1" : "");
    return kOk;
}

Status check_cache(const PagedCache& cache) {
    if (const Status status = check_sizes(cache)) return status;
    if (cache.blocks < 0 || cache.block_stride < 0 || cache.head_stride < 0 ||
        cache.block_stride % 4 || cache.head_stride % 4)
        return fail(kBadArgument, "cache: %d blocks %lld bytes apart, heads %lld bytes apart",
                    cache.blocks, static_cast<long long>(cache.block_stride),
                    static_cast<long long>(cache.head_stride));
    if (reinterpret_cast<uintptr_t>(cache.data) % 4)
        return fail(kBadArgument, "cache: it does not start at a multiple of 4 bytes");
    if (cache.blocks == 0) return kOk;
    int64_t blocks, heads, end;
    if (__builtin_mul_overflow(cache.blocks - 1, cache.block_stride, &blocks) ||
        __builtin_mul_overflow(cache.heads - 1, cache.head_stride, &heads) ||
        __builtin_add_overflow(blocks, heads, &end) ||
        __builtin_add_overflow(end, region_bytes(cache), &end))
        return fail(kBadArgument, "cache: %d blocks %lld bytes apart, %d heads %lld bytes apart",
                    cache.blocks, static_cast<long long>(cache.block_stride), cache.heads,
                    static_cast<long long>(cache.head_stride));
    if (!cache.data || end > cache.bytes)
        return fail(kBadArgument,
                    "cache: its last block ends at byte %lld, but it has %lld; check the block "
                    "size, head size and type",
                    static_cast<long long>(end), static_cast<long long>(cache.bytes));
    return kOk;
}

}  // namespace tunan

TUNAN_API int64_t tunan_cache_region_bytes(const tunan::PagedCache* cache) {
    return tunan::check_sizes(*cache) ? -1 : tunan::region_bytes(*cache);
}
