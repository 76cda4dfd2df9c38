#include "jit/kron_compile.h"

#include "codegen/interpreter/kron_portable.h"
#include "codegen/x86/kron_emit.h"
#include "core/error.h"
#include "core/system/exec_memory.h"
#include "core/system/log.h"

namespace mercer::jit {
namespace {

class NativeStep final : public KronKernel {
 public:
  explicit NativeStep(const std::vector<std::uint8_t>& code)
      : memory_(code.data(), code.size()), bytes_(code.size()),
        function_(memory_.as<void(const plan::KronStepArgs*)>()) {
  }
  void operator()(const plan::KronStepArgs& args) const override { function_(&args); }
  std::size_t code_bytes() const override { return bytes_; }

 private:
  ExecutableMemory memory_;
  std::size_t bytes_;
  void (*function_)(const plan::KronStepArgs*);
};

class PortableStep final : public KronKernel {
 public:
  explicit PortableStep(const plan::KronStepSource& source) : source_(source) {}
  void operator()(const plan::KronStepArgs& args) const override { codegen::run_kron_step(source_, args); }

 private:
  plan::KronStepSource source_;
};

}  // namespace

std::unique_ptr<KronKernel> compile(const plan::KronStepSource& source) {
  if (codegen::can_emit(source) && ExecutableMemory::available()) {
    try {
      return std::make_unique<NativeStep>(codegen::emit_kron_step(source));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::compile) throw;
      log_once(LogLevel::warning, "kron: a kernel could not be made, plain loops run instead: {}", error.what());
    }
  }
  return std::make_unique<PortableStep>(source);
}

}  // namespace mercer::jit
