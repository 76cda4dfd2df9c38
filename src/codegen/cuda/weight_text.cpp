#include "codegen/cuda/weight_text.h"

#include "codegen/cuda/cuda_program.h"
#include "ir/expr/program.h"

namespace mercer::codegen {

std::string weight_text(const Expr& weight, Dtype type) {
  if (weight.empty()) return "#define WEIGHTED 0\nMERCER_INLINE REAL weight_of(REAL) { return 1; }\n";
  ir::LowerOptions options;
  options.type = type;
  options.processor = ir::Processor::gpu_terms;
  const auto name = [](const ir::Input&) { return std::string("w"); };
  const auto value = [](std::size_t) { return std::string("const REAL value"); };
  return "#define WEIGHTED 1\nMERCER_INLINE REAL weight_of(REAL w) {\n" +
         cuda_statements(ir::lower({weight}, options), name, value) + "  return value;\n}\n";
}

}  // namespace mercer::codegen
