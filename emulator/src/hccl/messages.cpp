// Messages between two ranks, alone or several at once.
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "hccl/hccl.h"
#include "queue.h"
#include "reduce.h"

using namespace tunan;

namespace {

void carry(Communicator* group, const HcclSendRecvItem& item) {
    bool sends = item.sendRecvType == HCCL_SEND;
    group->pass(static_cast<char*>(item.buf), item.count * bytes_of(item.dataType),
                sends ? group->rank : item.remoteRank, sends ? item.remoteRank : group->rank);
}

// Sends run beside receives: two ranks that both send first must not wait for each other. Those to
// one rank keep their order, which is all that tells them apart there.
void carry_all(Communicator* group, const std::vector<HcclSendRecvItem>& items) {
    std::map<uint32_t, std::vector<HcclSendRecvItem>> to;
    for (const HcclSendRecvItem& item : items)
        if (item.sendRecvType == HCCL_SEND) to[item.remoteRank].push_back(item);
    std::vector<std::thread> sends;
    std::vector<HcclFailure> failures(to.size(), HcclFailure{HCCL_SUCCESS, ""});
    for (const auto& [peer, messages] : to)
        sends.emplace_back([group, &messages = messages, &failure = failures[sends.size()]] {
            try {
                for (const HcclSendRecvItem& item : messages) carry(group, item);
            } catch (const HcclFailure& caught) {
                failure = caught;
            }
        });
    try {
        for (const HcclSendRecvItem& item : items)
            if (item.sendRecvType == HCCL_RECV) carry(group, item);
    } catch (const HcclFailure&) {
        for (std::thread& one : sends) one.join();
        throw;
    }
    for (std::thread& one : sends) one.join();
    for (const HcclFailure& failure : failures)
        if (failure.status != HCCL_SUCCESS) throw failure;
}

// Between HcclGroupStart and HcclGroupEnd a thread's messages are collected, and then run at once.
struct Group {
    int depth = 0;
    HcclComm comm = nullptr;
    aclrtStream stream = nullptr;
    std::vector<HcclSendRecvItem> items;
};
thread_local Group collected;

HcclResult message(HcclSendRecvType kind, void* buffer, uint64_t count, HcclDataType type,
                   uint32_t peer, HcclComm comm, aclrtStream stream) {
    HcclSendRecvItem item{kind, buffer, count, type, peer};
    if (collected.depth > 0) {
        collected.comm = comm;
        collected.stream = stream;
        collected.items.push_back(item);
        return HCCL_SUCCESS;
    }
    const char* name = kind == HCCL_SEND ? "HcclSend" : "HcclRecv";
    return queue(stream, comm, name, [=] { carry(group_of(comm), item); });
}

}  // namespace

extern "C" {

HcclResult HcclSend(void* buffer, uint64_t count, HcclDataType type, uint32_t to, HcclComm comm,
                    aclrtStream stream) {
    return message(HCCL_SEND, buffer, count, type, to, comm, stream);
}

HcclResult HcclRecv(void* buffer, uint64_t count, HcclDataType type, uint32_t from, HcclComm comm,
                    aclrtStream stream) {
    return message(HCCL_RECV, buffer, count, type, from, comm, stream);
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm comm,
                             aclrtStream stream) {
    std::vector<HcclSendRecvItem> all(items, items + count);
    return queue(stream, comm, "HcclBatchSendRecv", [=] { carry_all(group_of(comm), all); });
}

HcclResult HcclGroupStart() {
    collected.depth++;
    return HCCL_SUCCESS;
}

HcclResult HcclGroupEnd() {
    if (--collected.depth > 0 || collected.items.empty()) return HCCL_SUCCESS;
    Group whole = std::exchange(collected, Group());
    return queue(whole.stream, whole.comm, "HcclGroup",
                 [comm = whole.comm, items = whole.items] { carry_all(group_of(comm), items); });
}

}  // extern "C"
