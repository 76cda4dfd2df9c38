#include "plan/forms/forms.h"

#include <fmt/format.h>

#include "plan/forms/absolute_sums.h"
#include "plan/forms/separate_sums.h"

namespace mercer::plan {

Forms forms_of(const Expr& formula) {
  Forms forms;
  const ir::Split split = ir::split({separate_sums(formula)});
  forms.reductions = static_cast<int>(split.reductions.size());
  forms.gemm = bilinear_of(split);
  forms.absolute_differences = factor_of_absolute_differences(split);
  forms.relative_slope = relative_slope_of(split);
  return forms;
}

std::string Forms::to_text() const {
  std::string text = fmt::format("reductions over the features of both sides: {}\n", reductions);
  if (gemm) text += fmt::format("a product of matrices: {}\n", gemm.to_text());
  if (absolute_differences > 0) text += fmt::format("a sum of {:g} |x - z|\n", absolute_differences);
  if (!relative_slope.empty()) text += fmt::format("c exp(r s) of its sum s, r = {}\n", relative_slope.to_text());
  return text;
}

}  // namespace mercer::plan
