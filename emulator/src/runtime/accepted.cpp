// Settings that the runtime takes and that change nothing here: there is no hardware behind them.
// torch_npu looks each of them up by name and refuses to go on without.
#include <cstdint>

#include "acl/acl.h"

#define ACCEPT(NAME, ...) \
    extern "C" aclError NAME(__VA_ARGS__) { return ACL_SUCCESS; }

ACCEPT(aclrtSetDeviceSatMode, aclrtFloatOverflowMode)
ACCEPT(aclrtSetOpExecuteTimeOut, uint32_t)
ACCEPT(aclrtSetOpWaitTimeout, uint32_t)
ACCEPT(aclrtSetSysParamOpt, aclSysParamOpt, int64_t)
ACCEPT(aclrtCtxSetSysParamOpt, aclSysParamOpt, int64_t)
ACCEPT(aclrtSetStreamAttribute, aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*)
ACCEPT(aclrtSetStreamFailureMode, aclrtStream, uint64_t)
ACCEPT(aclrtSubscribeReport, uint64_t, aclrtStream)
ACCEPT(aclrtUnSubscribeReport, uint64_t, aclrtStream)
ACCEPT(aclrtProcessReport, int32_t)
