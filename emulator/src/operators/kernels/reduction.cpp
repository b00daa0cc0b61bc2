// Reductions that aten spells otherwise or that take any type.
#include "kernels.h"

namespace tunan {
namespace {

void any(const Call& call) {
    at::Tensor self = call.tensor("self").to(at::kBool);
    auto dims = call.ints("dims");
    call.write("out", dims.empty()
                          ? self.any()
                          : at::any(self, at::OptionalIntArrayRef(dims), call.flag("keepdim")));
}

void all(const Call& call) {
    at::Tensor self = call.tensor("self").to(at::kBool);
    auto dims = call.ints("dims");
    call.write("out", dims.empty()
                          ? self.all()
                          : at::all(self, at::OptionalIntArrayRef(dims), call.flag("keepdim")));
}

void aminmax(const Call& call) {
    at::Tensor self = call.tensor("self");
    auto dims = call.ints("dims");
    call.write("low", at::amin(self, dims, call.flag("keepdim")));
    call.write("high", at::amax(self, dims, call.flag("keepdim")));
}

void bincount(const Call& call) {
    at::Tensor weights = call.tensor("weights");
    bool weighted = weights.defined() && weights.numel() > 0;
    call.write_sized(
        "out", at::bincount(call.tensor("self"), weighted ? std::optional(weights) : std::nullopt,
                            call.integer("length")));
}

void equal(const Call& call) {
    call.write("out",
               at::scalar_tensor(at::equal(call.tensor("self"), call.tensor("other")), at::kBool));
}

KERNEL("any", any);
KERNEL("all", all);
KERNEL("aminmax", aminmax);
KERNEL("bincount", bincount);
KERNEL("equal", equal);

}  // namespace
}  // namespace tunan
