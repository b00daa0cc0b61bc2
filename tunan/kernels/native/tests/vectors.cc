// Runs linear layers whose results are known, in every instruction set of this CPU:
//   kernel_vectors FILE    exit status 0: all bits agree; 1: some do not; 2: no such file
//
// FILE is a sequence of cases, as tests/kernels/vectors.py writes them: ten int64 (outputs, inputs,
// bits, group, scale_type, has_zeros, rows, x_type, y_type, has_bias), then values, scales, zeros,
// x, bias and the expected result, each filled up to a multiple of 8 bytes; what a case lacks is
// empty.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "float_type.h"
#include "linear/api.h"
#include "memory.h"
#include "tests/every_isa.h"

namespace {

struct Case {
    int64_t outputs, inputs, bits, group, scale_type, has_zeros, rows, x_type, y_type, has_bias;
};

struct Data {
    const char *values, *scales, *zeros, *x, *bias, *expected;
    int64_t result_bytes;
};

int64_t bytes_of(int64_t type) { return tunan::float_bytes(static_cast<tunan::FloatType>(type)); }

Data locate(const Case& c, const char*& at) {
    const int64_t groups = c.group ? (c.inputs + c.group - 1) / c.group : 1;
    const auto next = [&](int64_t bytes) {
        const char* here = bytes ? at : nullptr;
        at += tunan::round_up(bytes, 8);
        return here;
    };
    Data data;
    data.values = next(c.outputs * c.inputs);
    data.scales = next(c.outputs * groups * (c.scale_type ? 2 : 4));
    data.zeros = next(c.has_zeros ? c.outputs * groups : 0);
    data.x = next(c.rows * c.inputs * bytes_of(c.x_type));
    data.bias = next(c.has_bias ? c.outputs * 4 : 0);
    data.result_bytes = c.rows * c.outputs * bytes_of(c.y_type);
    data.expected = next(data.result_bytes);
    return data;
}

bool agrees(const Case& c, const Data& data) {
    const int bits = static_cast<int>(c.bits), group = static_cast<int>(c.group);
    const int scale_type = static_cast<int>(c.scale_type);
    const int64_t size =
        tunan_linear_packed_bytes(c.outputs, c.inputs, bits, group, scale_type, c.has_zeros != 0);
    void* packed = tunan::allocate_aligned(size);
    std::vector<char> result(data.result_bytes);
    int status = tunan_linear_pack(reinterpret_cast<const int8_t*>(data.values), data.scales,
                                   reinterpret_cast<const uint8_t*>(data.zeros), c.outputs,
                                   c.inputs, bits, group, scale_type, packed, size);
    if (status == 0) {
        status = tunan_linear(packed, data.x, static_cast<int>(c.x_type), c.inputs, c.rows,
                              reinterpret_cast<const float*>(data.bias), result.data(),
                              static_cast<int>(c.y_type), c.outputs);
    }
    std::free(packed);
    if (status != 0) std::printf("status %d: %s\n", status, tunan_last_error());
    return status == 0 && std::memcmp(result.data(), data.expected, result.size()) == 0;
}

int run_all(const std::vector<char>& file, const std::string& isa, int threads) {
    int wrong = 0, count = 0;
    const char* at = file.data();
    while (at < file.data() + file.size()) {
        Case c;
        std::memcpy(&c, at, sizeof c);
        at += sizeof c;
        const Data data = locate(c, at);
        count++;
        if (agrees(c, data)) continue;
        wrong++;
        std::printf("%s: %lld x %lld, %lld bits, groups of %lld, %lld rows differs\n", isa.c_str(),
                    static_cast<long long>(c.outputs), static_cast<long long>(c.inputs),
                    static_cast<long long>(c.bits), static_cast<long long>(c.group),
                    static_cast<long long>(c.rows));
    }
    std::printf("%s threads=%d cases=%d wrong=%d\n", isa.c_str(), threads, count, wrong);
    return wrong;
}

}  // namespace

int main(int argc, char** argv) {
    return tunan::on_every_isa(argc, argv, "kernel_vectors", run_all);
}
