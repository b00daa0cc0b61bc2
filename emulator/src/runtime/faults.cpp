#include "faults.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "device.h"
#include "error.h"
#include "settings.h"

namespace tunan::faults {
namespace {

struct Fault {
    std::string kind;
    std::map<std::string, std::string> keys;

    bool hits(int device) const {
        auto wanted = keys.find("device");
        return (wanted == keys.end() || std::stoi(wanted->second) == on_machine(device)) && there();
    }
    bool there() const {
        auto file = keys.find("while");
        return file == keys.end() || access(file->second.c_str(), F_OK) == 0;
    }
    bool is_of(const char* name) const {
        auto op = keys.find("op");
        return op != keys.end() && op->second == name;
    }
    long number(const char* key, long otherwise) const {
        auto found = keys.find(key);
        return found == keys.end() ? otherwise : std::stol(found->second);
    }
};

std::vector<Fault> parse(const std::string& text) {
    std::vector<Fault> faults;
    std::istringstream clauses(text);
    for (std::string clause; std::getline(clauses, clause, ';');) {
        Fault fault;
        std::istringstream parts(clause);
        std::getline(parts, fault.kind, ':');
        for (std::string pair; std::getline(parts, pair, ',');) {
            auto equals = pair.find('=');
            if (equals != std::string::npos)
                fault.keys[pair.substr(0, equals)] = pair.substr(equals + 1);
        }
        faults.push_back(fault);
    }
    return faults;
}

const std::vector<Fault>& all() {
    static const std::vector<Fault> parsed = parse(settings().faults);
    return parsed;
}

std::atomic<long> operators_on[MAX_DEVICES];
std::atomic<long> collectives_on[MAX_DEVICES];

void break_device(int device, aclError status, const char* code, const std::string& text) {
    if (device_status(device) == ACL_SUCCESS) report(code, text);
    fail_device(device, status);
}

std::string inner_error(int device, const char* what, unsigned code) {
    char hex[16];
    snprintf(hex, sizeof hex, "0x%x", code);
    return std::string("The error from device(chipId:") + std::to_string(on_machine(device)) +
           ", dieId:0), serial number is 1, " + what + ", errorCode=" + hex + ".";
}

}  // namespace

size_t memory_limit(int device) {
    for (const Fault& fault : all())
        if (fault.kind == "oom" && operators_on[device] >= fault.number("after", 0) &&
            fault.hits(device))
            return parse_bytes(fault.keys.at("bytes"));
    return SIZE_MAX;
}

void before_operator(const char* name, int device) {
    if (all().empty()) return;
    long done = operators_on[device]++;
    for (const Fault& fault : all()) {
        if (!fault.hits(device)) continue;
        if (fault.kind == "slow")
            std::this_thread::sleep_for(std::chrono::microseconds(fault.number("us", 0)));
        else if (fault.kind == "ecc" && done >= fault.number("after", 0))
            break_device(device, ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR, "EZ9999",
                         inner_error(device, "hbm Multi-bit ECC error occurred", 0x80e01801));
        else if (fault.kind == "lost" && done >= fault.number("after", 0))
            break_device(device, ACL_ERROR_RT_LOST_HEARTBEAT, "EE9999",
                         inner_error(device, "ts lost heartbeat", ACL_ERROR_RT_LOST_HEARTBEAT));
        else if (fault.kind == "exception" && fault.is_of(name))
            break_device(device, ACL_ERROR_RT_AICORE_EXCEPTION, "EZ9999",
                         inner_error(device, "there is an aicore error exception", 0x800000));
    }
}

void before_copy(int device) {
    for (const Fault& fault : all())
        if (fault.kind == "slow" && fault.hits(device))
            std::this_thread::sleep_for(std::chrono::microseconds(fault.number("us", 0)));
}

bool collective_hangs(int device) {
    long done = collectives_on[device]++;
    for (const Fault& fault : all())
        if (fault.kind == "hccl-timeout" && fault.hits(device) && done >= fault.number("after", 0))
            return true;
    return false;
}

size_t hccl_buffer_of(const char* name, int device) {
    for (const Fault& fault : all())
        if (fault.kind == "hccl-buffer" && fault.is_of(name) && fault.hits(device))
            return fault.number("mb", 0);
    return 0;
}

size_t most_graphs(int device) {
    for (const Fault& fault : all())
        if (fault.kind == "graph-streams" && fault.hits(device)) return fault.number("graphs", 0);
    return SIZE_MAX;
}

}  // namespace tunan::faults
