// HCCL's collectives: each is a task of its stream, like an operator.
#include <cstring>

#include "hccl/hccl.h"
#include "queue.h"
#include "reduce.h"

using namespace tunan;

extern "C" {

HcclResult HcclAllReduce(void* from, void* to, uint64_t count, HcclDataType type, HcclReduceOp op,
                         HcclComm comm, aclrtStream stream) {
    return queue(stream, comm, "HcclAllReduce", [=] {
        auto* group = group_of(comm);
        group->exchange("AllReduce", static_cast<char*>(from), count * bytes_of(type),
                        [&](size_t offset, size_t bytes) {
                            reduce(*group, static_cast<char*>(to) + offset, bytes, type, op);
                        });
    });
}

HcclResult HcclReduce(void* from, void* to, uint64_t count, HcclDataType type, HcclReduceOp op,
                      uint32_t root, HcclComm comm, aclrtStream stream) {
    return queue(stream, comm, "HcclReduce", [=] {
        auto* group = group_of(comm);
        group->exchange("Reduce", static_cast<char*>(from), count * bytes_of(type),
                        [&](size_t offset, size_t bytes) {
                            if (group->rank == root)
                                reduce(*group, static_cast<char*>(to) + offset, bytes, type, op);
                        });
    });
}

HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t root,
                         HcclComm comm, aclrtStream stream) {
    return queue(stream, comm, "HcclBroadcast", [=] {
        auto* group = group_of(comm);
        auto* bytes_at = static_cast<char*>(buffer);
        bool sends = group->rank == root;
        group->exchange("Broadcast", sends ? bytes_at : nullptr, count * bytes_of(type),
                        [&](size_t offset, size_t bytes) {
                            if (!sends) memcpy(bytes_at + offset, group->slot(root), bytes);
                        });
    });
}

HcclResult HcclAllGather(void* from, void* to, uint64_t count, HcclDataType type, HcclComm comm,
                         aclrtStream stream) {
    return queue(stream, comm, "HcclAllGather", [=] {
        auto* group = group_of(comm);
        size_t each = count * bytes_of(type);
        group->exchange(
            "AllGather", static_cast<char*>(from), each, [&](size_t offset, size_t bytes) {
                for (uint32_t rank = 0; rank < group->ranks; rank++)
                    memcpy(static_cast<char*>(to) + rank * each + offset, group->slot(rank), bytes);
            });
    });
}

HcclResult HcclReduceScatter(void* from, void* to, uint64_t count, HcclDataType type,
                             HcclReduceOp op, HcclComm comm, aclrtStream stream) {
    return queue(stream, comm, "HcclReduceScatter", [=] {
        auto* group = group_of(comm);
        size_t each = count * bytes_of(type);
        for (uint32_t owner = 0; owner < group->ranks; owner++)
            group->exchange("ReduceScatter", static_cast<char*>(from) + owner * each, each,
                            [&](size_t offset, size_t bytes) {
                                if (group->rank == owner)
                                    reduce(*group, static_cast<char*>(to) + offset, bytes, type,
                                           op);
                            });
    });
}

HcclResult HcclAlltoAll(const void* from, uint64_t count, HcclDataType type, const void* to,
                        uint64_t, HcclDataType, HcclComm comm, aclrtStream stream) {
    return queue(stream, comm, "HcclAlltoAll", [=] {
        auto* group = group_of(comm);
        size_t each = count * bytes_of(type);
        char* room = static_cast<char*>(const_cast<void*>(to));
        for (uint32_t owner = 0; owner < group->ranks; owner++)
            group->exchange("AlltoAll", static_cast<const char*>(from) + owner * each, each,
                            [&](size_t offset, size_t bytes) {
                                if (group->rank != owner) return;
                                for (uint32_t rank = 0; rank < group->ranks; rank++)
                                    memcpy(room + rank * each + offset, group->slot(rank), bytes);
                            });
    });
}

HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
    return queue(stream, comm, "HcclBarrier", [=] { group_of(comm)->barrier("Barrier"); });
}

}  // extern "C"
