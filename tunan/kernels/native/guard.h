// What keeps exceptions inside the library: a caller through the C ABI knows of none.
#pragma once

#include <exception>
#include <new>

#include "status.h"

namespace tunan {

// The status of `function`, or that of the exception that it ended with.
template <class Function>
int guarded(Function&& function) noexcept {
    try {
        return function();
    } catch (const std::bad_alloc&) {
        return fail(kOutOfMemory, "there is no memory left");
    } catch (const std::exception& error) {
        return fail(kOutOfMemory, "%s", error.what());
    }
}

}  // namespace tunan
