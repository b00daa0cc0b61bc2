#include "communicator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "device.h"
#include "error.h"
#include "faults.h"
#include "hccl/hccl_types.h"

namespace tunan {

struct Communicator::Shared {
    std::atomic<uint32_t> joined, arrived, phase;
    struct Channel {
        std::atomic<uint64_t> written, read;
    } channels[MAX_RANKS][MAX_RANKS];
};

namespace {

constexpr size_t HEADER = 4096 * 8;

double seconds_from(const char* variable, double otherwise) {
    const char* value = getenv(variable);
    return value && *value ? atof(value) : otherwise;
}

// The limits that users set for the real library, with its defaults.
double connect_timeout() { return seconds_from("HCCL_CONNECT_TIMEOUT", 120); }
double execute_timeout() { return seconds_from("HCCL_EXEC_TIMEOUT", 1836); }

}  // namespace

Communicator::Communicator(std::string name, uint32_t ranks, uint32_t rank, Shared* shared,
                           char* data)
    : name(std::move(name)), ranks(ranks), rank(rank), shared_(shared), data_(data) {
    static_assert(sizeof(Shared) <= HEADER);
}

std::unique_ptr<Communicator> Communicator::join(const std::string& name, uint32_t ranks,
                                                 uint32_t rank) {
    if (ranks > MAX_RANKS) throw HcclFailure{HCCL_E_PARA, "the emulator has at most 16 ranks"};
    // A slot a rank for collectives, and one a pair for messages.
    size_t bytes = HEADER + SLOT * (ranks + ranks * ranks);
    int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, bytes))
        throw HcclFailure{HCCL_E_SYSCALL, "shared memory: " + std::string(strerror(errno))};
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        throw HcclFailure{HCCL_E_MEMORY, "shared memory: " + std::string(strerror(errno))};
    auto* shared = static_cast<Shared*>(memory);
    std::unique_ptr<Communicator> made(
        new Communicator(name, ranks, rank, shared, static_cast<char*>(memory) + HEADER));
    shared->joined.fetch_add(1);
    try {
        made->wait([&] { return shared->joined.load() >= ranks; }, "Init", connect_timeout());
    } catch (const HcclFailure&) {
        shm_unlink(name.c_str());
        throw HcclFailure{
            HCCL_E_TIMEOUT,
            "Getting socket times out. Reason: 1. The remote does not initiate a connect request."};
    }
    made->barrier("Init");
    if (rank == 0) shm_unlink(name.c_str());
    return made;
}

void Communicator::wait(const std::function<bool()>& done, const char* operation, double seconds) {
    auto start = std::chrono::steady_clock::now();
    for (int tries = 0; !done(); tries++) {
        if (tries > 200) std::this_thread::sleep_for(std::chrono::microseconds(20));
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
            seconds)
            continue;
        throw HcclFailure{HCCL_E_TIMEOUT,
                          "The wait execution of the Notify register times out. Reason: The Notify "
                          "register has not "
                          "received the Notify record from remote rank [" +
                              std::to_string((rank + 1) % ranks) +
                              "]. base information: [streamID:[0], taskID[0], tag[" + operation +
                              "_" + name + "], AlgType(level 0-1-2):[fullmesh-ring-NHR].]"};
    }
}

void Communicator::barrier(const char* operation) {
    uint32_t phase = shared_->phase.load();
    if (shared_->arrived.fetch_add(1) + 1 == ranks) {
        shared_->arrived = 0;
        shared_->phase.fetch_add(1);
        return;
    }
    wait([&] { return shared_->phase.load() != phase; }, operation, execute_timeout());
}

void Communicator::start(const char* operation) {
    if (faults::collective_hangs(current_device()))
        wait([] { return false; }, operation, execute_timeout());
}

void Communicator::exchange(const char* operation, const char* source, size_t bytes,
                            const std::function<void(size_t, size_t)>& take) {
    size_t offset = 0;
    do {
        size_t part = std::min(SLOT, bytes - offset);
        if (source) memcpy(data_ + rank * SLOT, source + offset, part);
        barrier(operation);
        take(offset, part);
        barrier(operation);  // nobody overwrites a slot that another still reads
        offset += part;
    } while (offset < bytes);
}

const char* Communicator::slot(uint32_t other) const { return data_ + other * SLOT; }

char* Communicator::box(uint32_t from, uint32_t to) const {
    return data_ + (ranks + from * ranks + to) * SLOT;
}

void Communicator::pass(char* buffer, size_t bytes, uint32_t from, uint32_t to) {
    auto& channel = shared_->channels[from][to];
    auto empty = [&] { return channel.written.load() == channel.read.load(); };
    for (size_t offset = 0; offset < bytes; offset += SLOT) {
        size_t part = std::min(SLOT, bytes - offset);
        if (rank == from) {
            wait(empty, "Send", execute_timeout());
            memcpy(box(from, to), buffer + offset, part);
            channel.written.fetch_add(1);
        } else {
            wait([&] { return !empty(); }, "Receive", execute_timeout());
            memcpy(buffer + offset, box(from, to), part);
            channel.read.fetch_add(1);
        }
    }
}

}  // namespace tunan
