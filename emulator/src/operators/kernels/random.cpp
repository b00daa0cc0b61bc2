// Random numbers. torch_npu passes the generator's (seed, offset): the same pair gives the same
// numbers, here as there, though not the device's own sequence.
#include <ATen/CPUGeneratorImpl.h>

#include "kernels.h"

namespace tunan {
namespace {

at::Generator generator(const Call& call) {
    auto seed = static_cast<uint64_t>(call.integer("seed"));
    auto offset = static_cast<uint64_t>(call.integer("offset"));
    // Offsets are small and near each other; an odd multiplier spreads them over the seed's bits.
    return at::make_generator<at::CPUGeneratorImpl>(seed ^ (offset * 0x9e3779b97f4a7c15ull));
}

void uniform(const Call& call) {
    if (call.dry()) return;
    at::Tensor self = at::empty(call.storage("self").sizes, at::kFloat);
    call.write("self", self.uniform_(call.real("from"), call.real("to"), generator(call)));
}

void normal(const Call& call) {
    if (call.dry()) return;
    at::Tensor self = at::empty(call.storage("self").sizes, at::kFloat);
    call.write("self", self.normal_(call.real("mean"), call.real("std"), generator(call)));
}

void random(const Call& call) {
    if (call.dry()) return;
    at::Tensor self = at::empty(call.storage("self").sizes, at::kLong);
    call.write("self", self.random_(call.integer("from"), call.integer("to"), generator(call)));
}

void bernoulli(const Call& call) {
    if (call.dry()) return;
    at::Tensor self = at::empty(call.storage("self").sizes, at::kFloat);
    bool scalar = std::holds_alternative<at::Scalar>(call.value("probability"));
    at::Tensor probability =
        scalar ? at::full_like(self, call.scalar("probability")) : call.f32("probability");
    call.write("self", self.bernoulli_(probability, generator(call)));
}

void multinomial(const Call& call) {
    if (call.dry()) return;
    call.write("out", at::multinomial(call.f32("self"), call.integer("samples"),
                                      call.flag("replacement"), generator(call)));
}

KERNEL("uniform", uniform);
KERNEL("normal", normal);
KERNEL("random", random);
KERNEL("bernoulli", bernoulli);
KERNEL("multinomial", multinomial);

}  // namespace
}  // namespace tunan
