// Collectives in which ranks give and get different amounts.
#include <algorithm>
#include <cstring>
#include <vector>

#include "hccl/hccl.h"
#include "queue.h"
#include "reduce.h"

using namespace tunan;

namespace {

// How much goes where, in bytes, copied because the caller's arrays do not outlive the call.
struct Plan {
    std::vector<size_t> bytes, offsets;

    Plan(const void* counts, const void* displacements, uint32_t ranks, size_t element) {
        auto* count = static_cast<const uint64_t*>(counts);
        auto* displacement = static_cast<const uint64_t*>(displacements);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            bytes.push_back(count[rank] * element);
            offsets.push_back(displacement[rank] * element);
        }
    }
};

// Every rank tells its own numbers; all return the largest of all.
size_t largest(Communicator* group, const std::vector<size_t>& mine) {
    size_t found = 0;
    group->exchange("AlltoAllV", reinterpret_cast<const char*>(mine.data()),
                    mine.size() * sizeof(size_t), [&](size_t, size_t) {
                        for (uint32_t rank = 0; rank < group->ranks; rank++) {
                            auto* theirs = reinterpret_cast<const size_t*>(group->slot(rank));
                            found =
                                std::max(found, *std::max_element(theirs, theirs + group->ranks));
                        }
                    });
    return found;
}

void all_to_all(Communicator* group, const char* from, const Plan& give, char* to,
                const Plan& get) {
    size_t most = largest(group, give.bytes);
    for (size_t done = 0; done < most; done += SLOT) {
        auto part = [&](size_t bytes) { return bytes > done ? std::min(SLOT, bytes - done) : 0; };
        for (uint32_t peer = 0; peer < group->ranks; peer++)
            memcpy(group->box(group->rank, peer), from + give.offsets[peer] + done,
                   part(give.bytes[peer]));
        group->barrier("AlltoAllV");
        for (uint32_t peer = 0; peer < group->ranks; peer++)
            memcpy(to + get.offsets[peer] + done, group->box(peer, group->rank),
                   part(get.bytes[peer]));
        group->barrier("AlltoAllV");
    }
}

}  // namespace

extern "C" {

HcclResult HcclAlltoAllV(const void* from, const void* send_counts, const void* send_displacements,
                         HcclDataType send_type, const void* to, const void* receive_counts,
                         const void* receive_displacements, HcclDataType receive_type,
                         HcclComm comm, aclrtStream stream) {
    uint32_t ranks = group_of(comm)->ranks;
    Plan give(send_counts, send_displacements, ranks, bytes_of(send_type));
    Plan get(receive_counts, receive_displacements, ranks, bytes_of(receive_type));
    return queue(stream, comm, "HcclAlltoAllV", [=] {
        all_to_all(group_of(comm), static_cast<const char*>(from), give,
                   static_cast<char*>(const_cast<void*>(to)), get);
    });
}

HcclResult HcclAllGatherV(void* from, uint64_t count, void* to, const void* counts,
                          const void* displacements, HcclDataType type, HcclComm comm,
                          aclrtStream stream) {
    Plan get(counts, displacements, group_of(comm)->ranks, bytes_of(type));
    return queue(stream, comm, "HcclAllGatherV", [=] {
        auto* group = group_of(comm);
        size_t most = *std::max_element(get.bytes.begin(), get.bytes.end()),
               mine = count * bytes_of(type);
        std::vector<char> padded(most);
        memcpy(padded.data(), from, mine);
        group->exchange("AllGatherV", padded.data(), most, [&](size_t offset, size_t bytes) {
            for (uint32_t rank = 0; rank < group->ranks; rank++) {
                size_t part =
                    get.bytes[rank] > offset ? std::min(bytes, get.bytes[rank] - offset) : 0;
                memcpy(static_cast<char*>(to) + get.offsets[rank] + offset, group->slot(rank),
                       part);
            }
        });
    });
}

HcclResult HcclReduceScatterV(void* from, const void* counts, const void* displacements, void* to,
                              uint64_t, HcclDataType type, HcclReduceOp op, HcclComm comm,
                              aclrtStream stream) {
    Plan give(counts, displacements, group_of(comm)->ranks, bytes_of(type));
    return queue(stream, comm, "HcclReduceScatterV", [=] {
        auto* group = group_of(comm);
        for (uint32_t owner = 0; owner < group->ranks; owner++)
            group->exchange("ReduceScatterV", static_cast<char*>(from) + give.offsets[owner],
                            give.bytes[owner], [&](size_t offset, size_t bytes) {
                                if (group->rank == owner)
                                    reduce(*group, static_cast<char*>(to) + offset, bytes, type,
                                           op);
                            });
    });
}

HcclResult HcclScatter(void* from, void* to, uint64_t count, HcclDataType type, uint32_t root,
                       HcclComm comm, aclrtStream stream) {
    return queue(stream, comm, "HcclScatter", [=] {
        auto* group = group_of(comm);
        size_t each = count * bytes_of(type);
        for (uint32_t owner = 0; owner < group->ranks; owner++) {
            const char* source =
                group->rank == root ? static_cast<const char*>(from) + owner * each : nullptr;
            group->exchange("Scatter", source, each, [&](size_t offset, size_t bytes) {
                if (group->rank == owner)
                    memcpy(static_cast<char*>(to) + offset, group->slot(root), bytes);
            });
        }
    });
}

}  // extern "C"
