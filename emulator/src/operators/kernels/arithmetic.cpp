// Element-wise operators whose arguments aten spells otherwise.
#include "kernels.h"

namespace tunan {
namespace {

void div_mod(const Call& call) {
    static const char* const modes[] = {nullptr, "trunc", "floor"};
    at::Tensor self = call.tensor("self");
    const char* name = modes[call.integer("mode")];
    auto mode = name ? std::optional<std::string_view>(name) : std::nullopt;
    bool scalar = std::holds_alternative<at::Scalar>(call.value("other"));
    at::Tensor result = scalar ? at::div(self, call.scalar("other"), mode)
                               : at::div(self, call.tensor("other"), mode);
    bool in_place = call.op.parameters[0].written;
    call.write(in_place ? "self" : "out", result);
}

void gelu(const Call& call) {
    call.write("out", at::gelu(call.tensor("self"), call.integer("approximate") ? "tanh" : "none"));
}

void fast_gelu(const Call& call) {
    // x * sigmoid(1.702 x), in the form that never overflows.
    at::Tensor x = call.f32("self");
    call.write("out", x / (1 + at::exp(-1.702 * x.abs())) * at::exp(0.851 * (x - x.abs())));
}

void same_shape(const Call& call) {
    call.require(call.storage("self").sizes == call.storage("out").sizes,
                 "Expected self and out to have the same shape, but got " +
                     shape_text(call.storage("self").sizes) + " and " +
                     shape_text(call.storage("out").sizes) + ".");
}

KERNEL("div_mod", div_mod);
KERNEL("gelu", gelu, same_shape);
KERNEL("fast_gelu", fast_gelu, same_shape);

}  // namespace
}  // namespace tunan
