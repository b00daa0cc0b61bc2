// An operator as the table (operators.txt) describes it, and the two phases of calling one. Light
// on purpose: the generated entry points include this and nothing of torch.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <vector>

struct aclTensor;
struct aclScalar;
struct aclIntArray;
struct aclFloatArray;
struct aclBoolArray;
struct aclTensorList;
struct aclScalarList;
struct aclOpExecutor;

namespace tunan {

enum class Kind {
    Tensor,
    Scalar,
    Ints,
    Floats,
    Bools,
    Tensors,
    Scalars,
    Integer,
    Flag,
    Real,
    Text
};

struct Parameter {
    const char* name;
    Kind kind;
    bool optional;
    bool written;
    const char*
        dtypes;  // "" or the ones the device takes, as aclnn names them: "DT_FLOAT,DT_FLOAT16"
};

// One argument of the aten function behind an operator.
struct Binding {
    const char* schema;     // its name in aten's schema, "" when given by position
    const char* parameter;  // which parameter's value; "@x" the dtype of x, "#text" a literal
};

struct Operator {
    const char* name;      // aclnnAdd
    const char* function;  // aten::add.Tensor, or the hand-written kernel's name
    bool aten;
    std::vector<Parameter> parameters;
    std::vector<Binding> bindings;
};

// An argument as it comes through the C interface.
struct Raw {
    union {
        const void* pointer;
        int64_t integer;
        double real;
    };
    Raw(const void* value) : pointer(value) {}
    Raw(int64_t value) : integer(value) {}
    Raw(uint64_t value) : integer(static_cast<int64_t>(value)) {}
    Raw(int32_t value) : integer(value) {}
    Raw(int8_t value) : integer(value) {}
    Raw(bool value) : integer(value) {}
    Raw(double value) : real(value) {}
    Raw(float value) : real(value) {}
};

// Phase 1: takes the arguments over, checks them; 0 or aclnn's error status with a message
// reported.
int prepare(const Operator& op, std::initializer_list<Raw> arguments, uint64_t* workspace,
            aclOpExecutor** executor);

// Phase 2: queues the kernel on the stream.
int launch(aclOpExecutor* executor, void* stream);

}  // namespace tunan
