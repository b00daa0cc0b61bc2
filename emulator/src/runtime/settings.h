// What the environment says about the emulated machine; read once a process.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace tunan {

struct Settings {
    // The machine's numbers of the devices that this process has, which count from 0 here:
    // TUNAN_EMULATE_DEVICES of them, 1, or those of ASCEND_RT_VISIBLE_DEVICES.
    std::vector<int> devices;
    size_t memory;       // TUNAN_EMULATE_MEMORY, bytes a device, 4 GiB
    std::string soc;     // TUNAN_EMULATE_SOC as aclrtGetSocName spells it, Ascend910B3
    std::string trace;   // TUNAN_EMULATE_TRACE: a file that gets a line for each operator
    std::string faults;  // TUNAN_EMULATE_FAULTS, see faults.h
    std::string state;   // TUNAN_EMULATE_STATE: a folder, see sharing.h; empty: nothing is shared
};

const Settings& settings();

// "2G", "512M", "4096" -> bytes.
size_t parse_bytes(const std::string& text);

// Appends a line to the trace; cheap when there is none. Safe from several processes.
bool tracing();
void trace(const std::string& line);

}  // namespace tunan
