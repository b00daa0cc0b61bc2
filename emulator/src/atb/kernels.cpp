// The ATB operations that serving uses: matrix product, cache writes, rotary embedding, attention.
#include "kernels.h"

#include "operation.h"

namespace tunan {
namespace {

at::Tensor wide(const at::Tensor& x) { return x.to(at::kFloat); }

AtbKernel linear(const atb::infer::LinearParam& param) {
    bool transpose_a = param.transposeA, transpose_b = param.transposeB,
         add = param.enAccum || param.hasBias;
    return [=](const Tensors& in, const Tensors& out) {
        at::Tensor a = wide(in[0]), b = wide(in[1]);
        at::Tensor product = at::matmul(transpose_a ? a.t() : a, transpose_b ? b.t() : b);
        out[0].copy_(add ? product + wide(in[2]) : product);
    };
}

// key, value, key cache, value cache, slots; a negative slot is padding.
void reshape_and_cache(const Tensors& in, const Tensors&) {
    at::Tensor slots = in[4].to(at::kLong);
    at::Tensor kept = slots.ge(0).nonzero().squeeze(-1);
    slots = slots.index_select(0, kept);
    for (int at = 0; at < 2; at++) {
        at::Tensor cache = in[2 + at];
        cache.view({-1, cache.size(2), cache.size(3)})
            .index_copy_(0, slots, in[at].index_select(0, kept));
    }
}

// query, key, cos, sin, lengths -> query, key; the heads of a token are neighbours in its row.
AtbKernel rope(const atb::infer::RopeParam& param) {
    int64_t mode = param.rotaryCoeff == 2 ? 0 : 1;
    return [mode](const Tensors& in, const Tensors& out) {
        at::Tensor cos = in[2].unsqueeze(1), sin = in[3].unsqueeze(1);
        for (int at = 0; at < 2; at++) {
            at::Tensor heads = in[at].view({in[at].size(0), -1, in[2].size(-1)});
            out[at].copy_(rotate(heads, cos, sin, mode).view(out[at].sizes()));
        }
    };
}

// query, key cache, value cache, block table, lengths: one query a sequence.
AtbKernel paged_attention(const atb::infer::PagedAttentionParam& param) {
    double scale = param.qkScale;
    return [scale](const Tensors& in, const Tensors& out) {
        at::Tensor query = in[0], lengths = in[4].to(at::kLong),
                   result = out[0].view(query.sizes());
        for (int64_t at = 0; at < query.size(0); at++) {
            int64_t length = lengths[at].item<int64_t>();
            at::Tensor key = gather_pages(in[1], in[3][at], length),
                       value = gather_pages(in[2], in[3][at], length);
            result.slice(0, at, at + 1)
                .copy_(attend(query.slice(0, at, at + 1), key, value, scale, {}, nullptr));
        }
    };
}

// query, key, value, mask, lengths: whole sequences one after another, causal.
AtbKernel self_attention(const atb::infer::SelfAttentionParam& param) {
    double scale = param.qkScale;
    int64_t heads = param.headNum, key_heads = param.kvHeadNum ? param.kvHeadNum : param.headNum;
    return [=](const Tensors& in, const Tensors& out) {
        at::Tensor lengths = in.back().to(at::kLong).reshape(-1);
        int64_t tokens = in[0].size(0), start = 0;
        at::Tensor query = in[0].reshape({tokens, heads, -1}),
                   key = in[1].reshape({tokens, key_heads, -1});
        at::Tensor value = in[2].reshape({tokens, key_heads, -1});
        at::Tensor result = out[0].view({tokens, heads, -1});
        for (int64_t at = 0; at < lengths.numel(); at++) {
            int64_t length = lengths[at].item<int64_t>(), end = start + length;
            result.slice(0, start, end)
                .copy_(attend(query.slice(0, start, end), key.slice(0, start, end),
                              value.slice(0, start, end), scale, causal_mask(length, length),
                              nullptr));
            start = end;
        }
    };
}

atb::Operation* not_emulated(const char* name) {
    return make_operation(name, [name](const Tensors&, const Tensors&) {
        TORCH_CHECK(false, "atb::", name, " is not emulated");
    });
}

}  // namespace
}  // namespace tunan

#define TUNAN_CREATE(PARAM, OPERATION)                                                             \
    template <>                                                                                    \
    atb::Status atb::CreateOperation(const atb::infer::PARAM& param, atb::Operation** operation) { \
        *operation = OPERATION;                                                                    \
        return atb::NO_ERROR;                                                                      \
    }

TUNAN_CREATE(LinearParam, tunan::make_operation("Linear", tunan::linear(param)))
TUNAN_CREATE(ReshapeAndCacheParam,
             tunan::make_operation("ReshapeAndCache", tunan::reshape_and_cache))
TUNAN_CREATE(RopeParam, tunan::make_operation("Rope", tunan::rope(param)))
TUNAN_CREATE(PagedAttentionParam,
             tunan::make_operation("PagedAttention", tunan::paged_attention(param)))
TUNAN_CREATE(SelfAttentionParam,
             tunan::make_operation("SelfAttention", tunan::self_attention(param)))
TUNAN_CREATE(ElewiseParam, tunan::not_emulated("Elewise"))
TUNAN_CREATE(RmsNormParam, tunan::not_emulated("RmsNorm"))
TUNAN_CREATE(GroupTopkParam, tunan::not_emulated("GroupTopk"))
