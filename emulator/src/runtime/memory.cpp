// Device memory is host memory that is counted: what is reserved on a device is never more than it
// has.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "acl/acl.h"
#include "capture.h"
#include "device.h"
#include "faults.h"
#include "settings.h"
#include "sharing.h"
#include "stream.h"

using namespace tunan;

namespace {

constexpr size_t PAGE = 4096;
constexpr size_t HUGE_PAGE = 2u << 20;

struct Range {
    size_t bytes;
    int device;
};

std::mutex guard;
std::map<uintptr_t, Range> on_device, on_host;
size_t used[MAX_DEVICES];

size_t room(int device) { return std::min(settings().memory, faults::memory_limit(device)); }

bool take(int device, size_t bytes) {
    if (!take_shared(device, bytes, room(device) - std::min(room(device), used[device])))
        return false;
    used[device] += bytes;
    return true;
}

void give_back(int device, size_t bytes) {
    used[device] -= bytes;
    give_back_shared(device, bytes);
}

void* aligned(size_t bytes, size_t alignment) {
    size_t whole = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    return aligned_alloc(alignment, whole);
}

// Fresh device memory is never zero: a kernel that reads what nobody wrote shows in the result.
// Only the beginning, so that a large cache costs host memory when it is used and not before.
void poison(void* at, size_t bytes) { memset(at, 0x5a, std::min<size_t>(bytes, 65536)); }

aclError allocate(void** out, size_t bytes) {
    std::lock_guard<std::mutex> lock(guard);
    int device = current_device();
    if (!take(device, bytes)) return ACL_ERROR_RT_MEMORY_ALLOCATION;
    *out = aligned(bytes, PAGE);
    if (!*out) return ACL_ERROR_RT_MEMORY_ALLOCATION;
    poison(*out, bytes);
    on_device[reinterpret_cast<uintptr_t>(*out)] = {bytes, device};
    return ACL_SUCCESS;
}

const Range* find(const std::map<uintptr_t, Range>& ranges, const void* address) {
    auto at = reinterpret_cast<uintptr_t>(address);
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) return nullptr;
    --next;
    return at < next->first + next->second.bytes ? &next->second : nullptr;
}

bool pinned(const void* address) {
    std::lock_guard<std::mutex> lock(guard);
    return find(on_host, address) != nullptr;
}

void trace_pinned(const char* what, const void* address, size_t bytes) {
    if (!tracing()) return;
    trace(std::string("pinned ") + what + " host=" +
          std::to_string(reinterpret_cast<uintptr_t>(address)) + " bytes=" + std::to_string(bytes));
}

const char* kind_name(aclrtMemcpyKind kind) {
    switch (kind) {
        case ACL_MEMCPY_HOST_TO_HOST: return "host-to-host";
        case ACL_MEMCPY_HOST_TO_DEVICE: return "host-to-device";
        case ACL_MEMCPY_DEVICE_TO_HOST: return "device-to-host";
        case ACL_MEMCPY_DEVICE_TO_DEVICE: return "device-to-device";
        default: return "other";
    }
}

// A copy has two lines, one when the host has queued it and one when the device has done it: what
// lies between them in the trace was done meanwhile.
uint64_t trace_copy(const void* from, size_t bytes, aclrtMemcpyKind kind, aclrtStream stream) {
    static std::atomic<uint64_t> copies{0};
    if (!tracing()) return 0;
    uint64_t id = ++copies;
    trace("copy queued id=" + std::to_string(id) + " kind=" + kind_name(kind) +
          " stream=" + std::to_string(stream_id(stream)) + " bytes=" + std::to_string(bytes) +
          " from=" + std::to_string(reinterpret_cast<uintptr_t>(from)) +
          (pinned(from) ? " pinned" : ""));
    return id;
}

void copy_now(void* to, const void* from, size_t bytes, uint64_t id) {
    faults::before_copy(current_device());
    memmove(to, from, bytes);
    if (id) trace("copy done id=" + std::to_string(id));
}

}  // namespace

extern "C" {

aclError aclrtMalloc(void** out, size_t bytes, aclrtMemMallocPolicy) {
    return allocate(out, bytes);
}

aclError aclrtMallocAlign32(void** out, size_t bytes, aclrtMemMallocPolicy) {
    return allocate(out, bytes);
}

aclError aclrtFree(void* address) {
    std::lock_guard<std::mutex> lock(guard);
    auto found = on_device.find(reinterpret_cast<uintptr_t>(address));
    if (found == on_device.end()) return ACL_ERROR_RT_PARAM_INVALID;
    give_back(found->second.device, found->second.bytes);
    on_device.erase(found);
    free(address);
    return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** out, size_t bytes) {
    *out = aligned(bytes, PAGE);
    if (!*out) return ACL_ERROR_RT_MEMORY_ALLOCATION;
    trace_pinned("allocated", *out, bytes);
    std::lock_guard<std::mutex> lock(guard);
    on_host[reinterpret_cast<uintptr_t>(*out)] = {bytes, 0};
    return ACL_SUCCESS;
}

aclError aclrtMallocHostWithCfg(void** out, uint64_t bytes, aclrtMallocConfig*) {
    return aclrtMallocHost(out, bytes);
}

aclError aclrtFreeHost(void* address) {
    {
        std::lock_guard<std::mutex> lock(guard);
        auto found = on_host.find(reinterpret_cast<uintptr_t>(address));
        if (found != on_host.end()) {
            trace_pinned("freed", address, found->second.bytes);
            on_host.erase(found);
        }
    }
    free(address);
    return ACL_SUCCESS;
}

aclError aclrtHostRegister(void* address, uint64_t bytes, aclrtHostRegisterType, void** device) {
    trace_pinned("allocated", address, bytes);
    std::lock_guard<std::mutex> lock(guard);
    on_host[reinterpret_cast<uintptr_t>(address)] = {bytes, 0};
    *device = address;
    return ACL_SUCCESS;
}

aclError aclrtHostUnregister(void* address) {
    std::lock_guard<std::mutex> lock(guard);
    auto found = on_host.find(reinterpret_cast<uintptr_t>(address));
    if (found == on_host.end()) return ACL_SUCCESS;
    trace_pinned("freed", address, found->second.bytes);
    on_host.erase(found);
    return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) {
    std::lock_guard<std::mutex> lock(guard);
    memset(attributes, 0, sizeof *attributes);
    if (find(on_host, address)) {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_HOST;
    } else if (const Range* range = find(on_device, address)) {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
        attributes->location.id = range->device;
    } else {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    }
    return ACL_SUCCESS;
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* available, size_t* total) {
    std::lock_guard<std::mutex> lock(guard);
    int device = current_device();
    *total = settings().memory;
    size_t taken = used[device] + shared_by_others(device);
    *available = room(device) - std::min(room(device), taken);
    return ACL_SUCCESS;
}

aclError aclrtMemcpy(void* to, size_t, const void* from, size_t bytes, aclrtMemcpyKind kind) {
    if (tracing())
        trace(std::string("copy synchronous kind=") + kind_name(kind) +
              " bytes=" + std::to_string(bytes));
    memmove(to, from, bytes);
    return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* to, size_t, const void* from, size_t bytes, aclrtMemcpyKind kind,
                          aclrtStream stream) {
    uint64_t id = trace_copy(from, bytes, kind, stream);
    if (kind == ACL_MEMCPY_HOST_TO_DEVICE && !capturing() && !pinned(from)) {
        // The driver stages pageable memory before it returns, so the caller may reuse it at once.
        auto* bytes_of = static_cast<const char*>(from);
        auto staged = std::make_shared<std::vector<char>>(bytes_of, bytes_of + bytes);
        submit(stream, {[=] { copy_now(to, staged->data(), bytes, id); }});
        return ACL_SUCCESS;
    }
    submit(stream, {[=] { copy_now(to, from, bytes, id); }});
    return ACL_SUCCESS;
}

aclError aclrtMemset(void* to, size_t, int32_t value, size_t bytes) {
    memset(to, value, bytes);
    return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void* to, size_t, int32_t value, size_t bytes, aclrtStream stream) {
    submit(stream, {[=] { memset(to, value, bytes); }});
    return ACL_SUCCESS;
}

// Virtual memory (torch_npu's expandable segments): an address range is one host block, and mapping
// physical memory into it is accounting.
aclError aclrtReserveMemAddress(void** out, size_t bytes, size_t, void*, uint64_t) {
    *out = aligned(bytes, HUGE_PAGE);
    return *out ? ACL_SUCCESS : ACL_ERROR_RT_MEMORY_ALLOCATION;
}

aclError aclrtReleaseMemAddress(void* address) {
    free(address);
    return ACL_SUCCESS;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t bytes, const aclrtPhysicalMemProp*,
                             uint64_t) {
    std::lock_guard<std::mutex> lock(guard);
    int device = current_device();
    if (!take(device, bytes)) return ACL_ERROR_RT_MEMORY_ALLOCATION;
    *handle = reinterpret_cast<aclrtDrvMemHandle>(new Range{bytes, device});
    return ACL_SUCCESS;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
    std::lock_guard<std::mutex> lock(guard);
    auto* range = reinterpret_cast<Range*>(handle);
    give_back(range->device, range->bytes);
    delete range;
    return ACL_SUCCESS;
}

aclError aclrtMapMem(void* address, size_t bytes, size_t, aclrtDrvMemHandle handle, uint64_t) {
    std::lock_guard<std::mutex> lock(guard);
    poison(address, bytes);
    on_device[reinterpret_cast<uintptr_t>(address)] = {bytes,
                                                       reinterpret_cast<Range*>(handle)->device};
    return ACL_SUCCESS;
}

aclError aclrtUnmapMem(void* address) {
    std::lock_guard<std::mutex> lock(guard);
    on_device.erase(reinterpret_cast<uintptr_t>(address));
    return ACL_SUCCESS;
}

}  // extern "C"
