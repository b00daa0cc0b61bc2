// Faults on demand: TUNAN_EMULATE_FAULTS="kind:key=value,key=value;kind:...".
//
//   oom:bytes=256M,after=9    allocations fail once a device would hold more than this
//   ecc:after=100             the device reports an uncorrectable memory error
//   lost:after=100            the device stops answering
//   exception:op=aclnnMm      this operator ends in an AI Core exception
//   hccl-timeout:after=10     the 11th collective never completes on any rank
//   hccl-buffer:op=aclnnMm,mb=300   this operator wants HCCL_BUFFSIZE to be so large
//   graph-streams:graphs=4    the device has streams for so many captured graphs
//   slow:us=500               every operator and every queued copy takes so much longer
//   missing:op=aclnnRmsNorm   libopapi.so lacks the operator (done by the launcher, not here)
//
// `after` counts what the process has run on the device: collectives, or operators. Each kind but
// `missing` takes device=N (the machine's number) to hit one device only, and while=FILE to be
// there only while that file is. tunan_emulator/faults.py checks the grammar before anything
// starts; what this side does not know it ignores.
#pragma once
#include <cstddef>
#include <string>

namespace tunan::faults {

// The most bytes this device may hold, or SIZE_MAX.
size_t memory_limit(int device);

// Called on the device's own thread before each operator; may sleep, and may fail the device.
void before_operator(const char* name, int device);

// Called on the device's own thread before each queued copy; may sleep.
void before_copy(int device);

// True when the collective that starts now on this device must never complete.
bool collective_hangs(int device);

// The MB that the operator wants HCCL's buffer to have at least, 0 if it does not ask.
size_t hccl_buffer_of(const char* name, int device);

// How many captured graphs this device has streams for, or SIZE_MAX.
size_t most_graphs(int device);

}  // namespace tunan::faults
