// Reduces what the ranks laid into their slots, rank after rank, as a ring would: every rank gets
// the very same bits. Half types are summed in float32.
#pragma once
#include "communicator.h"
#include "hccl/hccl_types.h"

namespace tunan {

size_t bytes_of(HcclDataType type);

void reduce(const Communicator& ranks, char* into, size_t bytes, HcclDataType type,
            HcclReduceOp op);

}  // namespace tunan
