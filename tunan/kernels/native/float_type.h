// Types of activations and results, and their conversion one at a time.
#pragma once

#include <cstdint>
#include <cstring>

namespace tunan {

// The numbers are part of the C ABI.
enum class FloatType : int { f32 = 0, bf16 = 1, f16 = 2 };

// For functions used in files that are compiled for different CPUs.
#define TUNAN_INLINE inline __attribute__((always_inline))

TUNAN_INLINE bool is_float_type(int number) { return number >= 0 && number <= 2; }

TUNAN_INLINE int64_t float_bytes(FloatType type) { return type == FloatType::f32 ? 4 : 2; }

TUNAN_INLINE float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

TUNAN_INLINE uint32_t bits_of_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

TUNAN_INLINE float float_of_bf16(uint16_t value) {
    return float_of_bits(static_cast<uint32_t>(value) << 16);
}

// Rounds to nearest even; every NaN becomes 0x7fc0.
TUNAN_INLINE uint16_t bf16_of_float(float value) {
    const uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

TUNAN_INLINE float float_of_f16(uint16_t value) {
    const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
    const uint32_t exponent = (value >> 10) & 0x1f;
    const uint32_t mantissa = value & 0x3ffu;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return float_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return float_of_bits(sign | bits_of_float(magnitude));
}

// Rounds to nearest even; every NaN becomes 0x7e00, what is too large infinity.
TUNAN_INLINE uint16_t f16_of_float(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00;
    if (magnitude >= 0x47800000u) return sign | 0x7c00;  // 65536 and above
    if (magnitude < 0x38800000u) {                       // below 2^-14: subnormal
        // Adding 0.5 leaves the value's multiple of 2^-24 in the low bits, rounded to nearest even.
        const uint32_t sum = bits_of_float(float_of_bits(magnitude) + 0.5f);
        return sign | static_cast<uint16_t>(sum - 0x3f000000u);
    }
    const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1);
    return sign | static_cast<uint16_t>(rounded >> 13);
}

}  // namespace tunan
