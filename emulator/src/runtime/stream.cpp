#include "stream.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "capture.h"
#include "device.h"
#include "error.h"
#include "faults.h"
#include "settings.h"

namespace tunan {
namespace {

class Stream {
  public:
    Stream(int id, int device) : id(id), device(device) {}

    ~Stream() {
        {
            std::lock_guard<std::mutex> lock(guard_);
            stopping_ = true;
        }
        changed_.notify_all();
        if (thread_.joinable()) thread_.join();
    }

    void push(Task task) {
        std::lock_guard<std::mutex> lock(guard_);
        if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
        queue_.push_back(std::move(task));
        changed_.notify_all();
    }

    bool idle() {
        std::lock_guard<std::mutex> lock(guard_);
        return queue_.empty() && !busy_;
    }

    void wait() {
        std::unique_lock<std::mutex> lock(guard_);
        changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
    }

    const int id, device;

  private:
    void loop() {
        aclrtSetDevice(device);
        std::unique_lock<std::mutex> lock(guard_);
        for (;;) {
            changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
            if (queue_.empty()) return;
            {
                Task task = std::move(queue_.front());
                queue_.pop_front();
                busy_ = true;
                lock.unlock();
                run_task(task, device);
            }  // what the task held is released before anyone sees the stream idle
            lock.lock();
            busy_ = false;
            changed_.notify_all();
        }
    }

    std::mutex guard_;
    std::condition_variable changed_;
    std::deque<Task> queue_;
    bool busy_ = false, stopping_ = false;
    std::thread thread_;
};

std::mutex guard;
std::vector<Stream*> streams;
std::atomic<int> next_id{1};

Stream* default_stream(int device) {
    // Never destroyed: tasks may still run while the process ends.
    static Stream* of[MAX_DEVICES];
    std::lock_guard<std::mutex> lock(guard);
    if (!of[device]) of[device] = new Stream(0, device);
    return of[device];
}

Stream* stream_of(aclrtStream stream) {
    return stream ? static_cast<Stream*>(stream) : default_stream(current_device());
}

}  // namespace

void run_task(const Task& task, int device) {
    if (task.name) {
        faults::before_operator(task.name, device);
        // A broken device executes nothing more; events and waits still complete, so that whoever
        // synchronises gets the error and not a hang.
        if (device_status(device) != ACL_SUCCESS) return;
    }
    try {
        task.run();
    } catch (const std::exception& error) {
        std::string text = error.what();
        report("EZ9999", "The error from device(chipId:" + std::to_string(on_machine(device)) +
                             ", dieId:0), there is an aicore error exception, kernel_name=" +
                             (task.name ? task.name : "task") + ": " +
                             text.substr(0, text.find('\n')));
        fail_device(device, ACL_ERROR_RT_AICORE_EXCEPTION);
    }
}

void submit_now(aclrtStream stream, Task task) { stream_of(stream)->push(std::move(task)); }

void submit(aclrtStream stream, Task task) {
    if (record(stream, task)) return;
    submit_now(stream, std::move(task));
}

aclError synchronize(aclrtStream stream) {
    if (capturing()) return ACL_ERROR_RT_STREAM_CAPTURED;
    Stream* one = stream_of(stream);
    one->wait();
    return device_status(one->device);
}

aclError synchronize_all() {
    if (capturing()) return ACL_ERROR_RT_STREAM_CAPTURED;
    std::vector<Stream*> now;
    {
        std::lock_guard<std::mutex> lock(guard);
        now = streams;
    }
    now.push_back(default_stream(current_device()));
    for (Stream* one : now) one->wait();
    return device_status(current_device());
}

int stream_id(aclrtStream stream) { return stream ? static_cast<Stream*>(stream)->id : 0; }

}  // namespace tunan

using namespace tunan;

extern "C" {

aclError aclrtCreateStream(aclrtStream* stream) {
    auto* made = new Stream(next_id++, current_device());
    std::lock_guard<std::mutex> lock(guard);
    streams.push_back(made);
    *stream = made;
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
    return aclrtCreateStream(stream);
}

aclError aclrtDestroyStream(aclrtStream stream) {
    auto* gone = static_cast<Stream*>(stream);
    {
        std::lock_guard<std::mutex> lock(guard);
        streams.erase(std::remove(streams.begin(), streams.end(), gone), streams.end());
    }
    delete gone;
    return ACL_SUCCESS;
}

aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
    *id = stream_id(stream);
    return ACL_SUCCESS;
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
    Stream* one = stream_of(stream);
    *status = one->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return device_status(one->device);
}

aclError aclrtSynchronizeStream(aclrtStream stream) { return synchronize(stream); }

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) {
    return synchronize(stream);
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* argument) {
    submit(stream, {[=] { function(argument); }});
    return ACL_SUCCESS;
}

aclError aclrtLaunchCallback(aclrtCallback function, void* argument, aclrtCallbackBlockType,
                             aclrtStream stream) {
    submit(stream, {[=] { function(argument); }});
    return ACL_SUCCESS;
}

}  // extern "C"
