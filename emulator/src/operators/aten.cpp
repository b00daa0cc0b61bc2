// Operators that are one aten function: called by name through torch's dispatcher, so that the
// table needs no code. In phase 1 the same call on tensors without data says what the device would
// refuse.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>
#include <map>
#include <mutex>

#include "call.h"

namespace tunan {
namespace {

const c10::OperatorHandle& handle_of(const Operator& op) {
    static std::mutex guard;
    static std::map<const Operator*, c10::OperatorHandle> known;
    std::lock_guard<std::mutex> lock(guard);
    auto found = known.find(&op);
    if (found != known.end()) return found->second;
    std::string full = op.function;
    auto dot = full.find('.');
    std::string overload = dot == std::string::npos ? "" : full.substr(dot + 1);
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(full.substr(0, dot).c_str(),
                                                                 overload.c_str());
    return known.emplace(&op, handle).first->second;
}

at::Tensor materialise(const Storage& storage, bool meta) {
    if (!meta) return storage.read();
    return at::empty_strided(storage.sizes, storage.strides,
                             at::TensorOptions().dtype(storage.dtype).device(at::kMeta));
}

c10::IValue as_ivalue(const Call::Value& value, bool meta) {
    if (auto* tensor = std::get_if<Storage>(&value)) return materialise(*tensor, meta);
    if (auto* scalar = std::get_if<at::Scalar>(&value)) return *scalar;
    if (auto* ints = std::get_if<std::vector<int64_t>>(&value)) return *ints;
    if (auto* reals = std::get_if<std::vector<double>>(&value)) return *reals;
    if (auto* integer = std::get_if<int64_t>(&value)) return *integer;
    if (auto* real = std::get_if<double>(&value)) return *real;
    if (auto* text = std::get_if<std::string>(&value)) return *text;
    if (auto* list = std::get_if<std::vector<Storage>>(&value)) {
        c10::List<at::Tensor> tensors;
        for (const Storage& one : *list)
            tensors.push_back(one.data || meta ? materialise(one, meta) : at::Tensor());
        return tensors;
    }
    return {};
}

c10::IValue literal(const char* text) {
    if (!strcmp(text, "true")) return true;
    if (!strcmp(text, "false")) return false;
    if (!strcmp(text, "none")) return {};
    if (!strcmp(text, "[]")) return std::vector<int64_t>();
    if (strchr(text, '.')) return std::stod(text);
    return static_cast<int64_t>(std::stol(text));
}

// What aten wants where aclnn gives something near to it.
c10::IValue adapted(c10::IValue value, const c10::TypePtr& type) {
    bool optional = type->kind() == c10::TypeKind::OptionalType;
    const c10::TypePtr& plain =
        optional ? type->castRaw<c10::OptionalType>()->getElementType() : type;
    if (plain->kind() == c10::TypeKind::BoolType && value.isInt()) return value.toInt() != 0;
    if (plain->kind() == c10::TypeKind::FloatType && value.isInt())
        return static_cast<double>(value.toInt());
    if (plain->kind() == c10::TypeKind::FloatType && value.isScalar())
        return value.toScalar().toDouble();
    if (plain->kind() == c10::TypeKind::IntType && value.isScalar())
        return value.toScalar().toLong();
    return value;
}

std::vector<c10::IValue> call_aten(const Call& call, bool meta) {
    const auto& handle = handle_of(call.op);
    const auto& schema = handle.schema();
    std::vector<c10::IValue> stack;
    size_t position = 0;
    for (const auto& argument : schema.arguments()) {
        const Binding* bound = nullptr;
        for (size_t at = 0; at < call.op.bindings.size(); at++) {
            const Binding& binding = call.op.bindings[at];
            if (*binding.schema ? argument.name() == binding.schema : at == position)
                bound = &binding;
        }
        position++;
        if (!bound) {
            if (!argument.default_value())
                throw std::logic_error(std::string(call.op.name) + ": no value for aten's " +
                                       argument.name());
            stack.push_back(*argument.default_value());
        } else if (bound->parameter[0] == '@') {
            stack.push_back(static_cast<int64_t>(call.storage(bound->parameter + 1).dtype));
        } else if (bound->parameter[0] == '#') {
            stack.push_back(literal(bound->parameter + 1));
        } else {
            stack.push_back(
                adapted(as_ivalue(call.value(bound->parameter), meta), argument.type()));
        }
    }
    handle.callBoxed(&stack);
    return stack;
}

// The written parameters, in the table's order, take the results in aten's order.
template <class Store>
void for_each_result(const Call& call, const std::vector<c10::IValue>& results, Store store) {
    size_t next = 0;
    for (size_t at = 0; at < call.op.parameters.size() && next < results.size(); at++) {
        if (!call.op.parameters[at].written) continue;
        store(call.op.parameters[at], call.value(at), results[next++]);
    }
}

bool fits(const std::vector<int64_t>& wanted, at::IntArrayRef got) {
    if (at::IntArrayRef(wanted) == got) return true;
    // aclnn lets a full reduction end in [] or [1].
    int64_t many = 1, have = 1;
    for (int64_t size : wanted) many *= size;
    for (int64_t size : got) have *= size;
    return many == 1 && have == 1;
}

}  // namespace

// A call on tensors without data that gets no further, in the words of torch's kernels in Python.
static bool needs_data(const std::string& text) {
    static const char* const signs[] = {"cannot be called on meta tensors", "a meta tensor without",
                                        "NotImplementedError"};
    for (const char* sign : signs)
        if (text.find(sign) != std::string::npos) return true;
    return false;
}

std::string cann_text(const std::string& text) {
    static const char* const unequal[] = {"shapes cannot be multiplied",
                                          "must have same reduction dim",
                                          "Expected size for first two dimensions of batch2"};
    for (const char* one : unequal)
        if (text.find(one) != std::string::npos)
            return "The k-axis of the two inputs are different.";
    return text.substr(0, text.find('\n'));
}

Kernel aten_kernel(const Operator&) {
    return [](const Call& call) {
        auto results = call_aten(call, false);
        for_each_result(call, results,
                        [](const Parameter&, const Call::Value& into, const c10::IValue& result) {
                            if (auto* storage = std::get_if<Storage>(&into))
                                storage->write(result.toTensor());
                            if (auto* list = std::get_if<std::vector<Storage>>(&into)) {
                                auto tensors = result.toTensorVector();
                                for (size_t at = 0; at < list->size(); at++)
                                    (*list)[at].write(tensors[at]);
                            }
                        });
    };
}

void check_by_meta(const Call& call) {
    std::vector<c10::IValue> results;
    try {
        results = call_aten(call, true);
    } catch (const c10::NotImplementedError&) {
        return;  // the result's shape depends on data: the kernel finds out
    } catch (const std::logic_error&) {
        throw;
    } catch (const std::exception& error) {
        throw Rejected(cann_text(error.what()));
    }
    for_each_result(
        call, results,
        [&](const Parameter& parameter, const Call::Value& into, const c10::IValue& result) {
            auto* list = std::get_if<std::vector<Storage>>(&into);
            if (list && result.isTensorList())
                call.require(list->size() == result.toTensorVector().size(),
                             "Expected " + std::to_string(result.toTensorVector().size()) +
                                 " tensors for " + parameter.name + ", but got " +
                                 std::to_string(list->size()) + ".");
            auto* storage = std::get_if<Storage>(&into);
            if (!storage || !result.isTensor()) return;
            call.require(fits(storage->sizes, result.toTensor().sizes()),
                         std::string("Expected tensor for ") + parameter.name +
                             " to have same size as tensor for result, but " +
                             shape_text(storage->sizes) + " does not equal " +
                             shape_text(result.toTensor().sizes().vec()) + ".");
        });
}

void check_by_dry_run(Call& call, const Kernel& kernel) {
    try {
        call.run_dry(kernel);
    } catch (const c10::NotImplementedError&) {
        // what comes next depends on data: the kernel finds out
    } catch (const Rejected&) {
        throw;
    } catch (const std::logic_error&) {
        throw;
    } catch (const std::exception& error) {
        if (!needs_data(error.what())) throw Rejected(cann_text(error.what()));
    }
}

}  // namespace tunan
