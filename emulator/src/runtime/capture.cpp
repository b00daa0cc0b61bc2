#include "capture.h"

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "device.h"
#include "error.h"
#include "faults.h"
#include "settings.h"

namespace tunan {
namespace {

struct Graph {
    uint32_t id;
    std::vector<Task> tasks;
};

// Neighbouring tasks of a graph whose arguments may be replaced before a replay reaches them.
struct Group {
    Graph* graph;
    size_t begin, end;
};

struct Update {
    Group* group;
    size_t next;
};

std::mutex guard;
std::atomic<Graph*> captured{nullptr};
aclrtStream capture_stream = nullptr;
size_t group_begin = 0;
uint32_t next_id = 1;
size_t graphs = 0;
std::map<aclrtStream, Update> updates;

// The replacement happens in the update stream's order, as on the device: what was queued before it
// on that stream is done first.
void replace(aclrtStream stream, Update& update, const Task& task) {
    Group* group = update.group;
    if (update.next >= group->end) {
        report("EE1001",
               "The argument is invalid.Reason: more tasks were launched than the task group has");
        fail_device(current_device(), ACL_ERROR_RT_PARAM_INVALID);
        return;
    }
    size_t at = update.next++;
    submit_now(stream, {[=] {
                   std::lock_guard<std::mutex> lock(guard);
                   group->graph->tasks[at] = task;
               }});
}

void replay(Graph* graph) {
    for (size_t at = 0;; at++) {
        Task task;
        {
            std::lock_guard<std::mutex> lock(guard);
            if (at >= graph->tasks.size()) return;
            task = graph->tasks[at];
        }
        run_task(task, current_device());
    }
}

}  // namespace

bool capturing() { return captured != nullptr; }

bool record(aclrtStream stream, const Task& task) {
    std::lock_guard<std::mutex> lock(guard);
    auto update = updates.find(stream);
    if (update != updates.end()) {
        replace(stream, update->second, task);
        return true;
    }
    if (!captured) return false;
    captured.load()->tasks.push_back(task);
    return true;
}

}  // namespace tunan

using namespace tunan;

extern "C" {

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode) {
    std::lock_guard<std::mutex> lock(guard);
    if (captured) return ACL_ERROR_RT_STREAM_CAPTURED;
    if (graphs >= faults::most_graphs(current_device())) {
        report("EL0009", "Stream resources are insufficient.");
        return ACL_ERROR_RT_NO_STREAM_RESOURCE;
    }
    graphs++;
    captured = new Graph{next_id++, {}};
    capture_stream = stream;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream, aclmdlRI* model) {
    std::lock_guard<std::mutex> lock(guard);
    if (!captured) return ACL_ERROR_RT_STREAM_NOT_CAPTURED;
    Graph* graph = captured.exchange(nullptr);
    trace("capture graph=" + std::to_string(graph->id) +
          " tasks=" + std::to_string(graph->tasks.size()));
    *model = reinterpret_cast<aclmdlRI>(graph);
    capture_stream = nullptr;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status,
                                aclmdlRI* model) {
    std::lock_guard<std::mutex> lock(guard);
    bool active = captured && stream == capture_stream;
    *status = active ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    if (model) *model = active ? reinterpret_cast<aclmdlRI>(captured.load()) : nullptr;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode*) { return ACL_SUCCESS; }

aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
    auto* graph = reinterpret_cast<Graph*>(model);
    trace("replay graph=" + std::to_string(graph->id) +
          " stream=" + std::to_string(stream_id(stream)));
    submit(stream, {[=] { replay(graph); }});
    return ACL_SUCCESS;
}

aclError aclmdlRIDestroy(aclmdlRI model) {
    synchronize_all();
    std::lock_guard<std::mutex> lock(guard);
    graphs--;
    delete reinterpret_cast<Graph*>(model);
    return ACL_SUCCESS;
}

aclError aclmdlRIGetId(aclmdlRI model, uint32_t* id) {
    *id = reinterpret_cast<Graph*>(model)->id;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpBegin(aclrtStream) {
    std::lock_guard<std::mutex> lock(guard);
    if (!captured) return ACL_ERROR_RT_STREAM_NOT_CAPTURED;
    group_begin = captured.load()->tasks.size();
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpEnd(aclrtStream, aclrtTaskGrp* handle) {
    std::lock_guard<std::mutex> lock(guard);
    if (!captured) return ACL_ERROR_RT_STREAM_NOT_CAPTURED;
    // Lives as long as the process: a handle has no destructor in the interface.
    auto* group = new Group{captured, group_begin, captured.load()->tasks.size()};
    *handle = reinterpret_cast<aclrtTaskGrp>(group);
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp handle) {
    auto* group = reinterpret_cast<Group*>(handle);
    std::lock_guard<std::mutex> lock(guard);
    updates[stream] = {group, group->begin};
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
    std::lock_guard<std::mutex> lock(guard);
    updates.erase(stream);
    return ACL_SUCCESS;
}

}  // extern "C"
