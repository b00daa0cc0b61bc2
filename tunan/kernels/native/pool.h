// A pool of threads for loops whose turns are independent.
//
// A loop is cut into chunks that the threads take one at a time, and the caller takes part: a
// thread that another process keeps from running costs its current chunk, not its share. Idle
// threads spin for a bounded time, since the next layer's loop follows within microseconds, and
// then sleep. A loop inside a loop, or one that comes while another thread's is running, runs on
// its caller alone. After fork() the child starts threads of its own with its first loop.
#pragma once

#include <cstdint>
#include <type_traits>

#include "status.h"

namespace tunan {

using LoopBody = void (*)(void* context, int64_t begin, int64_t end, int worker);

void run_loop(int64_t tasks, int64_t grain, LoopBody body, void* context);

// Threads that a loop may use, the caller's included.
int pool_threads();

// Calls function(begin, end, worker) for chunks of at most `grain` that cover [0, tasks) once each;
// worker is below pool_threads() and no two calls of one loop run at the same time with the same.
// Which thread gets which chunk differs from run to run: a result must not depend on it.
template <class Function>
void parallel_for(int64_t tasks, int64_t grain, Function&& function) {
    using Plain = std::remove_reference_t<Function>;
    const LoopBody body = [](void* context, int64_t begin, int64_t end, int worker) {
        (*static_cast<Plain*>(context))(begin, end, worker);
    };
    run_loop(tasks, grain, body, const_cast<void*>(static_cast<const void*>(&function)));
}

}  // namespace tunan

// `threads` threads, the caller's included. Thread i > 0 is bound to CPU cpus[i] if `cpus` (of
// `threads` entries) is given; binding the caller (cpus[0]) is the caller's business. Idle threads
// spin for `spin_us` microseconds. No loop may be running. One thread before the first call.
TUNAN_API int tunan_pool_configure(int threads, const int* cpus, int spin_us);
TUNAN_API int tunan_pool_threads();
