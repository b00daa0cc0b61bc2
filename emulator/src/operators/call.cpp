// Takes arguments over from aclnn's objects and hands them to kernels by name.
#include "call.h"

#include <ATen/Functions.h>

#include <cstring>

#include "acl/acl.h"
#include "object.h"

namespace tunan {
namespace {

constexpr size_t MAX_DIMENSIONS = 8;

template <class Object>
const Object* checked(const Operator& op, const Parameter& parameter, const void* pointer,
                      Tag tag) {
    auto* object = static_cast<const Object*>(pointer);
    if (object && object->tag != tag)
        throw Rejected(std::string(op.name) + "." + parameter.name +
                       ": the caller's argument list is not the emulator's (operators.txt)");
    if (!object && !parameter.optional)
        throw Rejected(std::string("Expected a proper Tensor but got null for argument ") +
                       parameter.name + ".");
    return object;
}

template <class Type>
Type read_as(const unsigned char* bytes) {
    Type value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

at::Scalar scalar_of(const aclScalar& scalar) {
    switch (scalar.dtype) {
        case ACL_FLOAT: return read_as<float>(scalar.bytes);
        case ACL_DOUBLE: return read_as<double>(scalar.bytes);
        case ACL_INT64: return read_as<int64_t>(scalar.bytes);
        case ACL_INT32: return static_cast<int64_t>(read_as<int32_t>(scalar.bytes));
        case ACL_BOOL: return read_as<bool>(scalar.bytes);
        case ACL_FLOAT16: return static_cast<double>(read_as<at::Half>(scalar.bytes));
        case ACL_BF16: return static_cast<double>(read_as<at::BFloat16>(scalar.bytes));
        default:
            throw Rejected("Scalar dtype " + std::to_string(scalar.dtype) + " is not supported.");
    }
}

void check_dtype(const Parameter& parameter, at::ScalarType type) {
    if (!*parameter.dtypes) return;
    std::string list = std::string(",") + parameter.dtypes + ",";
    if (list.find(std::string(",") + dtype_name(type) + ",") != std::string::npos) return;
    throw Rejected(std::string(parameter.name) + " not implemented for " + dtype_name(type) +
                   ", should be in dtype support list [" + parameter.dtypes + ",].");
}

Call::Value taken(const Operator& op, const Parameter& parameter, const Raw& raw) {
    switch (parameter.kind) {
        case Kind::Integer:
        case Kind::Flag: return raw.integer;
        case Kind::Real: return raw.real;
        case Kind::Text:
            return std::string(raw.pointer ? static_cast<const char*>(raw.pointer) : "");
        case Kind::Tensor: {
            auto* object = checked<aclTensor>(op, parameter, raw.pointer, Tag::Tensor);
            if (!object) return std::monostate();
            Storage storage = storage_of(*object);
            if (storage.sizes.size() > MAX_DIMENSIONS)
                throw Rejected(std::string("The ") + parameter.name +
                               " tensor cannot be larger than 8 dimensions.");
            check_dtype(parameter, storage.dtype);
            return storage;
        }
        case Kind::Scalar: {
            auto* object = checked<aclScalar>(op, parameter, raw.pointer, Tag::Scalar);
            if (!object) return std::monostate();
            return scalar_of(*object);
        }
        case Kind::Ints: {
            auto* object = checked<aclIntArray>(op, parameter, raw.pointer, Tag::Ints);
            if (!object) return std::monostate();
            return object->values;
        }
        case Kind::Floats: {
            auto* object = checked<aclFloatArray>(op, parameter, raw.pointer, Tag::Floats);
            if (!object) return std::monostate();
            return std::vector<double>(object->values.begin(), object->values.end());
        }
        case Kind::Bools: {
            auto* object = checked<aclBoolArray>(op, parameter, raw.pointer, Tag::Bools);
            if (!object) return std::monostate();
            return std::vector<int64_t>(object->values.begin(), object->values.end());
        }
        case Kind::Tensors: {
            auto* object = checked<aclTensorList>(op, parameter, raw.pointer, Tag::Tensors);
            if (!object) return std::monostate();
            std::vector<Storage> list;
            for (auto* tensor : object->values)
                list.push_back(tensor ? storage_of(*tensor) : Storage());
            return list;
        }
        case Kind::Scalars: {
            auto* object = checked<aclScalarList>(op, parameter, raw.pointer, Tag::Scalars);
            if (!object) return std::monostate();
            std::vector<at::Scalar> list;
            for (auto* scalar : object->values) list.push_back(scalar_of(*scalar));
            return list;
        }
    }
    return std::monostate();
}

}  // namespace

Storage storage_of(const aclTensor& tensor) {
    Storage storage;
    storage.sizes = tensor.sizes;
    storage.strides = tensor.strides;
    storage.storage = tensor.storage;
    storage.dtype = scalar_type(tensor.dtype);
    storage.format = tensor.format;
    storage.object = const_cast<aclTensor*>(&tensor);
    storage.data =
        static_cast<char*>(tensor.data) + tensor.offset * c10::elementSize(storage.dtype);
    if (storage.strides.size() != storage.sizes.size()) {
        storage.strides.assign(storage.sizes.size(), 1);
        for (size_t at = storage.sizes.size(); at-- > 1;)
            storage.strides[at - 1] = storage.strides[at] * storage.sizes[at];
    }
    return storage;
}

Call::Call(const Operator& op, std::initializer_list<Raw> arguments) : op(op) {
    auto raw = arguments.begin();
    for (const Parameter& parameter : op.parameters)
        values_.push_back(taken(op, parameter, *raw++));
}

const Call::Value& Call::value(const char* name) const {
    for (size_t at = 0; at < op.parameters.size(); at++)
        if (!strcmp(op.parameters[at].name, name)) return values_[at];
    throw std::logic_error(std::string(op.name) + " has no parameter " + name);
}

bool Call::has(const char* name) const {
    return !std::holds_alternative<std::monostate>(value(name));
}

const Storage& Call::storage(const char* name) const { return std::get<Storage>(value(name)); }

at::Tensor Call::read(const Storage& storage) const {
    if (!dry_) return storage.read();
    return at::empty_strided(storage.sizes, storage.strides,
                             at::TensorOptions().dtype(storage.dtype).device(at::kMeta));
}

at::Tensor Call::tensor(const char* name) const {
    return has(name) ? read(storage(name)) : at::Tensor();
}

at::Tensor Call::f32(const char* name) const {
    return has(name) ? read(storage(name)).to(at::kFloat) : at::Tensor();
}

std::vector<at::Tensor> Call::tensors(const char* name) const {
    std::vector<at::Tensor> list;
    if (has(name))
        for (const Storage& one : std::get<std::vector<Storage>>(value(name)))
            list.push_back(one.data || (dry_ && one.object) ? read(one) : at::Tensor());
    return list;
}

at::Scalar Call::scalar(const char* name) const { return std::get<at::Scalar>(value(name)); }

std::vector<int64_t> Call::ints(const char* name) const {
    return has(name) ? std::get<std::vector<int64_t>>(value(name)) : std::vector<int64_t>();
}

int64_t Call::integer(const char* name) const { return std::get<int64_t>(value(name)); }

double Call::real(const char* name) const { return std::get<double>(value(name)); }

const std::string& Call::text(const char* name) const { return std::get<std::string>(value(name)); }

void Call::write(const char* name, const at::Tensor& result) const {
    if (!has(name)) return;
    if (dry_)
        read(storage(name)).copy_(result);
    else
        storage(name).write(result);
}

void Call::write_sized(const char* name, const at::Tensor& result) const {
    if (!has(name) || dry_) return;
    const Storage& room = storage(name);
    at::from_blob(room.data, result.sizes(), at::TensorOptions().dtype(room.dtype)).copy_(result);
    room.object->sizes = result.sizes().vec();
}

void Call::run_dry(const std::function<void(const Call&)>& kernel) {
    dry_ = true;
    try {
        kernel(*this);
    } catch (...) {
        dry_ = false;
        throw;
    }
    dry_ = false;
}

void Call::require(bool holds, const std::string& text) const {
    if (!holds) throw Rejected(text);
}

at::ScalarType scalar_type(int acl_dtype) {
    switch (acl_dtype) {
        case ACL_FLOAT: return at::kFloat;
        case ACL_FLOAT16: return at::kHalf;
        case ACL_BF16: return at::kBFloat16;
        case ACL_DOUBLE: return at::kDouble;
        case ACL_INT8: return at::kChar;
        case ACL_UINT8: return at::kByte;
        case ACL_INT16: return at::kShort;
        case ACL_INT32: return at::kInt;
        case ACL_INT64: return at::kLong;
        case ACL_UINT16: return at::kUInt16;
        case ACL_UINT32: return at::kUInt32;
        case ACL_UINT64: return at::kUInt64;
        case ACL_BOOL: return at::kBool;
        case ACL_COMPLEX64: return at::kComplexFloat;
        case ACL_COMPLEX128: return at::kComplexDouble;
        default: throw Rejected("Tensor dtype " + std::to_string(acl_dtype) + " is not supported.");
    }
}

const char* dtype_name(at::ScalarType type) {
    switch (type) {
        case at::kFloat: return "DT_FLOAT";
        case at::kHalf: return "DT_FLOAT16";
        case at::kBFloat16: return "DT_BFLOAT16";
        case at::kDouble: return "DT_DOUBLE";
        case at::kChar: return "DT_INT8";
        case at::kByte: return "DT_UINT8";
        case at::kShort: return "DT_INT16";
        case at::kInt: return "DT_INT32";
        case at::kLong: return "DT_INT64";
        case at::kUInt64: return "DT_UINT64";
        case at::kBool: return "DT_BOOL";
        default: return c10::toString(type);
    }
}

std::string shape_text(const std::vector<int64_t>& sizes) {
    std::string text = "[";
    for (size_t at = 0; at < sizes.size(); at++)
        text += (at ? "," : "") + std::to_string(sizes[at]);
    return text + "]";
}

}  // namespace tunan
