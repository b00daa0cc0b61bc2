// Sampling: which tokens stay when the k likeliest, or the likeliest that make up p, are kept.
#include "kernels.h"

namespace tunan {
namespace {

constexpr float EXCLUDED = -std::numeric_limits<float>::infinity();

// logits [B, V], k and p [B]: what falls out becomes -inf. k first, then p over what k left.
void top_k_top_p(const Call& call) {
    auto [sorted, order] = at::sort(call.f32("logits"), /*dim=*/-1, /*descending=*/false);
    int64_t vocabulary = sorted.size(-1);
    at::Tensor k = call.tensor("k"), p = call.f32("p");
    if (k.defined()) {
        at::Tensor last = (vocabulary - k.to(at::kLong)).clamp(0, vocabulary - 1).unsqueeze(-1);
        sorted = sorted.masked_fill(sorted.lt(sorted.gather(-1, last)), EXCLUDED);
    }
    if (p.defined()) {
        at::Tensor below = at::cumsum(at::softmax(sorted, -1), -1).le(1 - p.unsqueeze(-1));
        below.select(-1, vocabulary - 1).fill_(false);  // the likeliest always stays
        sorted = sorted.masked_fill(below, EXCLUDED);
    }
    call.write("out", at::scatter(sorted, -1, order, sorted));
}

void check_top_k_top_p(const Call& call) {
    const auto& logits = call.storage("logits").sizes;
    call.require(logits.size() == 2,
                 "The dim of logits must be 2, but got " + std::to_string(logits.size()) + ".");
    for (const char* name : {"k", "p"}) {
        if (!call.has(name)) continue;
        const auto& sizes = call.storage(name).sizes;
        call.require(sizes.size() == 1 && sizes[0] == logits[0],
                     std::string("The shape of ") + name + " " + shape_text(sizes) + " must be [" +
                         std::to_string(logits[0]) + "].");
    }
}

KERNEL("top_k_top_p", top_k_top_p, check_top_k_top_p);

}  // namespace
}  // namespace tunan
