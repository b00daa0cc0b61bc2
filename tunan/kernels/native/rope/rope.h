// Rotary position embedding and the write into the paged cache, together or alone.
// Layouts of plain C: the Python side mirrors them field by field.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "float_type.h"
#include "status.h"

namespace tunan {

// Rotates the first `rotary_size` elements of every query and key head in place. Head h of token t
// starts at element t token_stride + h head_stride. Computed in float32, rounded once, or in steps.
struct Rotation {
    void* query;               // or null
    void* key;                 // or null
    const int64_t* positions;  // [tokens]
    const void* cos_sin;       // [max_position][rotary_size]: all cosines, then all sines
    int64_t query_token_stride, query_head_stride;
    int64_t key_token_stride, key_head_stride;
    int64_t max_position;
    int32_t query_heads, key_heads;
    int32_t head_size, rotary_size;  // rotary_size is even
    int32_t type;                    // FloatType of query and key
    int32_t cos_sin_type;
    int32_t neox;      // 1: halves are rotated, 0: neighbours
    int32_t in_steps;  // 1: both products are rounded to the type before they are added
};

// Keys and values of tokens go to the slots (block block_size + offset) of the cache; a negative
// slot is padding and not written. For a latent cache `key` is the latent row [latent] and `value`
// the rope row [rope].
struct CacheWrite {
    const void* key;  // head h of token t at element t key_token_stride + h head_size
    const void* value;
    const int64_t* slots;  // [tokens]
    int64_t key_token_stride, value_token_stride;
    int32_t type;  // FloatType of key and value: f32 or bf16
};

// Either part may be null. Keys are rotated before they are written. Positions and slots out of
// range are a kBadArgument, before anything is written.
Status rotate_and_write(const Rotation* rotation, const CacheWrite* write, const PagedCache* cache,
                        int64_t tokens);

}  // namespace tunan

TUNAN_API int tunan_rotate_and_write(const tunan::Rotation* rotation,
                                     const tunan::CacheWrite* write, const tunan::PagedCache* cache,
                                     int64_t tokens);
