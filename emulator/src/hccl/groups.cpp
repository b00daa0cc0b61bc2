// Communicators: the root invents a name, the others get it through torch's own store.
#include <unistd.h>

#include <cstring>
#include <random>

#include "communicator.h"
#include "error.h"
#include "hccl/hccl.h"

using namespace tunan;

namespace {

HcclResult join(const std::string& name, uint32_t ranks, uint32_t rank, HcclComm* comm) {
    try {
        *comm = Communicator::join(name, ranks, rank).release();
        return HCCL_SUCCESS;
    } catch (const HcclFailure& failure) {
        report(failure.status == HCCL_E_TIMEOUT ? "EI0006" : "EI9999", failure.text);
        return static_cast<HcclResult>(failure.status);
    }
}

}  // namespace

extern "C" {

HcclResult HcclGetRootInfo(HcclRootInfo* root) {
    std::random_device random;
    memset(root, 0, sizeof *root);
    snprintf(root->internal, 64, "/tunan_hccl_%d_%08x%08x", getpid(), random(), random());
    return HCCL_SUCCESS;
}

HcclResult HcclCommInitRootInfo(uint32_t ranks, const HcclRootInfo* root, uint32_t rank,
                                HcclComm* comm) {
    return join(root->internal, ranks, rank, comm);
}

HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo* root, uint32_t rank,
                                      const HcclCommConfig*, HcclComm* comm) {
    return join(root->internal, ranks, rank, comm);
}

HcclResult HcclCreateSubCommConfig(HcclComm* whole, uint32_t ranks, uint32_t* members, uint64_t id,
                                   uint32_t rank, HcclCommConfig*, HcclComm* comm) {
    std::string name = static_cast<Communicator*>(*whole)->name + "_" + std::to_string(id);
    for (uint32_t at = 0; at < ranks; at++) name += "_" + std::to_string(members[at]);
    return join(name, ranks, rank, comm);
}

// The memory stays mapped: collectives that are still queued may use it while the process ends.
HcclResult HcclCommDestroy(HcclComm) { return HCCL_SUCCESS; }

HcclResult HcclGetCommName(HcclComm comm, char* name) {
    strcpy(name, static_cast<Communicator*>(comm)->name.c_str() + 1);
    return HCCL_SUCCESS;
}

HcclResult HcclGetCommAsyncError(HcclComm, HcclResult* error) {
    *error = HCCL_SUCCESS;
    return HCCL_SUCCESS;
}

uint32_t HcclGetCommConfigCapability() { return 0; }

HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }

HcclResult HcclGetRankSize(HcclComm comm, uint32_t* ranks) {
    *ranks = static_cast<Communicator*>(comm)->ranks;
    return HCCL_SUCCESS;
}

HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank) {
    *rank = static_cast<Communicator*>(comm)->rank;
    return HCCL_SUCCESS;
}

}  // extern "C"
