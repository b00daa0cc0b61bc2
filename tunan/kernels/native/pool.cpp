#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "isa.h"
#include "memory.h"

namespace tunan {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
    int threads = 1;
    std::vector<int> cpus;
    std::chrono::microseconds spin{0};
};

// Until `done()`, or the time is over; says which.
template <class Done>
bool spin_until(Done done, Clock::duration limit) {
    const Clock::time_point end = Clock::now() + limit;
    do {
        for (int i = 0; i < 64; i++) {
            if (done()) return true;
            cpu_relax();
        }
    } while (Clock::now() < end);
    return done();
}

class Pool {
  public:
    explicit Pool(Settings settings) : settings_(std::move(settings)) {
        try {
            for (int worker = 1; worker < settings_.threads; worker++) {
                threads_.emplace_back([this, worker] { work(worker); });
            }
        } catch (const std::system_error&) {
            end_threads();
            throw;
        }
    }

    ~Pool() { end_threads(); }

    const Settings& settings() const { return settings_; }

    void run(int64_t tasks, int64_t grain, LoopBody body, void* context) {
        const bool worth_sharing = tasks > grain && settings_.threads > 1;
        if (!worth_sharing || inside_a_loop || !busy_.try_lock()) {
            body(context, 0, tasks, 0);
            return;
        }
        tasks_ = tasks;
        grain_ = grain;
        body_ = body;
        context_ = context;
        next_.store(0, std::memory_order_relaxed);
        open_.store(true);
        epoch_.fetch_add(1);
        if (sleeping_.load() > 0) wake();
        take_chunks(0);
        open_.store(false);
        // A thread that takes part may have lost its core to somebody: give it this one.
        while (!spin_until([this] { return taking_part_.load() == 0; }, kPatience)) sched_yield();
        busy_.unlock();
    }

  private:
    static constexpr std::chrono::microseconds kPatience{20};

    void end_threads() {
        stop_ = true;
        epoch_.fetch_add(1);
        wake();
        for (std::thread& thread : threads_) thread.join();
    }

    void take_chunks(int worker) {
        inside_a_loop = true;
        for (;;) {
            const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
            if (begin >= tasks_) break;
            const int64_t end = begin + grain_ < tasks_ ? begin + grain_ : tasks_;
            body_(context_, begin, end, worker);
        }
        inside_a_loop = false;
    }

    void work(int worker) {
        bind(worker);
        uint32_t seen = 0;
        for (;;) {
            await_change(seen);
            if (stop_) return;
            // Order matters: the caller closes the loop and then looks who takes part.
            taking_part_.fetch_add(1);
            seen = epoch_.load();
            if (open_.load()) take_chunks(worker);
            taking_part_.fetch_sub(1);
        }
    }

    void await_change(uint32_t seen) {
        if (spin_until([&] { return epoch_.load() != seen; }, settings_.spin)) return;
        sleeping_.fetch_add(1);
        while (epoch_.load() == seen) {
            syscall(SYS_futex, &epoch_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        }
        sleeping_.fetch_sub(1);
    }

    void wake() { syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }

    void bind(int worker) {
        if (settings_.cpus.empty()) return;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(settings_.cpus[worker], &set);
        // Advice: a CPU that was taken from this process since leaves the thread unbound.
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }

    static thread_local bool inside_a_loop;

    const Settings settings_;
    std::vector<std::thread> threads_;
    std::mutex busy_;
    std::atomic<bool> stop_{false};
    int64_t tasks_ = 0;
    int64_t grain_ = 1;
    LoopBody body_ = nullptr;
    void* context_ = nullptr;
    // Each on a cache line of its own: all are written while others are read.
    alignas(kCacheLine) std::atomic<int64_t> next_{0};
    alignas(kCacheLine) std::atomic<uint32_t> epoch_{0};
    alignas(kCacheLine) std::atomic<bool> open_{false};
    alignas(kCacheLine) std::atomic<int> taking_part_{0};
    alignas(kCacheLine) std::atomic<int> sleeping_{0};
};

thread_local bool Pool::inside_a_loop = false;

// Never destroyed at exit: a daemon thread of the caller's may still run a loop.
Pool* current = new Pool(Settings{});

// The parent's threads do not exist in the child and its locks may be held by them: the child
// leaves that pool as it lies and starts another.
void replace_after_fork() { current = new Pool(Settings{current->settings()}); }

// Threads are not to be made inside a fork handler; the first loop of the child makes them.
std::atomic<bool> forked{false};
const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });

Pool& pool() {
    if (forked.load(std::memory_order_relaxed) && forked.exchange(false)) replace_after_fork();
    return *current;
}

}  // namespace

void run_loop(int64_t tasks, int64_t grain, LoopBody body, void* context) {
    if (tasks > 0) pool().run(tasks, grain > 0 ? grain : 1, body, context);
}

int pool_threads() { return pool().settings().threads; }

}  // namespace tunan

TUNAN_API int tunan_pool_configure(int threads, const int* cpus, int spin_us) {
    using namespace tunan;
    if (threads < 1 || threads > 4096)
        return fail(kBadArgument, "%d is no number of threads", threads);
    if (spin_us < 0)
        return fail(kBadArgument, "spinning for %d microseconds is not possible", spin_us);
    Settings settings;
    settings.threads = threads;
    settings.spin = std::chrono::microseconds(spin_us);
    for (int i = 0; cpus && i < threads; i++) {
        if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE)
            return fail(kBadArgument, "%d is no CPU", cpus[i]);
        settings.cpus.push_back(cpus[i]);
    }
    try {
        Pool* fresh = new Pool(std::move(settings));
        Pool& old = pool();
        current = fresh;
        delete &old;
    } catch (const std::system_error&) {
        return fail(kOutOfMemory, "the system does not allow %d threads more", threads - 1);
    }
    return kOk;
}

TUNAN_API int tunan_pool_threads() { return tunan::pool_threads(); }
