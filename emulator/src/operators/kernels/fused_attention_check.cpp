// What the fused attention refuses in phase 1, in CANN's words.
#include <set>

#include "attention.h"

namespace tunan {
namespace {

const Storage& first(const Call& call, const char* name) {
    const auto& list = std::get<std::vector<Storage>>(call.value(name));
    call.require(!list.empty(), std::string(name) + " must not be empty.");
    return list[0];
}

bool given(const Call& call, const char* name) {
    if (!call.has(name)) return false;
    const auto& sizes = call.storage(name).sizes;
    return std::find(sizes.begin(), sizes.end(), 0) == sizes.end();
}

void check_modes(const Call& call) {
    static const std::set<std::string> known{"TND",     "BNSD",      "BSND",      "BSH",
                                             "TND_NTD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD"};
    const std::string& layout = call.text("layout");
    call.require(known.count(layout) == 1,
                 "The layout of input " + layout +
                     " is not supported, it should be in [TND, BNSD, BSND, BSH, TND_NTD, "
                     "BNSD_NBSD, BSND_NBSD, BSH_NBSD].");
    int64_t sparse = call.integer("sparse");
    call.require(
        sparse == NO_MASK || sparse == LEFT_UP_CAUSAL || sparse == RIGHT_DOWN_CAUSAL,
        "sparse_mode " + std::to_string(sparse) + " is not supported, it should be in [0, 2, 3].");
    for (const char* name : {"antiquant", "key_antiquant", "value_antiquant"})
        call.require(call.integer(name) == 0,
                     std::string(name) + "_mode " + std::to_string(call.integer(name)) +
                         " is not supported, it should be 0 (a scale a channel or one scale).");
}

// Keys and values have the query's type, or are int8 with scales of one value or of one a channel.
void check_types(const Call& call, int64_t key_heads) {
    at::ScalarType query = call.storage("query").dtype;
    static const char* const names[][2] = {{"key", "key_antiquant_scale"},
                                           {"value", "value_antiquant_scale"}};
    for (auto [name, scale_name] : names) {
        const Storage& part = first(call, name);
        bool scaled = given(call, scale_name) || given(call, "antiquant_scale");
        call.require(part.dtype == query || (part.dtype == at::kChar && scaled),
                     std::string("The dtype of ") + name + " " + dtype_name(part.dtype) +
                         " must be that of query " + dtype_name(query) +
                         ", or DT_INT8 with an antiquant scale.");
        if (part.dtype != at::kChar || !given(call, scale_name)) continue;
        int64_t count = 1;
        for (int64_t size : call.storage(scale_name).sizes) count *= size;
        call.require(count == 1 || count % key_heads == 0,
                     std::string("The size of ") + scale_name + " " +
                         shape_text(call.storage(scale_name).sizes) +
                         " must be 1 or numKeyValueHeads * headDim.");
    }
}

void check_sequences(const Call& call, int64_t batch) {
    bool paged = given(call, "block_table");
    auto lengths = call.ints("key_lengths");
    call.require(!paged || !lengths.empty(),
                 "With a block table actualSeqLengthsKv must be given.");
    call.require(lengths.empty() || static_cast<int64_t>(lengths.size()) >= batch,
                 "The size of actualSeqLengthsKv " + std::to_string(lengths.size()) +
                     " must not be less than the number of sequences " + std::to_string(batch) +
                     ".");
    size_t dims = first(call, "key").sizes.size();
    call.require(dims == first(call, "value").sizes.size() && dims >= 3 && dims <= 5,
                 "The dims of key and value must be same, in range [3, 5].");
    if (!paged) return;
    const auto& table = call.storage("block_table").sizes;
    call.require(table.size() == 2 && table[0] >= batch, "The shape of blockTable " +
                                                             shape_text(table) + " must be [" +
                                                             std::to_string(batch) + ",...].");
}

void check_packed(const Call& call, const Heads& heads) {
    const auto& query = call.storage("query").sizes;
    call.require(query.size() == 3 && query[1] == heads.query,
                 "The query's shape " + shape_text(query) +
                     " does not match layout TND with numHeads " + std::to_string(heads.query) +
                     ".");
    auto ends = call.ints("query_lengths");
    call.require(!ends.empty() && call.has("key_lengths"),
                 "When layout is TND, actualSeqLengths and actualSeqLengthsKv must be given.");
    call.require(ends.back() <= query[0],
                 "The last of actualSeqLengths " + std::to_string(ends.back()) +
                     " should not be larger than T of query " + std::to_string(query[0]) + ".");
    check_sequences(call, static_cast<int64_t>(ends.size()));
}

void check_fused_attention(const Call& call) {
    check_modes(call);
    Heads heads = heads_of(call);
    call.require(heads.query > 0 && heads.key > 0 && heads.query % heads.key == 0,
                 "numHeads " + std::to_string(heads.query) +
                     " should be divisible by numKeyValueHeads " + std::to_string(heads.key) + ".");
    check_types(call, heads.key);
    const std::string& layout = call.text("layout");
    if (layout.substr(0, 3) == "TND") return check_packed(call, heads);
    const auto& query = call.storage("query").sizes;
    bool flat = layout.substr(0, 3) == "BSH";
    call.require(query.size() == (flat ? 3 : 4), "The query's shape " + shape_text(query) +
                                                     " does not match layout " + layout + ".");
    call.require(flat ? query[2] % heads.query == 0
                      : query[layout.substr(0, 4) == "BNSD" ? 1 : 2] == heads.query,
                 "The query's shape " + shape_text(query) + " does not match numHeads " +
                     std::to_string(heads.query) + ".");
    check_sequences(call, query[0]);
}

KERNEL("fused_attention", fused_attention, check_fused_attention);

}  // namespace
}  // namespace tunan
