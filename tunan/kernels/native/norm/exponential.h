// e^x for x <= 0 in plain arithmetic, which the compiler vectorises and which every instruction set
// does alike, bit for bit.
#pragma once

#include "float_type.h"

namespace tunan {

// Relative error below 3e-7 for x > -10; exactly 1 at 0 and exactly 0 below -87, so that in a
// softmax a masked key and an unchanged maximum leave every bit as it was.
TUNAN_INLINE float exp_negative(float x) {
    const float clamped = x < -87.f ? -87.f : x;
    const float t = clamped * 1.44269504f;
    const float n = (t + 12582912.f) - 12582912.f;  // rounds to an integer
    const float f = t - n;
    float p = 1.535336188e-4f;  // 2^f on [-1/2, 1/2]
    p = p * f + 1.339887440e-3f;
    p = p * f + 9.618437357e-3f;
    p = p * f + 5.550332471e-2f;
    p = p * f + 2.402264791e-1f;
    p = p * f + 6.931472028e-1f;
    p = p * f + 1.f;
    const float whole = n < -126.f ? -126.f : n;  // a NaN becomes an exponent too, and p keeps it
    const float power =
        float_of_bits(static_cast<uint32_t>(static_cast<int32_t>(whole) + 127) << 23);
    return x < -87.f ? 0.f : p * power;
}

}  // namespace tunan
