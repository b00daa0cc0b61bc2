// Devices are numbers; a thread has a current one, and a context is a device.
#pragma once

namespace tunan {

constexpr int MAX_DEVICES = 64;

// The calling thread's device, 0 when it never chose one. Devices are numbered as the process sees
// them; on_machine() is the number that the machine has for one.
int current_device();
int on_machine(int device);

}  // namespace tunan
