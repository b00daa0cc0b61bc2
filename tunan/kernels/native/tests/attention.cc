// Runs attention, latent attention, rotation, cache writes, norms and SwiGLU on made-up data, in
// every instruction set of this CPU:
//   kernel_attention    exit status 0: all as it should be; 1: not
//
// Attention is compared with a plain double-precision loop; everything else must have the scalar
// reference's bits. The last line is a checksum of those bits, the same on every architecture.
#include "attention/attention.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "isa.h"
#include "linear/linear.h"
#include "norm/norm.h"
#include "pool.h"
#include "rope/rope.h"

namespace {

using tunan::DType;

class Random {
  public:
    // Between -2 and 2, the same everywhere.
    float next() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-30f;
    }
    std::vector<float> many(size_t count) {
        std::vector<float> values(count);
        for (float& value : values) value = next();
        return values;
    }

  private:
    uint64_t state_ = 1;
};

struct Case {
    int heads, key_heads, head_size, rope_size, block_size, queries, length, window;
    DType type;
};

// One sequence, its blocks in falling order, and its attention.
class Sequence {
  public:
    explicit Sequence(const Case& c)
        : c_(c), blocks_((c.length + c.block_size - 1) / c.block_size) {
        Random random;
        const int key_size = c.head_size - c.rope_size;
        const int value_size = c.rope_size ? c.rope_size : c.head_size;
        keys_ = random.many(static_cast<size_t>(c.length) * c.key_heads * key_size);
        values_ = random.many(static_cast<size_t>(c.length) * c.key_heads * value_size);
        query_ = random.many(static_cast<size_t>(c.queries) * c.heads * c.head_size);
        for (int b = 0; b < blocks_; ++b) table_.push_back(blocks_ - 1 - b);
        for (int t = 0; t < c.length; ++t)
            slots_.push_back(int64_t{table_[t / c.block_size]} * c.block_size + t % c.block_size);
        cache_.block_size = c.block_size;
        cache_.heads = c.key_heads;
        cache_.head_size = c.head_size;
        cache_.rope_size = c.rope_size;
        cache_.type = static_cast<int>(c.type);
        cache_.blocks = blocks_;
        cache_.head_stride = tunan_cache_region_bytes(&cache_);
        cache_.block_stride = cache_.head_stride * c.key_heads;
        memory_.assign(cache_.block_stride * blocks_, static_cast<char>(0xff));
        cache_.data = memory_.data();
        cache_.bytes = static_cast<int64_t>(memory_.size());
    }

    bool write() {
        const int key_size = c_.head_size - c_.rope_size;
        const int value_size = c_.rope_size ? c_.rope_size : c_.head_size;
        const tunan::CacheWrite write = {keys_.data(),
                                         values_.data(),
                                         slots_.data(),
                                         c_.key_heads * key_size,
                                         c_.key_heads * value_size,
                                         0};
        return tunan::rotate_and_write(nullptr, &write, &cache_, c_.length) == tunan::kOk;
    }

    // Relative error, L2; infinite if the kernel refused.
    double error() {
        const int size = c_.head_size - c_.rope_size;
        std::vector<float> out(static_cast<size_t>(c_.queries) * c_.heads * size);
        const int32_t start[] = {0, c_.queries}, length[] = {c_.length};
        tunan::AttentionCall call{};
        call.query = query_.data();
        call.out = out.data();
        call.query_token_stride = c_.heads * c_.head_size;
        call.out_token_stride = c_.heads * size;
        call.query_start = start;
        call.seq_lens = length;
        call.block_table = table_.data();
        call.table_stride = call.table_width = blocks_;
        call.sequences = 1;
        call.tokens = c_.queries;
        call.heads = c_.heads;
        call.scale = scale();
        call.window = c_.window;
        call.causal = 1;
        if (tunan::attend(call, cache_) != tunan::kOk) return INFINITY;
        double difference = 0, norm = 0;
        for (int q = 0; q < c_.queries; ++q) {
            for (int h = 0; h < c_.heads; ++h) {
                const std::vector<double> expected = exact(q, h);
                for (int d = 0; d < size; ++d) {
                    const double e = expected[d] - out[(size_t(q) * c_.heads + h) * size + d];
                    difference += e * e;
                    norm += expected[d] * expected[d];
                }
            }
        }
        return std::sqrt(difference / norm);
    }

    const std::vector<char>& memory() const { return memory_; }

  private:
    float scale() const { return 1.f / std::sqrt(static_cast<float>(c_.head_size)); }

    // Element d of a key; for a latent row the rope part follows the latent.
    double key(int t, int head, int d) const {
        const int size = c_.head_size - c_.rope_size;
        if (d < size) return keys_[(size_t(t) * c_.key_heads + head) * size + d];
        return values_[size_t(t) * c_.rope_size + d - size];
    }

    std::vector<double> exact(int q, int h) const {
        const int head = h / (c_.heads / c_.key_heads), size = c_.head_size - c_.rope_size;
        const int position = c_.length - c_.queries + q;
        const int low = c_.window ? std::max(0, position - c_.window + 1) : 0;
        std::vector<double> weights, result(size);
        double top = -INFINITY, sum = 0;
        for (int t = low; t <= position; ++t) {
            double score = 0;
            for (int d = 0; d < c_.head_size; ++d)
                score += query_[(size_t(q) * c_.heads + h) * c_.head_size + d] * key(t, head, d);
            weights.push_back(score * scale());
            top = std::max(top, weights.back());
        }
        for (double& w : weights) sum += w = std::exp(w - top);
        for (int t = low; t <= position; ++t)
            for (int d = 0; d < size; ++d)
                result[d] += weights[t - low] / sum *
                             (c_.rope_size ? key(t, head, d)
                                           : values_[(size_t(t) * c_.key_heads + head) * size + d]);
        return result;
    }

    Case c_;
    int blocks_;
    std::vector<float> keys_, values_, query_;
    std::vector<int32_t> table_;
    std::vector<int64_t> slots_;
    tunan::PagedCache cache_{};
    std::vector<char> memory_;
};

class Checksum {
  public:
    template <class T>
    void add(const std::vector<T>& data) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
        for (size_t i = 0; i < data.size() * sizeof(T); ++i)
            value_ = (value_ ^ bytes[i]) * 1099511628211ull;
    }
    uint64_t value() const { return value_; }

  private:
    uint64_t value_ = 14695981039346656037ull;
};

void add_rows(Checksum& sum, bool norm, int rows, int size) {
    Random random;
    std::vector<float> x = random.many(size_t(rows) * size * (norm ? 1 : 2));
    std::vector<float> residual = random.many(size_t(rows) * size), weight = random.many(size);
    std::vector<float> out(size_t(rows) * size), scales(rows);
    std::vector<int8_t> values(rows * tunan::activation_stride(size));
    std::vector<int32_t> sums(rows * tunan::activation_sums(size));
    const tunan::QuantizedRows quantized = {values.data(), scales.data(), sums.data()};
    if (norm)
        tunan::rms_norm({x.data(), residual.data(), weight.data(), out.data(), quantized, size,
                         size, size, rows, size, 0, 1e-5f});
    else
        tunan::swiglu({x.data(), out.data(), quantized, 2 * size, size, rows, size, 0});
    sum.add(residual);
    sum.add(out);
    sum.add(values);
    sum.add(scales);
    sum.add(sums);
}

void add_rotation(Checksum& sum, bool neox) {
    Random random;
    std::vector<float> query = random.many(7 * 3 * 80), cos_sin = random.many(20 * 32);
    const std::vector<int64_t> positions = {3, 19, 0, 7, 7, 12, 1};
    tunan::Rotation r{};
    r.query = query.data();
    r.positions = positions.data();
    r.cos_sin = cos_sin.data();
    r.query_token_stride = 240;
    r.query_head_stride = r.head_size = 80;
    r.max_position = 20;
    r.query_heads = 3;
    r.rotary_size = 32;
    r.neox = neox;
    tunan::rotate_and_write(&r, nullptr, nullptr, 7);
    sum.add(query);
}

const std::vector<Case> kCases = [] {
    std::vector<Case> cases;
    for (const DType type : {DType::f32, DType::bf16, DType::int8}) {
        cases.push_back({6, 2, 64, 0, 16, 1, 1, 0, type});
        cases.push_back({6, 2, 64, 0, 32, 1, 531, 0, type});
        cases.push_back({5, 1, 80, 0, 16, 9, 77, 0, type});
        cases.push_back({4, 4, 128, 0, 128, 3, 200, 40, type});
        cases.push_back({3, 1, 256, 0, 48, 33, 33, 0, type});
        cases.push_back({16, 1, 576, 64, 16, 2, 90, 0, type});
    }
    return cases;
}();

double tolerance(DType type) {
    return type == DType::f32 ? 2e-6 : type == DType::bf16 ? 8e-3 : 2e-2;
}

// Wrong cases of one instruction set; adds what has to be the same everywhere to `sum`.
int run_all(const char* isa, Checksum& sum) {
    int wrong = 0;
    for (const Case& c : kCases) {
        Sequence sequence(c);
        const double error = sequence.write() ? sequence.error() : INFINITY;
        sum.add(sequence.memory());
        if (error < tolerance(c.type)) continue;
        ++wrong;
        std::printf("%s: %d heads of %d (%d of keys), %d tokens, type %d: error %g %s\n", isa,
                    c.heads, c.head_size, c.key_heads, c.length, static_cast<int>(c.type), error,
                    std::isinf(error) ? tunan_last_error() : "");
    }
    for (const int size : {1, 31, 576, 1025}) {
        add_rows(sum, true, 5, size);
        add_rows(sum, false, 5, size);
    }
    add_rotation(sum, true);
    add_rotation(sum, false);
    return wrong;
}

}  // namespace

int main() {
    std::istringstream isas(tunan_isa_supported());
    int wrong = 0;
    uint64_t reference = 0;
    for (std::string isa; std::getline(isas, isa, ',');) {
        tunan_isa_select(isa.c_str());
        for (const int threads : {1, 3}) {
            tunan_pool_configure(threads, nullptr, 20);
            Checksum sum;
            int here = run_all(isa.c_str(), sum);
            if (!reference) reference = sum.value();
            here += sum.value() != reference;
            std::printf("%s threads=%d wrong=%d\n", isa.c_str(), threads, here);
            wrong += here;
        }
    }
    std::printf("checksum %016llx\n", static_cast<unsigned long long>(reference));
    return wrong ? 1 : 0;
}
