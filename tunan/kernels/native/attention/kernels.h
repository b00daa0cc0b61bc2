// What one instruction set provides for attention: the work of one item, and the merge of split
// contexts. paged.cpp and mla.cpp cut a call into items and hand them to the threads.
//
// A query row's result never depends on which rows, sequences or threads surround it: keys are
// taken in tiles of 64 and parts of 512 counted from token 0 of the sequence, every row's
// arithmetic inside a tile is its own, and the parts are merged in order. This holds for decode,
// chunked prefill and split contexts alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cache_layout.h"

namespace tunan {

constexpr int kTile = 64;
constexpr int kTileGroups = kTile / kGroup;
constexpr int kPart = 512;
static_assert(kPart % kTile == 0, "a part is whole tiles");

// One sequence and head as the kernel sees it.
struct AttentionItem {
    const void* query;           // row (token i, head g): query + i * token_stride + g * head_size
    int64_t query_token_stride;  // elements
    void* out;                   // same shape and type as query, unless `partial`
    int64_t out_token_stride;
    int tokens;          // query tokens of this item
    int heads;           // query heads that share the key head
    int first_position;  // position in the sequence of the first query token
    int seq_len;
    int first_part, last_part;  // parts [first, last)
    const char* region;         // the head's region in block 0
    int64_t block_stride;       // bytes
    const int32_t* blocks;      // block table row of the sequence
    const float* alibi;         // slopes of the `heads` heads, or null
    float* partial;             // null: write `out`; else the state of the one part
};

// What all items of a call share.
struct AttentionShape {
    DType query_type;
    CacheLayout layout;  // MLA: head_size is latent + rope
    int value_size;      // MLA: latent; otherwise head_size
    int rope_size;       // MLA: the last dimensions of a latent row; otherwise 0
    float scale;
    float softcap;  // 0: none
    int window;     // keys a query sees, itself included; 0: all
    bool causal;
};

// A partial state: max[rows], sum[rows], weighted values[rows][value_size].
constexpr size_t partial_floats(int rows, int value_size) {
    return static_cast<size_t>(rows) * (2 + value_size);
}

constexpr int parts(int seq_len) { return (seq_len + kPart - 1) / kPart; }

struct AttentionKernels {
    size_t (*scratch_bytes)(const AttentionShape&, int rows);
    void (*run)(const AttentionShape&, const AttentionItem&, char* scratch);
    // Merges `count` partial states, `stride` floats apart, and writes the item's output.
    void (*merge)(const AttentionShape&, const AttentionItem&, const float* states, size_t stride,
                  int count, char* scratch);
};

}  // namespace tunan
