#include "status.h"

#include <cstdarg>
#include <cstdio>

namespace tunan {

static thread_local char last_error[512] = "";

Status fail(Status status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

}  // namespace tunan

TUNAN_API const char* tunan_last_error() { return tunan::last_error; }

TUNAN_API int tunan_abi_version() { return 3; }
