// AVX-512 as in avx512_vnni.h, and AMX.
#pragma once

#include "vec/avx512_vnni.h"
#include "vec/tiles.h"

#define TUNAN_HAS_TILES

namespace tunan::TUNAN_ISA {

TUNAN_INLINE void store_bytes(uint8_t* p, Bytes bytes) { _mm512_storeu_si512(p, bytes); }
TUNAN_INLINE Bytes subtract_bytes(Bytes a, Bytes b) { return _mm512_sub_epi8(a, b); }

// Both vectors, one after the other. The CPU's own conversion is right but for subnormals, which it
// flushes, and for which NaN it gives.
TUNAN_INLINE void store_bf16(uint16_t* p, Floats low, Floats high) {
    constexpr int nan_or_subnormal = 0xa1;
    const __mmask16 other = _mm512_fpclass_ps_mask(low, nan_or_subnormal) |
                            _mm512_fpclass_ps_mask(high, nan_or_subnormal);
    if (__builtin_expect(other != 0, 0)) {
        store_bf16(p, low);
        store_bf16(p + kLanes, high);
        return;
    }
    __m512i both;
    asm("vcvtne2ps2bf16 %1,%2,%0" : "=v"(both) : "v"(low), "v"(high));
    _mm512_storeu_si512(p, both);
}

}  // namespace tunan::TUNAN_ISA
