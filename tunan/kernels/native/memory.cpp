#include "memory.h"

#include <atomic>

#include "guard.h"
#include "pool.h"
#include "status.h"

// Asks for 2 MiB pages for memory of the caller's, before it is first written.
TUNAN_API void tunan_advise_huge_pages(void* data, int64_t bytes) {
    tunan::advise_huge_pages(data, static_cast<size_t>(bytes));
}

// Reads `bytes` (a multiple of 8) with all threads, and does nothing with them but to return their
// exclusive or: what memory allows, for benchmarks to compare with. 0 if there can be no threads
// (tunan_last_error).
TUNAN_API uint64_t tunan_read_memory(const uint64_t* data, int64_t bytes) {
    constexpr int64_t words_a_chunk = 1 << 15;
    constexpr int kAtOnce = 8;    // a cache line
    constexpr int kAhead = 1024;  // as far as the kernels ask for what they read next
    std::atomic<uint64_t> all{0};
    tunan::guarded([&] {
        tunan::parallel_for(bytes / 8, words_a_chunk, [&](int64_t begin, int64_t end, int) {
            uint64_t together[kAtOnce] = {}, rest = 0;
            int64_t i = begin;
            for (; i + kAtOnce <= end; i += kAtOnce) {
                __builtin_prefetch(data + i + kAhead);
                for (int j = 0; j < kAtOnce; j++) together[j] ^= data[i + j];
            }
            for (; i < end; i++) rest ^= data[i];
            for (const uint64_t part : together) rest ^= part;
            all.fetch_xor(rest, std::memory_order_relaxed);
        });
        return tunan::kOk;
    });
    return all.load();
}
