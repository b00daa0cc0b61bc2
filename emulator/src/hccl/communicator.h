// A communicator: ranks that share a block of POSIX shared memory on this host.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tunan {

constexpr uint32_t MAX_RANKS = 16;
constexpr size_t SLOT = 4u << 20;

class Communicator {
  public:
    // Waits until all ranks have come; throws HcclFailure.
    static std::unique_ptr<Communicator> join(const std::string& name, uint32_t ranks,
                                              uint32_t rank);

    const std::string name;
    const uint32_t ranks, rank;

    void barrier(const char* operation);

    // In rounds that fit a slot: every rank lays `source` (null: nothing) into its slot, and when
    // all have, `take(offset, bytes)` reads the slots.
    void exchange(const char* operation, const char* source, size_t bytes,
                  const std::function<void(size_t offset, size_t bytes)>& take);

    const char* slot(uint32_t rank) const;

    // What one rank leaves for another; `SLOT` bytes.
    char* box(uint32_t from, uint32_t to) const;

    // One rank sends what another receives, in order, in rounds that fit a slot.
    void pass(char* buffer, size_t bytes, uint32_t from, uint32_t to);

    // The part of the collective's wait that a fault prolongs for ever.
    void start(const char* operation);

  private:
    struct Shared;
    Communicator(std::string name, uint32_t ranks, uint32_t rank, Shared* shared, char* data);
    void wait(const std::function<bool()>& done, const char* operation, double seconds);

    Shared* const shared_;
    char* const data_;
};

// A peer did not come in time, or the memory could not be shared.
struct HcclFailure {
    int status;
    std::string text;
};

}  // namespace tunan
