// An ATB operation is a kernel with a name: it gets its inputs and outputs in the order in which
// torch_npu passes them.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "abi.h"

namespace tunan {

using Tensors = std::vector<at::Tensor>;
using AtbKernel = std::function<void(const Tensors& in, const Tensors& out)>;

atb::Operation* make_operation(std::string name, AtbKernel kernel);

}  // namespace tunan
