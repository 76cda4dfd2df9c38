#include "jit/kron_compile.h"

#include "codegen/kron_portable.h"

namespace mercer::jit {
namespace {

class PortableStep final : public KronKernel {
 public:
  explicit PortableStep(const plan::KronStepSource& source) : source_(source) {}
  void operator()(const plan::KronStepArgs& args) const override { codegen::run_kron_step(source_, args); }

 private:
  plan::KronStepSource source_;
};

}  // namespace

std::unique_ptr<KronKernel> compile(const plan::KronStepSource& source) {
  return std::make_unique<PortableStep>(source);
}

}  // namespace mercer::jit
