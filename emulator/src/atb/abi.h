// The binary interface of ATB (Ascend Transformer Boost) as torch_npu uses it: names, virtual
// functions and the order of members decide; what torch_npu never passes is left out at the end of
// a struct.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "acl/acl.h"

namespace atb {

using Status = int32_t;
constexpr Status NO_ERROR = 0;
constexpr Status ERROR_RT_FAIL = 5;

// A small vector that lives inside its owner; only read here.
template <class Element>
struct SVector {
    size_t capacity;
    size_t count;
    Element inside[65];
    Element* heap;

    const Element* begin() const { return heap ? heap : inside; }
    const Element* end() const { return begin() + count; }
};

struct Dims {
    int64_t dims[8];
    uint64_t dimNum;
};

struct TensorDesc {
    aclDataType dtype;
    aclFormat format;
    Dims shape;
};

struct Tensor {
    TensorDesc desc;
    void* deviceData;
    void* hostData;  // set where the operator wants the values on the host: lengths
    uint64_t dataSize;
};

struct VariantPack {
    SVector<Tensor> inTensors, outTensors;
};

class Context {
  public:
    virtual ~Context() = default;
    virtual Status SetExecuteStream(aclrtStream stream) = 0;
    virtual aclrtStream GetExecuteStream() const = 0;
    virtual Status SetAsyncTilingCopyStatus(bool enable) = 0;
    virtual bool GetAsyncTilingCopyStatus() const = 0;
};

class Operation {
  public:
    virtual ~Operation() = default;
    virtual std::string GetName() const = 0;
    virtual Status InferShape(const SVector<TensorDesc>& in, SVector<TensorDesc>& out) const = 0;
    virtual uint32_t GetInputNum() const = 0;
    virtual uint32_t GetOutputNum() const = 0;
    virtual Status Setup(const VariantPack& pack, uint64_t& workspace, Context* context) = 0;
    virtual Status Execute(const VariantPack& pack, uint8_t* workspace, uint64_t size,
                           Context* context) = 0;
};

Status CreateContext(Context** context);
Status DestroyContext(Context* context);
Status DestroyOperation(Operation* operation);
template <class Param>
Status CreateOperation(const Param& param, Operation** operation);

class Utils {
  public:
    static uint64_t GetTensorSize(const Tensor& tensor);
};

namespace infer {

struct LinearParam {
    bool transposeA, transposeB, hasBias;
    aclDataType outDataType;
    bool enAccum;
};

struct ReshapeAndCacheParam {
    int32_t compressType, kvCacheCfg;
};

struct RopeParam {
    int32_t rotaryCoeff, cosFormat;
};

struct PagedAttentionParam {
    int32_t headNum;
    float qkScale;
    int32_t kvHeadNum;
};

struct SelfAttentionParam {
    int32_t quantType;
    aclDataType outDataType;
    int32_t headNum, kvHeadNum;
    float qScale, qkScale;
};

// Created by torch_npu at load time or by operators that are not emulated.
struct ElewiseParam {};
struct RmsNormParam {};
struct GroupTopkParam {};

}  // namespace infer
}  // namespace atb
