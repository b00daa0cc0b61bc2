#include "sharing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#include "device.h"
#include "settings.h"

namespace tunan {
namespace {

// The file of a device: how many bytes each process has, in the place it has found. A place is
// taken as long as its byte of the file is locked, and the kernel takes a lock away when its
// process ends. Byte PROCESSES guards the table.
constexpr int PROCESSES = 128;
using Table = std::atomic<size_t>[PROCESSES];

struct Device {
    int file = -1;
    Table* table = nullptr;
    int place = -1;
    pid_t owner = 0;
};

std::mutex guard;
Device devices[MAX_DEVICES];

bool lock(int file, int command, short type, int place) {
    struct flock wanted{};
    wanted.l_type = type;
    wanted.l_whence = SEEK_SET;
    wanted.l_start = place;
    wanted.l_len = 1;
    if (fcntl(file, command, &wanted) < 0) return false;
    return command != F_GETLK || wanted.l_type != F_UNLCK;
}

class Guarded {
  public:
    explicit Guarded(int file) : file_(file) { lock(file_, F_SETLKW, F_WRLCK, PROCESSES); }
    ~Guarded() { lock(file_, F_SETLK, F_UNLCK, PROCESSES); }

  private:
    int file_;
};

void map(Device& device, int number) {
    std::string path = settings().state + "/davinci" + std::to_string(number);
    int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Table))) return;
    void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return;
    device.file = file;
    device.table = static_cast<Table*>(memory);
}

// A process that was forked has its parent's file and no place yet: locks are not inherited.
void find_place(Device& device) {
    if (device.owner == getpid()) return;
    Guarded whole(device.file);
    for (int place = 0; place < PROCESSES; place++) {
        if (!lock(device.file, F_SETLK, F_WRLCK, place)) continue;
        (*device.table)[place] = 0;
        device.place = place;
        device.owner = getpid();
        return;
    }
}

// The device's file and this process's place in it, or nullptr if there is none.
Device* shared(int number) {
    if (settings().state.empty()) return nullptr;
    Device& device = devices[number];
    if (!device.table) map(device, on_machine(number));
    if (!device.table) return nullptr;
    find_place(device);
    return device.owner == getpid() ? &device : nullptr;
}

size_t of_others(const Device& device) {
    size_t sum = 0;
    for (int place = 0; place < PROCESSES; place++)
        if (place != device.place && (*device.table)[place] &&
            lock(device.file, F_GETLK, F_WRLCK, place))
            sum += (*device.table)[place];
    return sum;
}

}  // namespace

void open_shared(int device) {
    std::lock_guard<std::mutex> lock(guard);
    shared(device);
}

bool take_shared(int number, size_t bytes, size_t room) {
    std::lock_guard<std::mutex> lock(guard);
    Device* device = shared(number);
    if (!device) return bytes <= room;
    Guarded whole(device->file);
    size_t others = of_others(*device);
    if (others > room || bytes > room - others) return false;
    (*device->table)[device->place] += bytes;
    return true;
}

void give_back_shared(int number, size_t bytes) {
    std::lock_guard<std::mutex> lock(guard);
    if (Device* device = shared(number)) (*device->table)[device->place] -= bytes;
}

size_t shared_by_others(int number) {
    std::lock_guard<std::mutex> lock(guard);
    Device* device = shared(number);
    return device ? of_others(*device) : 0;
}

}  // namespace tunan
