#include "isa.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace tunan {
namespace {

struct Features {
    bool avx2 = false;
    bool avx_vnni = false;
    bool avx512_vnni = false;
    bool amx = false;
    bool neon = false;
    bool dotprod = false;
    bool i8mm = false;
};

#if defined(__x86_64__)
bool bit(unsigned word, int position) { return (word >> position) & 1; }

Features detect() {
    Features found;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    const bool os_saves_avx = bit(c, 27) && bit(c, 28) && bit(c, 12) && bit(c, 29);
    if (!os_saves_avx) return found;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const bool ymm = (low & 0x06) == 0x06;
    const bool zmm = (low & 0xe6) == 0xe6;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx2 = ymm && bit(b, 5);
    const bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // F DQ BW VL
    found.avx512_vnni = found.avx2 && zmm && avx512 && bit(c, 11);
    const bool os_saves_tiles = (low & 0x60000) == 0x60000;
    const bool tiles = os_saves_tiles && bit(d, 22) && bit(d, 24) && bit(d, 25);  // BF16 TILE INT8
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        found.avx_vnni = found.avx2 && bit(a, 4);
        found.amx = found.avx512_vnni && tiles && bit(a, 5);  // AVX512_BF16
    }
    return found;
}

// Linux gives a process the tile registers only after it has asked, once for all its threads and
// children. It refuses where a thread's signal stack could not hold them.
bool may_use_tiles() {
    constexpr int request_permission = 0x1023,
                  tile_data = 18;  // ARCH_REQ_XCOMP_PERM
    static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return granted;
}

bool supported_by(const Features& cpu, Isa isa) {
    switch (isa) {
        case Isa::scalar: return true;
        case Isa::avx2: return cpu.avx2;
        case Isa::avx2_vnni: return cpu.avx_vnni;
        case Isa::avx512_vnni: return cpu.avx512_vnni;
        case Isa::avx512_amx: return cpu.amx && may_use_tiles();
        default: return false;
    }
}
#elif defined(__aarch64__)
// From the kernel's ABI: an old C library's headers may not have the newer names.
constexpr unsigned long kHwcapAsimd = 1ul << 1;
constexpr unsigned long kHwcapDotprod = 1ul << 20;
constexpr unsigned long kHwcap2I8mm = 1ul << 13;

Features detect() {
    Features found;
    found.neon = getauxval(AT_HWCAP) & kHwcapAsimd;
    found.dotprod = getauxval(AT_HWCAP) & kHwcapDotprod;
    found.i8mm = found.dotprod && getauxval(AT_HWCAP2) & kHwcap2I8mm;
    return found;
}

bool supported_by(const Features& cpu, Isa isa) {
    switch (isa) {
        case Isa::scalar: return true;
        case Isa::neon: return cpu.neon;
        case Isa::neon_dotprod: return cpu.dotprod;
        case Isa::neon_i8mm: return cpu.i8mm;
        default: return false;
    }
}
#else
Features detect() { return {}; }

bool supported_by(const Features&, Isa isa) { return isa == Isa::scalar; }
#endif

Isa newest_supported() {
    for (int i = kIsaCount - 1; i > 0; i--) {
        if (isa_supported(static_cast<Isa>(i))) return static_cast<Isa>(i);
    }
    return Isa::scalar;
}

constexpr int kNotChosen = -1;
std::atomic<int> chosen{kNotChosen};

int select(const char* name) {
    if (!name || !*name) {
        chosen = static_cast<int>(newest_supported());
        return kOk;
    }
    for (int i = 0; i < kIsaCount; i++) {
        if (std::strcmp(name, isa_name(static_cast<Isa>(i))) != 0) continue;
        if (!isa_supported(static_cast<Isa>(i))) {
            return fail(kUnsupported, "this CPU has no %s; it runs %s", name,
                        tunan_isa_supported());
        }
        chosen = i;
        return kOk;
    }
    return fail(kBadArgument, "%s is no instruction set of this library; this CPU runs %s", name,
                tunan_isa_supported());
}

}  // namespace

const char* isa_name(Isa isa) {
    static const char* const names[] = {
#define TUNAN_QUOTE(name) #name,
        TUNAN_ISAS(TUNAN_QUOTE)
#undef TUNAN_QUOTE
    };
    return names[static_cast<int>(isa)];
}

bool isa_supported(Isa isa) {
    static const Features cpu = detect();
    return supported_by(cpu, isa);
}

Isa selected_isa() {
    const int isa = chosen.load(std::memory_order_relaxed);
    if (isa != kNotChosen) return static_cast<Isa>(isa);
    // An override that cannot be met is reported where the library is loaded (tunan_isa_select).
    if (select(std::getenv("TUNAN_KERNELS_ISA")) != kOk) select(nullptr);
    return static_cast<Isa>(chosen.load(std::memory_order_relaxed));
}

}  // namespace tunan

TUNAN_API const char* tunan_isa_supported() {
    static const std::string names = [] {
        std::string list;
        for (int i = 0; i < tunan::kIsaCount; i++) {
            if (!tunan::isa_supported(static_cast<tunan::Isa>(i))) continue;
            list += list.empty() ? "" : ",";
            list += tunan::isa_name(static_cast<tunan::Isa>(i));
        }
        return list;
    }();
    return names.c_str();
}

TUNAN_API const char* tunan_isa_selected() { return tunan::isa_name(tunan::selected_isa()); }

TUNAN_API int tunan_isa_select(const char* name) { return tunan::select(name); }
