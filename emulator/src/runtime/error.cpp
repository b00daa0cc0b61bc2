#include "error.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <map>
#include <mutex>

#include "device.h"
#include "settings.h"

namespace tunan {
namespace {

std::mutex guard;
std::string message;
std::atomic<aclError> status_of[MAX_DEVICES];

std::string now() {
    using namespace std::chrono;
    auto since = system_clock::now().time_since_epoch();
    time_t seconds = duration_cast<std::chrono::seconds>(since).count();
    long micro = duration_cast<microseconds>(since).count() % 1000000;
    tm parts{};
    localtime_r(&seconds, &parts);
    char day[32], whole[64];
    strftime(day, sizeof day, "%Y-%m-%d-%H:%M:%S", &parts);
    snprintf(whole, sizeof whole, "%s.%03ld.%03ld", day, micro / 1000, micro % 1000);
    return whole;
}

// Three forms: errors of a class have its name, inner errors a trace-back, the rest only a code.
std::string formatted(const std::string& code, const std::string& text) {
    static const std::map<std::string, std::string> classes{
        {"EZ1001", "AclNN_Parameter_Error"},
        {"EI0006", "Communication_Error_Get_Socket"},
        {"EL0009", "Insufficient_Stream_Resources"},
    };
    std::string stamp = "[PID: " + std::to_string(getpid()) + "] " + now() + " ";
    auto known = classes.find(code);
    if (known != classes.end()) return stamp + known->second + "(" + code + "): " + text + "\n";
    if (code.substr(2) == "9999")
        return code + ": Inner Error!\n" + code + stamp + "(" + code + "):  " + text +
               "\n        TraceBack (most recent call last):\n";
    return code + ": " + stamp + text + "\n";
}

}  // namespace

void report(const char* code, const std::string& text) {
    trace(std::string("error ") + code + " " + text);
    std::lock_guard<std::mutex> lock(guard);
    message = formatted(code, text);
}

void fail_device(int device, aclError status) {
    aclError fine = ACL_SUCCESS;
    status_of[device].compare_exchange_strong(fine, status);
}

aclError device_status(int device) { return status_of[device]; }

void heal_device(int device) { status_of[device] = ACL_SUCCESS; }

}  // namespace tunan

extern "C" {

const char* aclGetRecentErrMsg() {
    // Valid until this thread asks again, as in CANN; asking takes the message away.
    static thread_local std::string last;
    std::lock_guard<std::mutex> lock(tunan::guard);
    last = std::move(tunan::message);
    tunan::message.clear();
    return last.empty() ? nullptr : last.c_str();
}

aclError aclrtGetLastError(aclrtLastErrLevel) {
    return tunan::device_status(tunan::current_device());
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel) {
    return tunan::device_status(tunan::current_device());
}

void aclAppLog(aclLogLevel level, const char* function, const char*, uint32_t line,
               const char* format, ...) {
    if (level < ACL_ERROR || !tunan::tracing()) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tunan::trace(std::string("log ") + function + ":" + std::to_string(line) + " " + text);
}

}  // extern "C"
