// Runs mixtures of experts whose results are known, in every instruction set of this CPU:
//   kernel_experts FILE    exit status 0: all bits agree; 1: some do not; 2: no such file
//
// FILE is a sequence of cases, as tests/kernels/expert_vectors.py writes them: eight int64
// (experts, hidden, intermediate, group, rows, top_k, type, scale_type), then the values and the
// scales of gate_up and those of down, each of all experts, x, the experts of every token, their
// weights and the expected result, each filled up to a multiple of 8 bytes.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "float_type.h"
#include "linear/api.h"
#include "memory.h"
#include "moe/moe.h"
#include "tests/every_isa.h"

namespace {

struct Case {
    int64_t experts, hidden, intermediate, group, rows, top_k, type, scale_type;
};

// The packed weights of all experts.
class Packed {
  public:
    Packed(const Case& c, int64_t outputs, int64_t inputs, const char*& at) {
        const int bits = c.group ? 4 : 8, group = static_cast<int>(c.group);
        const int scale_type = static_cast<int>(c.scale_type);
        const int64_t groups = group ? (inputs + group - 1) / group : 1;
        const int64_t scale_bytes = outputs * groups * (scale_type ? 2 : 4);
        const char* values = at;
        at += tunan::round_up(c.experts * outputs * inputs, 8);
        const char* scales = at;
        at += tunan::round_up(c.experts * scale_bytes, 8);
        each_ = tunan_linear_packed_bytes(outputs, inputs, bits, group, scale_type, 0);
        data_ = static_cast<char*>(tunan::allocate_aligned(c.experts * each_));
        for (int64_t e = 0; e < c.experts && status_ == 0; e++) {
            status_ =
                tunan_linear_pack(reinterpret_cast<const int8_t*>(values) + e * outputs * inputs,
                                  scales + e * scale_bytes, nullptr, outputs, inputs, bits, group,
                                  scale_type, data_ + e * each_, each_);
        }
    }
    Packed(const Packed&) = delete;
    Packed& operator=(const Packed&) = delete;
    ~Packed() { std::free(data_); }

    const char* data() const { return data_; }
    int64_t bytes_each() const { return each_; }
    int status() const { return status_; }

  private:
    char* data_;
    int64_t each_;
    int status_ = 0;
};

bool agrees(const Case& c, const char*& at) {
    const Packed gate_up(c, 2 * c.intermediate, c.hidden, at);
    const Packed down(c, c.hidden, c.intermediate, at);
    const auto type = static_cast<tunan::FloatType>(c.type);
    const int64_t bytes = c.rows * c.hidden * tunan::float_bytes(type);
    const auto next = [&](int64_t size) {
        const char* here = at;
        at += tunan::round_up(size, 8);
        return here;
    };
    const char* x = next(bytes);
    const char* experts = next(c.rows * c.top_k * 4);
    const char* weights = next(c.rows * c.top_k * 4);
    const char* expected = next(bytes);
    std::vector<char> result(bytes);
    tunan::ExpertsCall call{};
    call.x = x;
    call.experts = reinterpret_cast<const int32_t*>(experts);
    call.weights = reinterpret_cast<const float*>(weights);
    call.gate_up = gate_up.data();
    call.down = down.data();
    call.out = result.data();
    call.gate_up_bytes = gate_up.bytes_each();
    call.down_bytes = down.bytes_each();
    call.x_stride = call.out_stride = c.hidden;
    call.rows = c.rows;
    call.top_k = static_cast<int32_t>(c.top_k);
    call.count = static_cast<int32_t>(c.experts);
    call.hidden = static_cast<int32_t>(c.hidden);
    call.intermediate = static_cast<int32_t>(c.intermediate);
    call.type = static_cast<int32_t>(c.type);
    int status = gate_up.status() ? gate_up.status() : down.status();
    if (status == 0) status = tunan_experts(&call);
    if (status != 0) std::printf("status %d: %s\n", status, tunan_last_error());
    return status == 0 && std::memcmp(result.data(), expected, result.size()) == 0;
}

int run_all(const std::vector<char>& file, const std::string& isa, int threads) {
    int wrong = 0, count = 0;
    const char* at = file.data();
    while (at < file.data() + file.size()) {
        Case c;
        std::memcpy(&c, at, sizeof c);
        at += sizeof c;
        count++;
        if (agrees(c, at)) continue;
        wrong++;
        std::printf("%s: %lld experts of %lld x %lld, groups of %lld, %lld rows differs\n",
                    isa.c_str(), static_cast<long long>(c.experts),
                    static_cast<long long>(c.intermediate), static_cast<long long>(c.hidden),
                    static_cast<long long>(c.group), static_cast<long long>(c.rows));
    }
    std::printf("%s threads=%d mixtures=%d wrong=%d\n", isa.c_str(), threads, count, wrong);
    return wrong;
}

}  // namespace

int main(int argc, char** argv) {
    return tunan::on_every_isa(argc, argv, "kernel_experts", run_all);
}
