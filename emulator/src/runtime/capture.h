// ACL graphs: while one is captured, tasks are recorded and not run; a replay runs them in order.
#pragma once
#include "stream.h"

namespace tunan {

// True while any graph of the process is being captured.
bool capturing();

// Takes the task into the graph being captured, or into the captured group that this stream
// updates. False: it is an ordinary task, for the caller to run.
bool record(aclrtStream stream, const Task& task);

}  // namespace tunan
