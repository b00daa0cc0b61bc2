#include "device.h"

#include <cstring>

#include "acl/acl.h"
#include "error.h"
#include "faults.h"
#include "settings.h"
#include "sharing.h"
#include "stream.h"

namespace tunan {
namespace {

thread_local int chosen = -1;
struct Context {
    int device;
};

Context* context_of(int device) {
    static Context contexts[MAX_DEVICES];
    contexts[device].device = device;
    return &contexts[device];
}

int count_devices() { return static_cast<int>(settings().devices.size()); }

// A device that several processes share is visible under the number that the user gave it.
bool exists(int device) { return device >= 0 && device < count_devices() && device < MAX_DEVICES; }

}  // namespace

int current_device() { return chosen < 0 ? 0 : chosen; }

int on_machine(int device) { return exists(device) ? settings().devices[device] : device; }

}  // namespace tunan

using namespace tunan;

extern "C" {

aclError aclInit(const char*) { return ACL_SUCCESS; }

aclError aclFinalize() {
    synchronize_all();
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t* count) {
    *count = count_devices();
    return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device) {
    if (!exists(device)) {
        report("EE1001",
               "The argument is invalid.Reason: Set device failed, invalid device, set device=" +
                   std::to_string(device) + ", valid device range is [0, " +
                   std::to_string(count_devices()) + ")");
        return ACL_ERROR_RT_INVALID_DEVICEID;
    }
    chosen = device;
    open_shared(device);
    return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t device) {
    if (!exists(device)) return ACL_ERROR_RT_INVALID_DEVICEID;
    heal_device(device);
    return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t* device) {
    if (chosen < 0) return ACL_ERROR_RT_CONTEXT_NULL;
    *device = chosen;
    return ACL_SUCCESS;
}

aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logic) {
    *logic = user;
    return ACL_SUCCESS;
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
    if (flags) *flags = 0;
    *active = chosen == device;
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
    if (chosen < 0) chosen = 0;
    *context = context_of(chosen);
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
    chosen = static_cast<Context*>(context)->device;
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeDevice() { return synchronize_all(); }

aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return synchronize_all(); }

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
    *can = 1;
    return ACL_SUCCESS;
}

// Asked after a memory error: which addresses could be repaired. None.
aclError aclrtGetMemUceInfo(int32_t, aclrtMemUceInfo*, size_t, size_t* count) {
    *count = 0;
    return ACL_SUCCESS;
}

aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }

}  // extern "C"
