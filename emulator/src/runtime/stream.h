// A stream is a queue of tasks and one thread that runs them in order.
#pragma once
#include <cstddef>
#include <functional>

#include "acl/acl.h"

namespace tunan {

struct Task {
    std::function<void()> run;
    const char* name =
        nullptr;  // set for operators: they are traced, and skipped on a broken device
};

// Runs the task on the stream (null: the default stream), or records it when a graph is being
// captured or a captured group of tasks is being updated through this stream.
void submit(aclrtStream stream, Task task);

// Runs the task on the stream even while a graph is being captured.
void submit_now(aclrtStream stream, Task task);

// Runs one task on the calling thread as that device would: faults, trace, errors.
void run_task(const Task& task, int device);

aclError synchronize(aclrtStream stream);
aclError synchronize_all();
int stream_id(aclrtStream stream);

}  // namespace tunan
