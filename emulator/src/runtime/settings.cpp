#include "settings.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace tunan {
namespace {

std::string variable(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value && *value ? value : otherwise;
}

// ASCEND_RT_VISIBLE_DEVICES="2,3" leaves a process the devices it names, numbered from 0.
std::vector<int> visible_devices() {
    int all = std::atoi(variable("TUNAN_EMULATE_DEVICES", "1").c_str());
    std::string named = variable("ASCEND_RT_VISIBLE_DEVICES", "");
    std::vector<int> visible;
    if (named.empty())
        for (int device = 0; device < all; device++) visible.push_back(device);
    std::istringstream list(named);
    for (std::string one; std::getline(list, one, ',');)
        if (std::atoi(one.c_str()) < all) visible.push_back(std::atoi(one.c_str()));
    return visible;
}

int open_trace() {
    const std::string& path = settings().trace;
    if (path.empty()) return -1;
    return open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

int trace_file() {
    static int file = open_trace();
    return file;
}

}  // namespace

size_t parse_bytes(const std::string& text) {
    char* end = nullptr;
    double number = strtod(text.c_str(), &end);
    switch (end ? *end : 0) {
        case 'K': number *= 1ull << 10; break;
        case 'M': number *= 1ull << 20; break;
        case 'G': number *= 1ull << 30; break;
        default: break;
    }
    return static_cast<size_t>(number);
}

const Settings& settings() {
    static const Settings read{
        visible_devices(),
        parse_bytes(variable("TUNAN_EMULATE_MEMORY", "4G")),
        variable("TUNAN_EMULATE_SOC", "Ascend910B3"),
        variable("TUNAN_EMULATE_TRACE", ""),
        variable("TUNAN_EMULATE_FAULTS", ""),
        variable("TUNAN_EMULATE_STATE", ""),
    };
    return read;
}

bool tracing() { return trace_file() >= 0; }

void trace(const std::string& line) {
    if (!tracing()) return;
    std::string whole = line + "\n";
    // One write a line, so that lines of several processes do not mix.
    if (write(trace_file(), whole.data(), whole.size()) < 0) return;
}

}  // namespace tunan

extern "C" int tunan_unimplemented(const char* symbol) {
    tunan::trace(std::string("stub ") + symbol);
    return 0;
}
