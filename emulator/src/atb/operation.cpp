#include "operation.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include "call.h"
#include "settings.h"
#include "stream.h"

namespace tunan {
namespace {

// Values on the host belong to the caller, who may change them at once; those on the device are
// read when the stream gets there.
at::Tensor tensor_of(const atb::Tensor& tensor) {
    void* data = tensor.deviceData ? tensor.deviceData : tensor.hostData;
    if (!data) return {};
    const atb::Dims& shape = tensor.desc.shape;
    at::Tensor view = at::from_blob(data, at::IntArrayRef(shape.dims, shape.dimNum),
                                    at::TensorOptions().dtype(scalar_type(tensor.desc.dtype)));
    return tensor.deviceData ? view : view.clone();
}

Tensors tensors_of(const atb::SVector<atb::Tensor>& list) {
    Tensors made;
    for (const atb::Tensor& one : list) made.push_back(tensor_of(one));
    return made;
}

class StreamContext : public atb::Context {
  public:
    atb::Status SetExecuteStream(aclrtStream stream) override {
        stream_ = stream;
        return atb::NO_ERROR;
    }
    aclrtStream GetExecuteStream() const override { return stream_; }
    atb::Status SetAsyncTilingCopyStatus(bool enable) override {
        asynchronous_ = enable;
        return atb::NO_ERROR;
    }
    bool GetAsyncTilingCopyStatus() const override { return asynchronous_; }

  private:
    aclrtStream stream_ = nullptr;
    bool asynchronous_ = false;
};

class KernelOperation : public atb::Operation {
  public:
    KernelOperation(std::string name, AtbKernel kernel)
        : name_(std::move(name)), kernel_(std::move(kernel)) {}

    std::string GetName() const override { return name_; }
    atb::Status InferShape(const atb::SVector<atb::TensorDesc>&,
                           atb::SVector<atb::TensorDesc>&) const override {
        return atb::NO_ERROR;
    }
    uint32_t GetInputNum() const override { return 0; }
    uint32_t GetOutputNum() const override { return 0; }
    atb::Status Setup(const atb::VariantPack&, uint64_t& workspace, atb::Context*) override {
        workspace = 0;
        return atb::NO_ERROR;
    }

    atb::Status Execute(const atb::VariantPack& pack, uint8_t*, uint64_t,
                        atb::Context* context) override {
        c10::InferenceMode off(false);
        Tensors in = tensors_of(pack.inTensors), out = tensors_of(pack.outTensors);
        // The operation itself may be gone when the stream gets to it.
        submit(context->GetExecuteStream(), {[in, out, name = name_, kernel = kernel_] {
                                                 trace("atb::" + name);
                                                 c10::InferenceMode off(false);
                                                 at::AutoDispatchBelowAutograd guard;
                                                 kernel(in, out);
                                             },
                                             "atb"});
        return atb::NO_ERROR;
    }

  private:
    std::string name_;
    AtbKernel kernel_;
};

}  // namespace

atb::Operation* make_operation(std::string name, AtbKernel kernel) {
    return new KernelOperation(std::move(name), std::move(kernel));
}

}  // namespace tunan

namespace atb {

Status CreateContext(Context** context) {
    *context = new tunan::StreamContext;
    return NO_ERROR;
}

Status DestroyContext(Context* context) {
    delete context;
    return NO_ERROR;
}

Status DestroyOperation(Operation* operation) {
    delete operation;
    return NO_ERROR;
}

uint64_t Utils::GetTensorSize(const Tensor& tensor) {
    uint64_t bytes = c10::elementSize(tunan::scalar_type(tensor.desc.dtype));
    for (uint64_t at = 0; at < tensor.desc.shape.dimNum; at++) bytes *= tensor.desc.shape.dims[at];
    return bytes;
}

}  // namespace atb
