// Plain loops that the compiler vectorises; the same bits in every instruction set.
#include "attention/cache_layout.h"
#include "rope/kernels.h"

namespace tunan::TUNAN_ISA {
namespace {

constexpr int kMostHeadSize = 1024;  // as check_cache() has it

TUNAN_INLINE float load_one(const void* data, FloatType type, int64_t i) {
    switch (type) {
        case FloatType::bf16: return float_of_bf16(static_cast<const uint16_t*>(data)[i]);
        case FloatType::f16: return float_of_f16(static_cast<const uint16_t*>(data)[i]);
        default: return static_cast<const float*>(data)[i];
    }
}

TUNAN_INLINE void store_one(void* data, FloatType type, int64_t i, float value) {
    switch (type) {
        case FloatType::bf16: static_cast<uint16_t*>(data)[i] = bf16_of_float(value); break;
        case FloatType::f16: static_cast<uint16_t*>(data)[i] = f16_of_float(value); break;
        default: static_cast<float*>(data)[i] = value;
    }
}

template <FloatType kType, bool kInSteps>
TUNAN_INLINE float step(float value) {
    if constexpr (kInSteps && kType == FloatType::bf16) return float_of_bf16(bf16_of_float(value));
    if constexpr (kInSteps && kType == FloatType::f16) return float_of_f16(f16_of_float(value));
    return value;
}

// Rotates the pairs (i, i + step of the pairing) of one head by the angles of cosine and sine.
template <FloatType kType, bool kNeox, bool kInSteps>
TUNAN_INLINE void rotate_head(void* head, int half, const float* cosine, const float* sine) {
    constexpr auto rounded = step<kType, kInSteps>;
    for (int i = 0; i < half; ++i) {
        const int first = kNeox ? i : 2 * i, second = kNeox ? i + half : 2 * i + 1;
        const float a = load_one(head, kType, first), b = load_one(head, kType, second);
        store_one(head, kType, first, rounded(a * cosine[i]) - rounded(b * sine[i]));
        store_one(head, kType, second, rounded(b * cosine[i]) + rounded(a * sine[i]));
    }
}

template <FloatType kType, bool kNeox, bool kInSteps>
void rotate_heads(void* data, int64_t start, int heads, int64_t stride, int half,
                  const float* cosine, const float* sine) {
    for (int h = 0; h < heads; ++h) {
        char* head = static_cast<char*>(data) + (start + h * stride) * float_bytes(kType);
        rotate_head<kType, kNeox, kInSteps>(head, half, cosine, sine);
    }
}

template <FloatType kType>
void rotate_all(const Rotation& r, int64_t token, const float* cosine, const float* sine) {
    const auto rotate =
        r.neox
            ? (r.in_steps ? rotate_heads<kType, true, true> : rotate_heads<kType, true, false>)
            : (r.in_steps ? rotate_heads<kType, false, true> : rotate_heads<kType, false, false>);
    const int half = r.rotary_size / 2;
    if (r.query)
        rotate(r.query, token * r.query_token_stride, r.query_heads, r.query_head_stride, half,
               cosine, sine);
    if (r.key)
        rotate(r.key, token * r.key_token_stride, r.key_heads, r.key_head_stride, half, cosine,
               sine);
}

void rotate_token(const Rotation& r, int64_t token) {
    float angles[kMostHeadSize];
    const int half = r.rotary_size / 2;
    const int64_t row = r.positions[token] * r.rotary_size;
    for (int i = 0; i < r.rotary_size; ++i)
        angles[i] = load_one(r.cos_sin, static_cast<FloatType>(r.cos_sin_type), row + i);
    switch (static_cast<FloatType>(r.type)) {
        case FloatType::f32: return rotate_all<FloatType::f32>(r, token, angles, angles + half);
        case FloatType::bf16: return rotate_all<FloatType::bf16>(r, token, angles, angles + half);
        case FloatType::f16: return rotate_all<FloatType::f16>(r, token, angles, angles + half);
    }
}

// Rounds to the nearest, a tie to the even one; |x| is below 2^22.
TUNAN_INLINE int32_t rounded(float x) {
    return static_cast<int32_t>((x + 12582912.f) - 12582912.f);
}

// Symmetric int8 of `size` elements into `values`; returns the scale. A row without a number that
// can be scaled becomes zeros, and NaN if it held one.
TUNAN_INLINE float quantize(const float* x, int size, int8_t* values) {
    uint32_t top_bits = 0;
    for (int i = 0; i < size; ++i) {
        const uint32_t bits = bits_of_float(x[i]) & 0x7fffffffu;
        top_bits = bits > top_bits ? bits : top_bits;
    }
    const float top = float_of_bits(top_bits);
    const bool usable = top > 1e-30f && top_bits < 0x7f800000u;
    const float inverse = usable ? 127.f / top : 0.f;
    for (int i = 0; i < size; ++i)
        values[i] = usable ? static_cast<int8_t>(rounded(x[i] * inverse)) : int8_t{0};
    return usable ? top / 127.f : top_bits >= 0x7f800000u ? __builtin_nanf("") : 0.f;
}

TUNAN_INLINE float* scale_at(char* region, size_t offset, int token) {
    return reinterpret_cast<float*>(region + offset) + token;
}

// A row of `size` elements of `bytes` each into the column of token `offset` of a block's keys
// (cache_layout.h): four bytes at a time.
TUNAN_INLINE void place_key(const void* row, int size, int bytes, int offset, char* keys) {
    const int units = size * bytes / 4;
    char* to = keys + offset / kGroup * units * kGroup * 4 + offset % kGroup * 4;
    for (int i = 0; i < units; ++i)
        __builtin_memcpy(to + i * kGroup * 4, static_cast<const char*>(row) + i * 4, 4);
}

// The same of values: an element of every four bytes of the rows that `offset` shares.
template <class Element>
TUNAN_INLINE void place_value(const Element* row, int size, int offset, char* values) {
    constexpr int together = 4 / sizeof(Element);
    Element* to = reinterpret_cast<Element*>(values) + offset / together * size * together +
                  offset % together;
    for (int d = 0; d < size; ++d) to[d * together] = row[d];
}

template <FloatType kType, class Element>
TUNAN_INLINE void place_head(const CacheLayout& layout, char* region, int offset, const float* key,
                             const float* value) {
    const int size = layout.head_size;
    Element row[kMostHeadSize];
    for (int d = 0; d < size; ++d) store_one(row, kType, d, key[d]);
    place_key(row, size, sizeof(Element), offset, region);
    for (int d = 0; d < size; ++d) store_one(row, kType, d, value[d]);
    place_value(row, size, offset, region + layout.values());
}

void write_head(const CacheLayout& layout, char* region, int offset, const float* key,
                const float* value) {
    const int size = layout.head_size;
    if (layout.type == DType::f32)
        return place_head<FloatType::f32, float>(layout, region, offset, key, value);
    if (layout.type == DType::bf16)
        return place_head<FloatType::bf16, uint16_t>(layout, region, offset, key, value);
    int8_t row[kMostHeadSize];
    *scale_at(region, layout.key_scales(), offset) = quantize(key, size, row);
    for (int d = 0; d < size; ++d) row[d] = static_cast<int8_t>(row[d] ^ -128);  // plus 128
    place_key(row, size, 1, offset, region);
    *scale_at(region, layout.value_scales(), offset) = quantize(value, size, row);
    place_value(row, size, offset, region + layout.values());
}

void write_latent(const CacheLayout& layout, int rope, char* region, int offset, const float* key,
                  const float* value) {
    const int latent = layout.head_size - rope;
    const int64_t row = static_cast<int64_t>(offset) * layout.head_size;
    if (layout.type == DType::int8) {
        int8_t* to = reinterpret_cast<int8_t*>(region) + row;
        const size_t rope_scales = layout.key_bytes() + sizeof(float) * layout.block_size;
        *scale_at(region, layout.key_bytes(), offset) = quantize(key, latent, to);
        *scale_at(region, rope_scales, offset) = quantize(value, rope, to + latent);
        return;
    }
    const FloatType type = layout.type == DType::f32 ? FloatType::f32 : FloatType::bf16;
    for (int d = 0; d < latent; ++d) store_one(region, type, row + d, key[d]);
    for (int d = 0; d < rope; ++d) store_one(region, type, row + latent + d, value[d]);
}

TUNAN_INLINE void load_row(const void* data, int type, int64_t start, int size, float* row) {
    if (static_cast<FloatType>(type) == FloatType::f32)
        for (int d = 0; d < size; ++d) row[d] = load_one(data, FloatType::f32, start + d);
    else
        for (int d = 0; d < size; ++d) row[d] = load_one(data, FloatType::bf16, start + d);
}

void write_token(const CacheWrite& write, const PagedCache& cache, int64_t token) {
    const CacheLayout layout = {static_cast<DType>(cache.type), cache.head_size, cache.block_size};
    const int64_t slot = write.slots[token];
    const int offset = static_cast<int>(slot % cache.block_size);
    char* block = cache.data + slot / cache.block_size * cache.block_stride;
    const int key_size = cache.head_size - cache.rope_size;
    const int value_size = cache.rope_size ? cache.rope_size : cache.head_size;
    float key[kMostHeadSize], value[kMostHeadSize];
    for (int h = 0; h < cache.heads; ++h) {
        load_row(write.key, write.type, token * write.key_token_stride + h * key_size, key_size,
                 key);
        load_row(write.value, write.type, token * write.value_token_stride + h * value_size,
                 value_size, value);
        char* region = block + h * cache.head_stride;
        if (cache.rope_size)
            write_latent(layout, cache.rope_size, region, offset, key, value);
        else
            write_head(layout, region, offset, key, value);
    }
}

}  // namespace

const RopeKernels& rope_kernels() {
    static constexpr RopeKernels kernels = {rotate_token, write_token};
    return kernels;
}

}  // namespace tunan::TUNAN_ISA
