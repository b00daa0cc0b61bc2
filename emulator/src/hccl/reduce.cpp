#include "reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <vector>

namespace tunan {
namespace {

template <class Sum>
Sum combined(Sum a, Sum b, HcclReduceOp op) {
    switch (op) {
        case HCCL_REDUCE_SUM: return a + b;
        case HCCL_REDUCE_PROD: return a * b;
        case HCCL_REDUCE_MAX: return std::max(a, b);
        default: return std::min(a, b);
    }
}

template <class Element, class Sum>
void reduce_as(const Communicator& group, char* into, size_t bytes, HcclReduceOp op) {
    auto* result = reinterpret_cast<Element*>(into);
    for (size_t at = 0; at < bytes / sizeof(Element); at++) {
        auto value = [&](uint32_t rank) {
            return static_cast<Sum>(reinterpret_cast<const Element*>(group.slot(rank))[at]);
        };
        Sum sum = value(0);
        for (uint32_t rank = 1; rank < group.ranks; rank++) sum = combined(sum, value(rank), op);
        result[at] = static_cast<Element>(sum);
    }
}

}  // namespace

size_t bytes_of(HcclDataType type) {
    switch (type) {
        case HCCL_DATA_TYPE_INT8:
        case HCCL_DATA_TYPE_UINT8: return 1;
        case HCCL_DATA_TYPE_INT16:
        case HCCL_DATA_TYPE_UINT16:
        case HCCL_DATA_TYPE_FP16:
        case HCCL_DATA_TYPE_BFP16: return 2;
        case HCCL_DATA_TYPE_INT32:
        case HCCL_DATA_TYPE_UINT32:
        case HCCL_DATA_TYPE_FP32: return 4;
        case HCCL_DATA_TYPE_INT64:
        case HCCL_DATA_TYPE_UINT64:
        case HCCL_DATA_TYPE_FP64: return 8;
        default:
            throw HcclFailure{HCCL_E_NOT_SUPPORT,
                              "data type " + std::to_string(type) + " is not supported"};
    }
}

void reduce(const Communicator& group, char* into, size_t bytes, HcclDataType type,
            HcclReduceOp op) {
    switch (type) {
        case HCCL_DATA_TYPE_INT8: return reduce_as<int8_t, int8_t>(group, into, bytes, op);
        case HCCL_DATA_TYPE_UINT8: return reduce_as<uint8_t, uint8_t>(group, into, bytes, op);
        case HCCL_DATA_TYPE_INT16: return reduce_as<int16_t, int16_t>(group, into, bytes, op);
        case HCCL_DATA_TYPE_INT32: return reduce_as<int32_t, int32_t>(group, into, bytes, op);
        case HCCL_DATA_TYPE_INT64: return reduce_as<int64_t, int64_t>(group, into, bytes, op);
        case HCCL_DATA_TYPE_FP16: return reduce_as<c10::Half, float>(group, into, bytes, op);
        case HCCL_DATA_TYPE_BFP16: return reduce_as<c10::BFloat16, float>(group, into, bytes, op);
        case HCCL_DATA_TYPE_FP32: return reduce_as<float, float>(group, into, bytes, op);
        case HCCL_DATA_TYPE_FP64: return reduce_as<double, double>(group, into, bytes, op);
        default:
            throw HcclFailure{HCCL_E_NOT_SUPPORT, "reduction of data type " + std::to_string(type) +
                                                      " is not supported"};
    }
}

}  // namespace tunan
