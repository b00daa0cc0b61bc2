#!/usr/bin/env bash
# Builds tunan/kernels/libtunan_kernels.so from tunan/kernels/native, where an editable install looks
# for it. One library serves every environment of this tree: it needs neither Python nor torch.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    echo "kernels: $*" >&2
    exit 3
}

command -v cmake >/dev/null || die "no cmake found; install cmake 3.25 or newer (apt-get install cmake, or pip install cmake)"
command -v "${CXX:-g++}" >/dev/null || die "no ${CXX:-g++} found; install a C++17 compiler (apt-get install g++)"
build=build/kernels
mkdir -p "$build"
log=$build/build.log
if ! {
    cmake -S tunan/kernels -B "$build" -DTUNAN_KERNELS_OUTPUT="$PWD/tunan/kernels" &&
        cmake --build "$build" --target tunan_kernels --parallel "${JOBS:-2}"
} >"$log" 2>&1; then
    die "the build failed: $(grep -m1 -E 'error|Error' "$log" || echo "see the log") (all of it: $log)"
fi
echo "kernels: built tunan/kernels/libtunan_kernels.so"
