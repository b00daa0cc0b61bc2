// How a collective becomes a task of a stream.
#pragma once
#include <string>

#include "communicator.h"
#include "device.h"
#include "error.h"
#include "hccl/hccl_types.h"
#include "settings.h"
#include "stream.h"

namespace tunan {

inline Communicator* group_of(HcclComm comm) { return static_cast<Communicator*>(comm); }

// A collective that fails leaves its device broken: whoever synchronises gets the error.
template <class Body>
HcclResult queue(aclrtStream stream, HcclComm comm, const char* name, Body body) {
    submit(stream, {[=] {
                        trace(std::string(name) + " rank=" + std::to_string(group_of(comm)->rank));
                        try {
                            group_of(comm)->start(name);
                            body();
                        } catch (const HcclFailure& failure) {
                            report("EI0002", failure.text);
                            fail_device(current_device(), ACL_ERROR_RT_FFTS_PLUS_TIMEOUT);
                        }
                    },
                    name});
    return HCCL_SUCCESS;
}

}  // namespace tunan
