// Attention over a paged cache, for any mix of decode and chunked prefill; the cache's layout is in
// cache_layout.h. Layouts of plain C: the Python side mirrors them field by field.
#pragma once

#include <cstdint>

#include "attention/cache_layout.h"
#include "status.h"

namespace tunan {

// A paged cache of one layer. Region (block b, head h) starts at data + b block_stride +
// h head_stride.
struct PagedCache {
    char* data;
    int64_t bytes;         // that may be touched
    int64_t block_stride;  // bytes
    int64_t head_stride;   // bytes
    int32_t blocks;
    int32_t block_size;  // tokens, a multiple of 16
    int32_t heads;
    int32_t head_size;  // a multiple of 16; of a latent cache: latent + rope
    int32_t rope_size;  // of a latent (MLA) cache; 0: keys and values
    int32_t type;       // DType
};

// Sequence i has the query tokens [query_start[i], query_start[i + 1]), which are the last of its
// seq_lens[i] tokens; its token t is in block block_table[i][t / block_size].
struct AttentionCall {
    const void* query;           // [tokens][heads][head_size], heads contiguous
    void* out;                   // [tokens][heads][head_size], or [latent] for MLA; as query
    int64_t query_token_stride;  // elements
    int64_t out_token_stride;
    const int32_t* query_start;
    const int32_t* seq_lens;
    const int32_t* block_table;
    int64_t table_stride;  // elements
    const float* alibi;    // a slope a head, or null
    int32_t table_width;   // columns
    int32_t sequences;
    int32_t tokens;
    int32_t heads;
    int32_t query_type;  // DType::f32 or bf16, also that of out
    float scale;
    float softcap;   // scores become softcap tanh(score / softcap); 0: as they are
    int32_t window;  // keys a query sees, itself included; 0: all
    int32_t causal;
};

// Bad sizes, block numbers out of range and the like are a kBadArgument, before anything is read
// through them.
Status attend(const AttentionCall& call, const PagedCache& cache);

// What is wrong with the cache's description, if anything.
Status check_cache(const PagedCache& cache);
CacheLayout layout_of(const PagedCache& cache);
int64_t region_bytes(const PagedCache& cache);

}  // namespace tunan

TUNAN_API int tunan_attention(const tunan::AttentionCall* call, const tunan::PagedCache* cache);
// Bytes of one block of one head; -1 and tunan_last_error() for sizes that no kernel takes.
TUNAN_API int64_t tunan_cache_region_bytes(const tunan::PagedCache* cache);
