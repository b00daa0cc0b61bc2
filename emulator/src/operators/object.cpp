// Makes and destroys the objects of aclnn's interface.
#include "object.h"

#include <algorithm>
#include <cstring>

#include "acl/acl.h"

namespace {

size_t bytes_of(int dtype) {
    switch (dtype) {
        case ACL_COMPLEX128: return 16;
        case ACL_DOUBLE:
        case ACL_INT64:
        case ACL_UINT64:
        case ACL_COMPLEX64: return 8;
        case ACL_FLOAT:
        case ACL_INT32:
        case ACL_UINT32: return 4;
        case ACL_FLOAT16:
        case ACL_BF16:
        case ACL_INT16:
        case ACL_UINT16: return 2;
        default: return 1;
    }
}

template <class List>
int destroy_list(const List* list) {
    if (!list) return 0;
    for (auto* one : list->values) delete one;
    delete list;
    return 0;
}

}  // namespace

extern "C" {

aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t dims, int dtype, const int64_t* strides,
                           int64_t offset, int format, const int64_t* storage,
                           uint64_t storage_dims, void* data) {
    auto* made = new aclTensor;
    made->sizes.assign(sizes, sizes + dims);
    if (strides) made->strides.assign(strides, strides + dims);
    made->storage.assign(storage, storage + storage_dims);
    made->dtype = dtype;
    made->format = format;
    made->offset = offset;
    made->data = data;
    return made;
}

aclScalar* aclCreateScalar(void* value, int dtype) {
    auto* made = new aclScalar;
    made->dtype = dtype;
    memcpy(made->bytes, value, bytes_of(dtype));
    return made;
}

aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
    auto* made = new aclIntArray;
    made->values.assign(values, values + count);
    return made;
}

aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
    auto* made = new aclFloatArray;
    made->values.assign(values, values + count);
    return made;
}

aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
    auto* made = new aclBoolArray;
    made->values.assign(values, values + count);
    return made;
}

aclTensorList* aclCreateTensorList(const aclTensor* const* values, uint64_t count) {
    auto* made = new aclTensorList;
    made->values.assign(values, values + count);
    return made;
}

aclScalarList* aclCreateScalarList(const aclScalar* const* values, uint64_t count) {
    auto* made = new aclScalarList;
    made->values.assign(values, values + count);
    return made;
}

// The caller releases the array with delete[].
int aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* dims) {
    *dims = tensor->sizes.size();
    *sizes = new int64_t[tensor->sizes.size()];
    std::copy(tensor->sizes.begin(), tensor->sizes.end(), *sizes);
    return 0;
}

int aclDestroyTensor(const aclTensor* one) {
    delete one;
    return 0;
}
int aclDestroyScalar(const aclScalar* one) {
    delete one;
    return 0;
}
int aclDestroyIntArray(const aclIntArray* one) {
    delete one;
    return 0;
}
int aclDestroyFloatArray(const aclFloatArray* one) {
    delete one;
    return 0;
}
int aclDestroyBoolArray(const aclBoolArray* one) {
    delete one;
    return 0;
}
int aclDestroyTensorList(const aclTensorList* list) { return destroy_list(list); }
int aclDestroyScalarList(const aclScalarList* list) { return destroy_list(list); }

}  // extern "C"
