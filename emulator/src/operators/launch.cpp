// The two phases of an operator: prepare checks and binds, launch queues.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "call.h"
#include "device.h"
#include "error.h"
#include "faults.h"
#include "settings.h"
#include "stream.h"

struct aclOpExecutor {
    std::shared_ptr<tunan::Call> call;
    tunan::Kernel kernel;
};

namespace tunan {
namespace {

constexpr int PARAM_INVALID = 161002;  // ACLNN_ERR_PARAM_INVALID
constexpr int INNER_ERROR = 561000;    // ACLNN_ERR_INNER
constexpr int TILING_ERROR = 561002;   // ACLNN_ERR_INNER_TILING_ERROR
constexpr size_t HCCL_BUFFER = 200;    // MB, HCCL's default

std::map<std::string, HandKernel>& kernels() {
    static std::map<std::string, HandKernel> defined;
    return defined;
}

Kernel check(Call& call) {
    if (call.op.aten) {
        check_by_meta(call);
        return aten_kernel(call.op);
    }
    const HandKernel& hand = hand_kernel(call.op.function);
    if (hand.check) hand.check(call);
    check_by_dry_run(call, hand.run);
    return hand.run;
}

// What MoE's dispatch does where HCCL's buffer is too small for what it exchanges.
bool refuse_hccl_buffer(const Operator& op) {
    size_t needed = faults::hccl_buffer_of(op.name, current_device());
    if (!needed) return false;
    const char* set = getenv("HCCL_BUFFSIZE");
    size_t has = set && *set ? std::stoul(set) : HCCL_BUFFER;
    if (has >= needed) return false;
    report("EZ9999", std::string(op.name) +
                         ": HCCL_BUFFSIZE is too SMALL, NEEDED_HCCL_BUFFSIZE((maxBs * h * "
                         "epWorldSize) * 2) = " +
                         std::to_string(needed) + "MB, HCCL_BUFFSIZE=" + std::to_string(has) +
                         "MB.");
    return true;
}

std::string trace_line(const Call& call) {
    std::string line = call.op.name;
    for (size_t at = 0; at < call.op.parameters.size(); at++) {
        auto* tensor = std::get_if<Storage>(&call.value(at));
        if (!tensor) continue;
        line += std::string(" ") + call.op.parameters[at].name + "=" + dtype_name(tensor->dtype) +
                shape_text(tensor->sizes) + (tensor->format == 29 ? "NZ" : "");
    }
    return line;
}

}  // namespace

bool define(const char* name, Kernel run, Kernel check) {
    return kernels().emplace(name, HandKernel{std::move(run), std::move(check)}).second;
}

const HandKernel& hand_kernel(const std::string& name) {
    auto found = kernels().find(name);
    if (found == kernels().end())
        throw std::logic_error("the table names a kernel that is not there: " + name);
    return found->second;
}

int prepare(const Operator& op, std::initializer_list<Raw> arguments, uint64_t* workspace,
            aclOpExecutor** executor) {
    try {
        c10::InferenceMode off(false);
        at::AutoDispatchBelowAutograd guard;
        if (refuse_hccl_buffer(op)) return TILING_ERROR;
        auto call = std::make_shared<Call>(op, arguments);
        Kernel kernel = check(*call);
        *workspace = 0;
        *executor = new aclOpExecutor{call, kernel};
        return 0;
    } catch (const Rejected& refused) {
        report("EZ1001", refused.what());
        return PARAM_INVALID;
    } catch (const std::exception& error) {
        report("EZ9999", std::string(op.name) + ": " + error.what());
        return INNER_ERROR;
    }
}

int launch(aclOpExecutor* executor, void* stream) {
    std::unique_ptr<aclOpExecutor> owned(executor);
    auto call = owned->call;
    auto kernel = owned->kernel;
    submit(stream, {[call, kernel] {
                        if (tracing()) trace(trace_line(*call));
                        c10::InferenceMode off(false);
                        at::AutoDispatchBelowAutograd guard;
                        kernel(*call);
                    },
                    call->op.name});
    return 0;
}

}  // namespace tunan

extern "C" int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
    delete executor;
    return 0;
}
