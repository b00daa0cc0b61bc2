#!/usr/bin/env bash
# Runs the C++ of the CPU kernels outside Python, on vectors that Python writes with this CPU's
# kernels: under the address and undefined-behaviour sanitizers, and, on x86-64, cross-built for ARM in
# qemu on CPUs with and without matrix and dot products. All bits have to agree. VENV comes from the
# Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    echo "test-kernels-native: $*" >&2
    exit 3
}

build() {
    local folder=$1
    shift
    mkdir -p "$folder"
    {
        cmake -S tunan/kernels -B "$folder" "$@" &&
            cmake --build "$folder" --target kernel_vectors kernel_experts kernel_attention --parallel "${JOBS:-2}"
    } >"$folder/build.log" 2>&1 || die "the build failed, see $folder/build.log"
}

vectors=build/kernel-vectors.bin
experts=build/kernel-experts.bin
mkdir -p build
"$VENV/bin/python" -m tests.kernels.vectors "$vectors"
"$VENV/bin/python" -m tests.kernels.expert_vectors "$experts"

echo "test-kernels-native: sanitizers"
build build/kernels-sanitized -DTUNAN_KERNELS_SANITIZE=ON
build/kernels-sanitized/kernel_vectors "$vectors"
build/kernels-sanitized/kernel_experts "$experts"
attention=$(build/kernels-sanitized/kernel_attention) || { echo "$attention"; exit 1; }
checksum=$(tail -n1 <<<"$attention")

[ "$(uname -m)" = x86_64 ] || exit 0
command -v aarch64-linux-gnu-g++ >/dev/null || die "no aarch64-linux-gnu-g++; apt-get install g++-aarch64-linux-gnu"
command -v qemu-aarch64 >/dev/null || die "no qemu-aarch64; apt-get install qemu-user"
build build/kernels-aarch64 -DCMAKE_TOOLCHAIN_FILE="$PWD/tunan/kernels/aarch64.cmake"
for cpu in max:neon_i8mm cortex-a76:neon_dotprod cortex-a72:neon; do
    echo "test-kernels-native: ARM, $cpu"
    output=$(qemu-aarch64 -cpu "${cpu%:*}" -L /usr/aarch64-linux-gnu build/kernels-aarch64/kernel_vectors "$vectors") ||
        { echo "$output"; exit 1; }
    echo "$output"
    newest=$(tail -n1 <<<"$output")
    qemu-aarch64 -cpu "${cpu%:*}" -L /usr/aarch64-linux-gnu build/kernels-aarch64/kernel_experts "$experts"
    attention=$(qemu-aarch64 -cpu "${cpu%:*}" -L /usr/aarch64-linux-gnu build/kernels-aarch64/kernel_attention) ||
        { echo "$attention"; exit 1; }
    [ "$(tail -n1 <<<"$attention")" = "$checksum" ] || die "$cpu: norms, rotation or cache writes differ from this CPU's"
    case "$cpu" in *:*) [ "${newest%% *}" = "${cpu#*:}" ] || die "$cpu ran ${newest%% *}" ;; esac
done
