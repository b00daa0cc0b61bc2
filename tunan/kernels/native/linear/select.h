// The linear kernels of the instruction set in use.
#pragma once

#include "linear/kernels.h"

namespace tunan {

const LinearKernels& selected_linear_kernels();

}  // namespace tunan
