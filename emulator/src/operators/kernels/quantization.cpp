// Eight-bit weights and activations: per channel and per token scales, products in 32-bit integers.
#include "kernels.h"

namespace tunan {

at::Tensor integer_product(const at::Tensor& one, const at::Tensor& two) {
  // Exact in float64 for any depth that fits a device, and much faster here than integers.
  return at::matmul(one.to(at::kDouble), two.to(at::kDouble));
}

at::Tensor scale_of(const at::Tensor& scale) {
  // A 64-bit scale carries a float32 in its low half (aclnnTransQuantParamV2).
  if (scale.scalar_type() != at::kLong && scale.scalar_type() != at::kUInt64) return scale.to(at::kFloat);
  return scale.view(at::kLong).to(at::kInt).view(at::kFloat);
}

std::pair<at::Tensor, at::Tensor> quantise_rows(const at::Tensor& x) {
  at::Tensor scale = x.abs().amax(-1) / 127;
  at::Tensor step = at::where(scale.eq(0), at::ones_like(scale), scale).unsqueeze(-1);
  return {at::round(x / step).clamp(-128, 127).to(at::kChar), scale};
}

namespace {

void dynamic_quant(const Call& call) {
  at::Tensor x = call.f32("x"), smooth = call.f32("smooth");
  if (smooth.defined() && smooth.numel()) x = x * smooth;
  auto [y, scale] = quantise_rows(x);
  call.write("y", y);
  call.write("scale", scale);
}

void check_dynamic_quant(const Call& call) {
  const auto& x = call.storage("x").sizes;
  std::vector<int64_t> rows(x.begin(), x.end() - 1);
  call.require(call.storage("y").sizes == x, "The shape of y " + shape_text(call.storage("y").sizes) + " must be same as x " +
                                                 shape_text(x) + ".");
  call.require(call.storage("scale").sizes == rows, "The shape of scale " + shape_text(call.storage("scale").sizes) +
                                                        " must be that of x without its last dim " + shape_text(rows) + ".");
}

// scale * float16 of the low bits as the fixed-point unit wants it.
void trans_quant_param(const Call& call) {
  call.write("out", call.f32("scale").contiguous().view(at::kInt).to(at::kLong).bitwise_and(0xffffffffll));
}

void quant_matmul(const Call& call) {
  at::Tensor one = call.tensor("x1"), two = call.tensor("x2"), bias = call.tensor("bias");
  if (call.flag("transpose1")) one = one.transpose(-1, -2);
  if (call.flag("transpose2")) two = two.transpose(-1, -2);
  at::Tensor sum = integer_product(one, two);
  bool biased = bias.defined() && bias.numel() > 0, integer_bias = biased && bias.scalar_type() == at::kInt;
  if (integer_bias) sum = sum + bias;
  if (call.storage("out").dtype == at::kInt) return call.write("out", sum);
  at::Tensor result = sum * scale_of(call.tensor("x2_scale"));
  at::Tensor token = call.tensor("x1_scale");
  if (token.defined() && token.numel()) result = result * token.to(at::kFloat).unsqueeze(-1);
  if (biased && !integer_bias) result = result + bias;
  call.write("out", call.storage("out").dtype == at::kChar ? at::round(result).clamp(-128, 127) : result);
}

void check_quant_matmul(const Call& call) {
  const auto &one = call.storage("x1").sizes, &two = call.storage("x2").sizes;
  size_t k1 = one.size() - (call.flag("transpose1") ? 2 : 1), k2 = two.size() - (call.flag("transpose2") ? 1 : 2);
  call.require(one.size() >= 2 && two.size() >= 2, "The dims of x1 and x2 must be in range [2, 6].");
  call.require(one[k1] == two[k2], "The size of k dim of x1[" + std::to_string(one[k1]) +
                                       "] and that of x2[" + std::to_string(two[k2]) + "] are not equal.");
  int64_t columns = two[two.size() - (call.flag("transpose2") ? 2 : 1)], scales = 1;
  for (int64_t size : call.storage("x2_scale").sizes) scales *= size;
  call.require(scales == 1 || scales == columns, "The size of x2Scale " + shape_text(call.storage("x2_scale").sizes) +
                                                     " must be 1 or n[" + std::to_string(columns) + "].");
}

void format_cast(const Call& call) { call.write("out", call.tensor("self")); }

KERNEL("dynamic_quant", dynamic_quant, check_dynamic_quant);
KERNEL("trans_quant_param", trans_quant_param);
KERNEL("quant_matmul", quant_matmul, check_quant_matmul);
KERNEL("format_cast", format_cast);

}  // namespace
}  // namespace tunan
