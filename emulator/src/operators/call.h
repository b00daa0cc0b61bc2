// One call of an operator, as its kernel sees it: arguments by the names of the table, as ATen
// tensors on the device's (that is, the host's) memory.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "operator.h"

namespace tunan {

// A tensor argument: where its bytes are, and the layout the device stores them in.
struct Storage {
    std::vector<int64_t> sizes, strides, storage;
    at::ScalarType dtype = at::kFloat;
    int format = 2;  // ACL_FORMAT_ND
    char* data = nullptr;
    aclTensor* object = nullptr;  // the caller's, alive only until its call returns

    at::Tensor read() const;                    // ND values: a view where the layout allows it
    void write(const at::Tensor& value) const;  // broadcast and converted, like copy_
};

// Takes a tensor of aclnn's interface over; the caller's object may go afterwards, its memory not.
Storage storage_of(const aclTensor& tensor);

// Phase 1 found an argument that the device would refuse.
struct Rejected : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Call {
  public:
    using Value =
        std::variant<std::monostate, Storage, at::Scalar, std::vector<int64_t>, std::vector<double>,
                     std::vector<Storage>, std::vector<at::Scalar>, int64_t, double, std::string>;

    Call(const Operator& op, std::initializer_list<Raw> arguments);

    const Operator& op;

    bool has(const char* name) const;
    at::Tensor tensor(const char* name) const;  // undefined when absent
    at::Tensor f32(const char* name) const;     // converted; undefined when absent
    std::vector<at::Tensor> tensors(const char* name) const;
    at::Scalar scalar(const char* name) const;
    std::vector<int64_t> ints(const char* name) const;  // empty when absent
    int64_t integer(const char* name) const;
    bool flag(const char* name) const { return integer(name) != 0; }
    double real(const char* name) const;
    const std::string& text(const char* name) const;

    // Stores a result; nothing happens when the caller gave no tensor for it.
    void write(const char* name, const at::Tensor& value) const;

    // Stores a result whose size depends on data at the beginning of the room that the caller made,
    // and tells it the size (aclGetViewShape). The caller waits for the stream and so keeps its
    // object alive.
    void write_sized(const char* name, const at::Tensor& value) const;

    // Shape and type without reading: for checks in phase 1, when the data is not there yet.
    const Storage& storage(const char* name) const;
    const Value& value(const char* name) const;
    const Value& value(size_t index) const { return values_[index]; }

    // Refuses the call in phase 1 with a text of CANN's kind.
    void require(bool holds, const std::string& text) const;

    // While it is dry, tensors have shapes and types and no data, and nothing is stored: a kernel
    // that runs in phase 1 finds out whether its arguments fit.
    bool dry() const { return dry_; }
    void run_dry(const std::function<void(const Call&)>& kernel);

  private:
    at::Tensor read(const Storage& storage) const;

    std::vector<Value> values_;
    bool dry_ = false;
};

using Kernel = std::function<void(const Call&)>;

// Hand-written kernels by the name that the table gives; `check` runs in phase 1.
struct HandKernel {
    Kernel run, check;
};
bool define(const char* name, Kernel run, Kernel check = {});
const HandKernel& hand_kernel(const std::string& name);

// The aten function behind an operator, and its check on tensors without data.
Kernel aten_kernel(const Operator& op);
void check_by_meta(const Call& call);

// A hand-written kernel's second check, after its own: a run on tensors without data.
void check_by_dry_run(Call& call, const Kernel& kernel);

// What aten complains of, in CANN's words where it has some for it.
std::string cann_text(const std::string& text);

at::ScalarType scalar_type(int acl_dtype);
const char* dtype_name(at::ScalarType type);  // DT_FLOAT, ...
std::string shape_text(const std::vector<int64_t>& sizes);

}  // namespace tunan
