// The objects that cross aclnn's C interface. Each starts with a tag: an argument list that does
// not match the caller's is found when the tag is not the one that is due, and not by wrong
// results.
#pragma once
#include <cstdint>
#include <vector>

namespace tunan {

enum class Tag : uint32_t {
    Tensor = 0x74656e01,
    Scalar,
    Ints,
    Floats,
    Bools,
    Tensors,
    Scalars,
};

}  // namespace tunan

struct aclTensor {
    tunan::Tag tag = tunan::Tag::Tensor;
    std::vector<int64_t> sizes, strides, storage;
    int dtype = 0, format = 0;
    int64_t offset = 0;  // elements
    void* data = nullptr;
};

struct aclScalar {
    tunan::Tag tag = tunan::Tag::Scalar;
    int dtype = 0;
    alignas(16) unsigned char bytes[16] = {};
};

struct aclIntArray {
    tunan::Tag tag = tunan::Tag::Ints;
    std::vector<int64_t> values;
};

struct aclFloatArray {
    tunan::Tag tag = tunan::Tag::Floats;
    std::vector<float> values;
};

struct aclBoolArray {
    tunan::Tag tag = tunan::Tag::Bools;
    std::vector<char> values;
};

struct aclTensorList {
    tunan::Tag tag = tunan::Tag::Tensors;
    std::vector<const aclTensor*> values;
};

struct aclScalarList {
    tunan::Tag tag = tunan::Tag::Scalars;
    std::vector<const aclScalar*> values;
};
