// Copies, fills, ranges and repetitions.
#include "kernels.h"

namespace tunan {
namespace {

void copy(const Call& call) { call.write("self", call.tensor("source")); }

void check_copy(const Call& call) {
    const auto& to = call.storage("self").sizes;
    const auto& from = call.storage("source").sizes;
    bool fits = from.size() <= to.size();
    for (size_t back = 1; fits && back <= from.size(); back++) {
        int64_t have = from[from.size() - back];
        fits = have == 1 || have == to[to.size() - back];
    }
    call.require(fits, "src shape " + shape_text(from) + " can not be broadcast to self shape " +
                           shape_text(to) + ".");
}

void fill(const Call& call) { call.write("self", call.tensor("value").reshape({})); }

void fill_diagonal(const Call& call) {
    at::Tensor self = call.tensor("self").clone();
    call.write("self", self.fill_diagonal_(call.scalar("value"), call.flag("wrap")));
}

// A range of floats has as many elements as the caller made room for; the device counts the same
// way.
void arange(const Call& call) {
    at::Tensor out = call.tensor("out");
    at::Tensor steps = at::arange(out.numel(), out.options().dtype(at::kDouble));
    if (!out.is_floating_point()) steps = steps.to(at::kLong);
    call.write("out", (steps * call.scalar("step") + call.scalar("start")).view(out.sizes()));
}

void repeat_interleave(const Call& call) {
    call.write("out", call.tensor("self").reshape(-1).repeat_interleave(call.tensor("repeats")));
}

void repeat_interleave_dim(const Call& call) {
    call.write("out",
               call.tensor("self").repeat_interleave(call.tensor("repeats"), call.integer("dim")));
}

void repeat_interleave_count(const Call& call) {
    call.write("out", at::repeat_interleave(call.tensor("repeats")));
}

void one_hot(const Call& call) {
    at::Tensor self = call.tensor("self").to(at::kLong);
    at::Tensor classes = at::arange(call.integer("classes"), self.options());
    at::Tensor hit = self.unsqueeze(-1).eq(classes);
    at::Tensor result =
        at::where(hit, call.tensor("on").reshape({}), call.tensor("off").reshape({}));
    int64_t axis = call.integer("axis");
    call.write("out", axis < 0 ? result : result.movedim(-1, axis));
}

KERNEL("copy", copy, check_copy);
KERNEL("fill", fill);
KERNEL("fill_diagonal", fill_diagonal);
KERNEL("arange", arange);
KERNEL("range", arange);
KERNEL("repeat_interleave", repeat_interleave);
KERNEL("repeat_interleave_dim", repeat_interleave_dim);
KERNEL("repeat_interleave_count", repeat_interleave_count);
KERNEL("one_hot", one_hot);

}  // namespace
}  // namespace tunan
