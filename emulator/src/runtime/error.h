// The error state that CANN keeps: the last message, and devices that no longer work.
#pragma once
#include <string>

#include "acl/acl.h"

namespace tunan {

// Leaves a message, in CANN's form, for whoever asks next (aclGetRecentErrMsg).
void report(const char* code, const std::string& text);

// A device that failed answers `status` to every synchronisation until it is reset.
void fail_device(int device, aclError status);
aclError device_status(int device);
void heal_device(int device);

}  // namespace tunan
