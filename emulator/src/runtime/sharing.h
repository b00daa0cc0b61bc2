// Devices that processes share (TUNAN_EMULATE_STATE=FOLDER): a process that uses one has the file
// davinciN of that folder open, as it would have the device's own on a machine with NPUs, and what
// it takes of the memory is missing for the others until it gives it back or ends, however it ends.
//
// Without a folder memory is counted in each process alone.
#pragma once
#include <cstddef>

namespace tunan {

// Opens the device's file; later calls do nothing.
void open_shared(int device);

// Takes `bytes`; false if less than that is left of the `room` that this process sees.
bool take_shared(int device, size_t bytes, size_t room);
void give_back_shared(int device, size_t bytes);

// What other processes have taken of the device.
size_t shared_by_others(int device);

}  // namespace tunan
