// What the runtime answers when asked what it is: chip, version, cores, settings.
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "error.h"
#include "settings.h"

using namespace tunan;

namespace {

// Of an Atlas A2 (910B3): what torch_npu shows as device properties.
constexpr int64_t CUBE_CORES = 20;
constexpr int64_t VECTOR_CORES = 40;
constexpr int64_t L2_CACHE = 192ll << 20;
constexpr const char* CANN_VERSION = "9.1.0";

std::mutex guard;
std::map<int, std::string> compile_options;

std::string compile_option(int option) {
    std::lock_guard<std::mutex> lock(guard);
    auto found = compile_options.find(option);
    return found == compile_options.end() ? "disable" : found->second;
}

}  // namespace

extern "C" {

const char* aclrtGetSocName() { return settings().soc.c_str(); }

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
    memset(version, 0, sizeof *version);
    strcpy(version->version, CANN_VERSION);
    strcpy(version->majorVersion, "9");
    strcpy(version->minorVersion, "1");
    strcpy(version->releaseVersion, "0");
    return ACL_SUCCESS;
}

aclError aclsysGetVersionStr(char*, char* version) {
    strcpy(version, CANN_VERSION);
    return ACL_SUCCESS;
}

aclError aclGetCannAttribute(aclCannAttr, int32_t* value) {
    *value = 1;
    return ACL_SUCCESS;
}

aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
    static const aclCannAttr attributes[] = {ACL_CANN_ATTR_INF_NAN};
    *list = attributes;
    *count = 1;
    return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo what, int64_t* value) {
    switch (what) {
        case ACL_DEVICE_INFO_VECTOR_CORE_NUM: *value = VECTOR_CORES; break;
        case ACL_DEVICE_INFO_L2_SIZE: *value = L2_CACHE; break;
        default: *value = CUBE_CORES;
    }
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr what, int64_t* value) {
    switch (what) {
        case ACL_DEV_ATTR_VECTOR_CORE_NUM: *value = VECTOR_CORES; break;
        case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
            *value = static_cast<int64_t>(settings().memory);
            break;
        case ACL_DEV_ATTR_L2_CACHE_SIZE: *value = L2_CACHE; break;
        case ACL_DEV_ATTR_CUBE_CORE_NUM:
        case ACL_DEV_ATTR_AICORE_CORE_NUM: *value = CUBE_CORES; break;
        default: return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    }
    return ACL_SUCCESS;
}

aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) {
    *value = type == ACL_RT_DEV_RES_CUBE_CORE ? CUBE_CORES : VECTOR_CORES;
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceResLimit(int32_t, aclrtDevResLimitType type, uint32_t* value) {
    return aclrtGetResInCurrentThread(type, value);
}

aclError aclrtGetStreamResLimit(aclrtStream, aclrtDevResLimitType type, uint32_t* value) {
    return aclrtGetResInCurrentThread(type, value);
}

aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value) {
    *value = 0;
    return ACL_SUCCESS;
}

aclError aclrtSetOpExecuteTimeOutV2(uint64_t wanted, uint64_t* actual) {
    if (actual) *actual = wanted;
    return ACL_SUCCESS;
}

// The older single-operator path (compiled through GE). Options are kept because torch_npu reads
// them back; a compilation is refused, since nothing here can run one.
aclError aclSetCompileopt(aclCompileOpt option, const char* value) {
    std::lock_guard<std::mutex> lock(guard);
    compile_options[option] = value;
    return ACL_SUCCESS;
}

size_t aclGetCompileoptSize(aclCompileOpt option) { return compile_option(option).size() + 1; }

aclError aclGetCompileopt(aclCompileOpt option, char* value, size_t length) {
    snprintf(value, length, "%s", compile_option(option).c_str());
    return ACL_SUCCESS;
}

aclError aclopCompileAndExecute(const char* type, int, const aclTensorDesc* const*,
                                const aclDataBuffer* const*, int, const aclTensorDesc* const*,
                                aclDataBuffer* const*, const aclopAttr*, aclopEngineType,
                                aclopCompileType, const char*, aclrtStream) {
    report("EZ3003", std::string("No supported Ops kernel and engine are found for [") + type +
                         "], optype [" + type + "]: the emulator has aclnn operators only.");
    return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}

aclError aclopCompileAndExecuteV2(const char* type, int, aclTensorDesc**, aclDataBuffer**, int,
                                  aclTensorDesc**, aclDataBuffer**, aclopAttr*, aclopEngineType,
                                  aclopCompileType, const char*, aclrtStream) {
    return aclopCompileAndExecute(type, 0, nullptr, nullptr, 0, nullptr, nullptr, nullptr,
                                  ACL_ENGINE_SYS, ACL_COMPILE_SYS, nullptr, nullptr);
}

// Of the bounds-checked C library that CANN carries; torch_npu formats messages with them.
int strcpy_s(char* to, size_t room, const char* from) {
    if (strlen(from) >= room) return 34;  // ERANGE
    strcpy(to, from);
    return 0;
}

int vsnprintf_s(char* to, size_t room, size_t, const char* format, va_list arguments) {
    return vsnprintf(to, room, format, arguments);
}

int snprintf_s(char* to, size_t room, size_t count, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf_s(to, room, count, format, arguments);
    va_end(arguments);
    return written;
}

}  // extern "C"
