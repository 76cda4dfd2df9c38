#include "jit/compile.h"

#include "codegen/interpreted_kernels.h"
#include "codegen/x86_emit.h"
#include "core/error.h"
#include "core/exec_memory.h"
#include "core/log.h"

namespace mercer::jit {
namespace {

template <class Args>
class NativeKernel final : public Kernel<Args> {
 public:
  explicit NativeKernel(const std::vector<std::uint8_t>& code)
      : memory_(code.data(), code.size()), bytes_(code.size()), function_(memory_.as<void(const Args*)>()) {}
  void operator()(const Args& args) const override { function_(&args); }
  std::size_t code_bytes() const override { return bytes_; }

 private:
  ExecutableMemory memory_;
  std::size_t bytes_;
  void (*function_)(const Args*);
};

template <class Args, class Interpreted>
class InterpretedKernel final : public Kernel<Args> {
 public:
  template <class Source>
  explicit InterpretedKernel(const Source& source) : kernel_(source) {}
  void operator()(const Args& args) const override { kernel_(args); }

 private:
  Interpreted kernel_;
};

/// Machine code, or null when the formula is too large for the target's registers.
template <class Args, class Source>
std::unique_ptr<Kernel<Args>> try_native(const Source& source, std::vector<std::uint8_t> (*emit)(const Source&)) {
  try {
    return std::make_unique<NativeKernel<Args>>(emit(source));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::compile) throw;
    log_once(LogLevel::info, "{}", error.what());
    return nullptr;
  }
}

template <class Args, class Interpreted, class Source>
std::unique_ptr<Kernel<Args>> compile_source(const Source& source, std::vector<std::uint8_t> (*emit)(const Source&)) {
  if (source.target != Target::interpreter && ExecutableMemory::available()) {
    if (auto native = try_native<Args>(source, emit)) return native;
    log_once(LogLevel::warning, "a formula is too large for {}; the interpreter runs it, several times slower",
             plan::target_info(source.target).name);
  }
  return std::make_unique<InterpretedKernel<Args, Interpreted>>(source);
}

}  // namespace

std::unique_ptr<UpdateKernel> compile(const plan::UpdateSource& source) {
  return compile_source<plan::UpdateArgs, codegen::InterpretedUpdate>(source, codegen::emit_update);
}

std::unique_ptr<EpilogueKernel> compile(const plan::EpilogueSource& source) {
  return compile_source<plan::EpilogueArgs, codegen::InterpretedEpilogue>(source, codegen::emit_epilogue);
}

std::unique_ptr<FieldKernel> compile(const plan::FieldSource& source) {
  return compile_source<plan::FieldArgs, codegen::InterpretedField>(source, codegen::emit_field);
}

const PairKernels::Variant& PairKernels::variant(bool fast) const {
  fast = fast && plan_->has_fast;
  std::call_once(compiled_[fast], [&] {
    Variant& v = variants_[fast];
    if (!plan_->promoted.empty()) v.update = compile(plan_->update_source(fast));
    v.epilogue = compile(plan_->epilogue_source(fast));
  });
  return variants_[fast];
}

const UpdateKernel& PairKernels::continued(bool fast) const {
  fast = fast && plan_->has_fast;
  std::call_once(continued_compiled_[fast], [&] { continued_[fast] = compile(plan_->continued_source(fast)); });
  return *continued_[fast];
}

const UpdateKernel* PairKernels::fused(bool fast) const {
  fast = fast && plan_->has_fast;
  std::call_once(fused_compiled_[fast], [&] {
    if (plan_->can_fuse(fast) && ExecutableMemory::available())
      fused_[fast] = try_native<plan::UpdateArgs>(plan_->update_source(fast, true), codegen::emit_update);
  });
  return fused_[fast].get();
}

const UpdateKernel& PairKernels::maxima() const {
  std::call_once(maxima_compiled_, [&] { maxima_ = compile(plan_->maxima_source()); });
  return *maxima_;
}

const UpdateKernel* PairKernels::fused_maxima() const {
  std::call_once(fused_maxima_compiled_, [&] {
    if (plan_->can_fuse(plan_->has_fast) && ExecutableMemory::available())
      fused_maxima_ = try_native<plan::UpdateArgs>(plan_->maxima_source(true), codegen::emit_update);
  });
  return fused_maxima_.get();
}

}  // namespace mercer::jit
