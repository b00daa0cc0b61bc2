#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "guard.h"
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

struct NoThreads : std::runtime_error {
    explicit NoThreads(int more)
        : std::runtime_error("the system does not allow " + std::to_string(more) +
                             " threads more") {}
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
        } catch (const std::exception&) {
            end_threads();
            throw NoThreads(settings_.threads - 1);
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
std::atomic<Pool*> current{new Pool(Settings{})};

// Whether `current` is the parent's, whose threads do not exist here and whose locks they may hold:
// it is left as it lies, and replaced by the first loop, since threads are not to be made inside a
// fork handler.
std::atomic<bool> forked{false};

// Held while `current` is replaced, and over fork(), so that the child finds it free.
std::mutex replacing;
const int registered = pthread_atfork([] { replacing.lock(); }, [] { replacing.unlock(); },
                                      [] {
                                          forked.store(true);
                                          replacing.unlock();
                                      });

// Throws NoThreads in a forked child that is allowed none; the next call tries again.
Pool& pool() {
    if (forked.load(std::memory_order_acquire)) {
        const std::lock_guard<std::mutex> lock(replacing);
        if (forked.load(std::memory_order_relaxed)) {
            current.store(new Pool(Settings{current.load()->settings()}));
            forked.store(false, std::memory_order_release);
        }
    }
    return *current.load(std::memory_order_acquire);
}

void replace_pool(Settings settings) {
    const std::lock_guard<std::mutex> lock(replacing);
    Pool* const fresh = new Pool(std::move(settings));
    Pool* const old = current.exchange(fresh);
    if (!forked.exchange(false)) delete old;
}

}  // namespace

void run_loop(int64_t tasks, int64_t grain, LoopBody body, void* context) {
    if (tasks > 0) pool().run(tasks, grain > 0 ? grain : 1, body, context);
}

int pool_threads() { return current.load(std::memory_order_acquire)->settings().threads; }

}  // namespace tunan

TUNAN_API int tunan_pool_configure(int threads, const int* cpus, int spin_us) {
    using namespace tunan;
    if (threads < 1 || threads > 4096)
        return fail(kBadArgument, "%d is no number of threads", threads);
    if (spin_us < 0)
        return fail(kBadArgument, "spinning for %d microseconds is not possible", spin_us);
    for (int i = 0; cpus && i < threads; i++)
        if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE)
            return fail(kBadArgument, "%d is no CPU", cpus[i]);
    return guarded([&] {
        Settings settings;
        settings.threads = threads;
        settings.spin = std::chrono::microseconds(spin_us);
        if (cpus) settings.cpus.assign(cpus, cpus + threads);
        replace_pool(std::move(settings));
        return kOk;
    });
}

TUNAN_API int tunan_pool_threads() { return tunan::pool_threads(); }
