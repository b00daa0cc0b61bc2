// Which instruction sets this library has, which of them this CPU runs, and the one in use.
#pragma once

#include "status.h"

// Of one architecture, oldest first: the last that the CPU supports is the one in use.
#if defined(__x86_64__)
#define TUNAN_ISAS(X) X(scalar) X(avx2) X(avx2_vnni) X(avx512_vnni) X(avx512_amx)
#elif defined(__aarch64__)
#define TUNAN_ISAS(X) X(scalar) X(neon) X(neon_dotprod) X(neon_i8mm)
#else
#define TUNAN_ISAS(X) X(scalar)
#endif

namespace tunan {

enum class Isa : int {
#define TUNAN_ENUMERATE(name) name,
    TUNAN_ISAS(TUNAN_ENUMERATE)
#undef TUNAN_ENUMERATE
        count
};

constexpr int kIsaCount = static_cast<int>(Isa::count);

const char* isa_name(Isa isa);
bool isa_supported(Isa isa);

// The instruction set in use: TUNAN_KERNELS_ISA, else the newest that the CPU supports.
Isa selected_isa();

// How a concept is dispatched: NAME.isa.cpp defines `const NameKernels& name_kernels()` in
// `namespace tunan::TUNAN_ISA`; the common code declares them with
//   #define DECLARE(isa) namespace isa { const NameKernels& name_kernels(); }
//   TUNAN_ISAS(DECLARE)
// and picks one with a switch over selected_isa(). A *.isa.cpp file uses no functions of std:: that
// the compiler might emit out of line: the linker could keep a newer CPU's copy for all.

// Tells the core that it waits for another one.
inline void cpu_relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace tunan

// Names of the instruction sets this CPU supports, oldest first, with commas between.
TUNAN_API const char* tunan_isa_supported();
TUNAN_API const char* tunan_isa_selected();
// Uses the named set from here on (no kernel may be running); null or "" chooses again by itself.
// kUnsupported when the CPU lacks it, kBadArgument when there is no such set.
TUNAN_API int tunan_isa_select(const char* name);
