// Events. An ordinary one counts: a wait is for the recording that was last issued before it. An
// external one gates a captured graph from outside and is a flag that is set and reset.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "acl/acl.h"
#include "capture.h"
#include "device.h"
#include "error.h"
#include "settings.h"
#include "stream.h"

using namespace tunan;

namespace {

struct Event {
    explicit Event(bool external) : external(external) {}

    void fire(uint64_t generation) {
        std::lock_guard<std::mutex> lock(guard);
        completed = std::max(completed, generation);
        flag = true;
        time = std::chrono::steady_clock::now();
        changed.notify_all();
    }

    void wait(uint64_t generation) {
        std::unique_lock<std::mutex> lock(guard);
        changed.wait(lock, [&] { return external ? flag : completed >= generation; });
    }

    const bool external;
    std::mutex guard;
    std::condition_variable changed;
    uint64_t issued = 0, completed = 0;
    bool flag = false;
    std::chrono::steady_clock::time_point time;
};

// Queued tasks hold the event too, so destroying the handle early is harmless.
using Handle = std::shared_ptr<Event>;

Handle& event_of(aclrtEvent event) { return *static_cast<Handle*>(event); }

// Inside one captured graph tasks replay in order, so its own events have nothing to wait for.
bool inside_capture(const Handle& event) { return capturing() && !event->external; }

// The host's side of an event: that it queued its recording, and that it has waited for it.
void trace_event(const char* what, aclrtEvent event, int stream) {
    if (!tracing()) return;
    trace(std::string("event ") + what +
          " event=" + std::to_string(reinterpret_cast<uintptr_t>(event)) +
          (stream < 0 ? "" : " stream=" + std::to_string(stream)));
}

bool holds(uint64_t now, uint64_t wanted, uint32_t condition) {
    switch (condition) {
        case 0: return now >= wanted;
        case 1: return now == wanted;
        case 2: return (now & wanted) != 0;
        default: return ~(now | wanted) != 0;
    }
}

}  // namespace

extern "C" {

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
    *event = new Handle(std::make_shared<Event>((flag & ACL_EVENT_EXTERNAL) != 0));
    return ACL_SUCCESS;
}

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) {
    return aclrtCreateEventWithFlag(event, flag);
}

aclError aclrtDestroyEvent(aclrtEvent event) {
    delete static_cast<Handle*>(event);
    return ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
    Handle one = event_of(event);
    uint64_t generation;
    {
        std::lock_guard<std::mutex> lock(one->guard);
        generation = ++one->issued;
    }
    if (inside_capture(one)) {
        one->fire(generation);
        return ACL_SUCCESS;
    }
    trace_event("recorded", event, stream_id(stream));
    submit(stream, {[=] { one->fire(generation); }});
    return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
    Handle one = event_of(event);
    submit(stream, {[=] {
               std::lock_guard<std::mutex> lock(one->guard);
               one->flag = false;
           }});
    return ACL_SUCCESS;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
    Handle one = event_of(event);
    if (inside_capture(one)) return ACL_SUCCESS;
    uint64_t generation;
    {
        std::lock_guard<std::mutex> lock(one->guard);
        generation = one->issued;
    }
    submit(stream, {[=] { one->wait(generation); }});
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
    Handle one = event_of(event);
    one->wait(one->issued);
    trace_event("synchronized", event, -1);
    return device_status(current_device());
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
    Handle one = event_of(event);
    std::lock_guard<std::mutex> lock(one->guard);
    bool done = one->completed >= one->issued;
    *status = done ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) {
    *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
    *milliseconds =
        std::chrono::duration<float, std::milli>(event_of(end)->time - event_of(start)->time)
            .count();
    return ACL_SUCCESS;
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
    auto since = event_of(event)->time.time_since_epoch();
    *microseconds = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
    return ACL_SUCCESS;
}

// Streams also wait for and write plain words of memory.
aclError aclrtValueWrite(void* address, uint64_t value, uint32_t, aclrtStream stream) {
    submit(stream,
           {[=] { __atomic_store_n(static_cast<uint64_t*>(address), value, __ATOMIC_SEQ_CST); }});
    return ACL_SUCCESS;
}

aclError aclrtValueWait(void* address, uint64_t value, uint32_t condition, aclrtStream stream) {
    submit(stream, {[=] {
               auto* word = static_cast<uint64_t*>(address);
               while (!holds(__atomic_load_n(word, __ATOMIC_SEQ_CST), value, condition) &&
                      device_status(current_device()) == ACL_SUCCESS)
                   std::this_thread::sleep_for(std::chrono::microseconds(20));
           }});
    return ACL_SUCCESS;
}

}  // extern "C"
