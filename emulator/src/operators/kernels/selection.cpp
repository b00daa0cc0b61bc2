// Indexing, scattering and what depends on the data: nonzero, unique, masked_select.
#include "kernels.h"

namespace tunan {
namespace {

// torch_npu puts an empty one-dimensional tensor where an index is absent.
c10::List<std::optional<at::Tensor>> indices_of(const Call& call) {
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& one : call.tensors("indices")) {
        bool absent = !one.defined() || (one.dim() == 1 && one.numel() == 0);
        list.push_back(absent ? std::nullopt : std::optional<at::Tensor>(one));
    }
    return list;
}

void index(const Call& call) {
    call.write("out", at::index(call.tensor("self"), indices_of(call)));
}

void index_put(const Call& call) {
    call.write("self", at::index_put(call.tensor("self"), indices_of(call), call.tensor("value"),
                                     call.flag("accumulate")));
}

void gather(const Call& call) {
    call.write("out", at::gather(call.tensor("self"), call.integer("dim"),
                                 call.tensor("index").to(at::kLong)));
}

void scatter(const Call& call) {
    at::Tensor self = call.tensor("self"), places = call.tensor("index").to(at::kLong);
    int64_t dim = call.integer("dim"), reduction = call.integer("reduction");
    bool in_place = call.op.parameters[0].written;
    const char* into = in_place ? "self" : "out";
    // ScatterValue has a scalar where Scatter has a tensor.
    bool by_value = std::string(call.op.parameters[3].name) == "value";
    at::Tensor source = by_value ? at::full(places.sizes(), call.scalar("value"), self.options())
                                 : call.tensor("source");
    if (reduction == 0) {
        call.write(into, at::scatter(self, dim, places, source));
    } else {
        call.write(into,
                   at::scatter(self, dim, places, source, reduction == 1 ? "add" : "multiply"));
    }
}

void scatter_add(const Call& call) {
    call.write("out", at::scatter_add(call.tensor("self"), call.integer("dim"),
                                      call.tensor("index").to(at::kLong), call.tensor("source")));
}

// indices [..., R] names slices of the first R dimensions of self.
void scatter_nd_update(const Call& call) {
    at::Tensor self = call.tensor("self").clone(), places = call.tensor("indices").to(at::kLong);
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& one : places.unbind(-1)) list.push_back(one);
    call.write("self", self.index_put_(list, call.tensor("updates")));
}

void masked_select(const Call& call) {
    at::Tensor result = at::masked_select(call.tensor("self"), call.tensor("mask").to(at::kBool));
    call.write_sized("out", result);
}

void nonzero(const Call& call) { call.write_sized("out", at::nonzero(call.tensor("self"))); }

void unique(const Call& call) {
    auto [values, inverse, counts] = at::_unique2(call.tensor("self"), true, true, true);
    call.write_sized("out", values);
    if (call.flag("inverse")) call.write("inverse_out", inverse);
    if (call.flag("counts")) call.write_sized("counts_out", counts);
}

KERNEL("index", index);
KERNEL("index_put", index_put);
KERNEL("gather", gather);
KERNEL("scatter", scatter);
KERNEL("scatter_add", scatter_add);
KERNEL("scatter_nd_update", scatter_nd_update);
KERNEL("masked_select", masked_select);
KERNEL("nonzero", nonzero);
KERNEL("unique", unique);

}  // namespace
}  // namespace tunan
