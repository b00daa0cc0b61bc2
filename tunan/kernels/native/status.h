// Status codes of the C ABI, and the one line that explains the last failure of this thread.
#pragma once

#define TUNAN_API extern "C" __attribute__((visibility("default")))

namespace tunan {

enum Status : int {
    kOk = 0,
    kBadArgument = 1,  // the caller's sizes, types or alignment
    kBadPacking = 2,   // packed data of another layout, version or shape
    kUnsupported = 3,  // this CPU lacks what was asked for
    kOutOfMemory = 4,
};

// Remembers a printf-style message for tunan_last_error() and returns `status`.
Status fail(Status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace tunan

// What the last call that failed on this thread has to say: one line.
TUNAN_API const char* tunan_last_error();
// Changes with every incompatible change of the C ABI.
TUNAN_API int tunan_abi_version();
