#include "codegen/cuda/cuda_products.h"

#include <fmt/format.h>

namespace mercer::codegen {

std::string product_function(const Product& product) {
  const int own = product.columns / 2, left = product.of_registers ? 4 : 1;
  std::string sums, operands;
  for (int i = 0; i < own; ++i) {
    sums += fmt::format("{}%{}", i == 0 ? "" : ", ", i);
    operands += fmt::format("{}\"+{}\"(d[{}])", i == 0 ? "" : ", ", product.of_integers ? "r" : "f", i);
  }
  const std::string x = product.of_registers ? fmt::format("{{%{}, %{}, %{}, %{}}}", own, own + 1, own + 2, own + 3)
                                             : fmt::format("%{}", own);
  return fmt::format(
      "MERCER_INLINE void {0}({12} (&d)[{1}], {2}, u64 z, int scale) {{\n"
      "  asm volatile(\"{{ .reg .pred p; setp.ne.b32 p, %{3}, 0; \"\n"
      "               \"wgmma.mma_async.sync.aligned.m64n{4}{5} {{{6}}}, {7}, %{8}, p{9}; }}\"\n"
      "               : {10}\n               : {11}, \"l\"(z), \"r\"(scale));\n}}\n",
      product.name, product.sums, product.of_registers ? "const u32 (&x)[4]" : "u64 x", own + left + 1, product.columns,
      product.types, sums, x, own + left, product.rest, operands,
      product.of_registers ? "\"r\"(x[0]), \"r\"(x[1]), \"r\"(x[2]), \"r\"(x[3])" : "\"l\"(x)",
      product.of_integers ? "int" : "float");
}

}  // namespace mercer::codegen
