#include "moe/router.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "elements.h"
#include "guard.h"
#include "norm/exponential.h"
#include "pool.h"

namespace tunan {
namespace {

constexpr int64_t kRowsAtOnce = 8;

struct Score {
    float value;
    int32_t index;
};

// NaN is the largest, as PyTorch has it.
bool better(const Score& a, const Score& b) {
    return (std::isnan(a.value) && !std::isnan(b.value)) || a.value > b.value;
}

// The best `count` first, in no order. PyTorch chooses by the same rule between the same two
// algorithms: logits are rounded to bf16 and often equal, and so the same of the equals are taken.
void best_first(std::vector<Score>& scores, int64_t count) {
    const int64_t size = static_cast<int64_t>(scores.size());
    if (count * 64 <= size)
        std::partial_sort(scores.begin(), scores.begin() + count, scores.end(), better);
    else
        std::nth_element(scores.begin(), scores.begin() + count - 1, scores.end(), better);
}

class Router {
  public:
    explicit Router(const RouterCall& call)
        : call_(call),
          group_size_(call.experts / call.groups),
          scores_(call.experts),
          ranked_(call.experts),
          groups_(call.groups),
          queue_(call.experts) {}

    void run(int64_t row) {
        score(row);
        for (int32_t e = 0; e < call_.experts; e++)
            ranked_[e] = scores_[e] + (call_.bias ? call_.bias[e] : 0.f);
        if (call_.kept_groups < call_.groups) leave_groups();
        for (int32_t e = 0; e < call_.experts; e++) queue_[e] = {ranked_[e], e};
        best_first(queue_, call_.top_k);
        weigh(row);
    }

  private:
    void score(int64_t row) {
        float top = -INFINITY, sum = 0.f;
        for (int32_t e = 0; e < call_.experts; e++) {
            scores_[e] = load_one(call_.logits, call_.type, row * call_.experts + e);
            top = std::max(top, scores_[e]);
        }
        if (call_.sigmoid) {
            for (float& x : scores_) {
                const float e = exp_negative(-std::fabs(x));
                x = (x < 0.f ? e : 1.f) / (1.f + e);
            }
            return;
        }
        for (float& x : scores_) sum += x = exp_negative(x - top);
        for (float& x : scores_) x /= sum;
    }

    void leave_groups() {
        for (int32_t g = 0; g < call_.groups; g++) {
            const float* of_group = ranked_.data() + g * group_size_;
            groups_[g] = {value_of(of_group), g};
        }
        best_first(groups_, call_.kept_groups);
        for (int32_t i = call_.kept_groups; i < call_.groups; i++) {
            float* of_group = ranked_.data() + groups_[i].index * group_size_;
            std::fill(of_group, of_group + group_size_, -INFINITY);
        }
    }

    float value_of(const float* of_group) const {
        float first = -INFINITY, second = -INFINITY;
        for (int32_t i = 0; i < group_size_; i++) {
            second = std::max(second, std::min(first, of_group[i]));
            first = std::max(first, of_group[i]);
        }
        return call_.bias ? first + second : first;
    }

    void weigh(int64_t row) const {
        float sum = 0.f;
        for (int32_t i = 0; i < call_.top_k; i++) sum += scores_[queue_[i].index];
        for (int32_t i = 0; i < call_.top_k; i++) {
            const int32_t expert = queue_[i].index;
            float weight = scores_[expert];
            if (call_.renormalise) weight /= sum;
            call_.weights[row * call_.top_k + i] = weight * call_.scale;
            call_.chosen[row * call_.top_k + i] = call_.placed ? call_.placed[expert] : expert;
        }
    }

    const RouterCall& call_;
    const int32_t group_size_;
    std::vector<float> scores_, ranked_;
    std::vector<Score> groups_, queue_;
};

}  // namespace

Status route(const RouterCall& call) {
    const bool groups = call.groups >= 1 && call.experts % std::max(1, call.groups) == 0 &&
                        call.kept_groups >= 1 && call.kept_groups <= call.groups;
    const int64_t open =
        groups ? int64_t{call.experts} / call.groups * call.kept_groups : int64_t{0};
    if (call.experts < 1 || call.top_k < 1 || call.top_k > open ||
        !is_float_type(static_cast<int>(call.type)))
        return fail(kBadArgument, "router: %d of %d experts, %d of %d groups", call.top_k,
                    call.experts, call.kept_groups, call.groups);
    parallel_for(call.rows, kRowsAtOnce, [&](int64_t begin, int64_t end, int) {
        Router router(call);
        for (int64_t row = begin; row < end; row++) router.run(row);
    });
    return kOk;
}

}  // namespace tunan

TUNAN_API int tunan_route(const tunan::RouterCall* call) {
    return tunan::guarded([&] { return tunan::route(*call); });
}
