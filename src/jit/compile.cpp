#include "jit/compile.h"

#include "codegen/interpreter/interpreted_kernels.h"
#include "codegen/x86/x86_emit.h"
#include "core/error.h"
#include "core/system/exec_memory.h"
#include "core/system/log.h"

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

/// Machine code, or null and why: the formula is too large for the target's registers, or memory may not be executed.
template <class Args, class Source>
std::unique_ptr<Kernel<Args>> try_native(const Source& source, std::vector<std::uint8_t> (*emit)(const Source&),
                                         std::string& why_not) {
  try {
    return std::make_unique<NativeKernel<Args>>(emit(source));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::compile) throw;
    why_not = error.what();
    return nullptr;
  }
}

/// Update and epilogue in one, where that can be had; else they are compiled apart.
std::unique_ptr<UpdateKernel> try_fused(const plan::UpdateSource& source) {
  if (!ExecutableMemory::available()) return nullptr;
  std::string why_not;
  auto fused = try_native<plan::UpdateArgs>(source, codegen::emit_update, why_not);
  if (!fused) log_once(LogLevel::info, "{}", why_not);
  return fused;
}

template <class Args, class Interpreted, class Source>
std::unique_ptr<Kernel<Args>> compile_source(const Source& source, std::vector<std::uint8_t> (*emit)(const Source&)) {
  if (source.target != Target::interpreter) {
    std::string why_not;
    if (auto native = try_native<Args>(source, emit, why_not)) return native;
    log_once(LogLevel::warning, "no machine code for {}: {} The interpreter runs it, several times slower",
             plan::target_info(source.target).name, why_not.substr(0, why_not.find(" Received")));  // once a rule
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
  compiled_[fast].call([&] {
    Variant& v = variants_[fast];
    if (!plan_->promoted.empty()) v.update = compile(plan_->update_source(fast));
    v.epilogue = compile(plan_->epilogue_source(fast));
  });
  return variants_[fast];
}

const UpdateKernel& PairKernels::continued(bool fast) const {
  fast = fast && plan_->has_fast;
  continued_compiled_[fast].call([&] { continued_[fast] = compile(plan_->continued_source(fast)); });
  return *continued_[fast];
}

const UpdateKernel* PairKernels::fused(bool fast) const {
  fast = fast && plan_->has_fast;
  fused_compiled_[fast].call([&] {
    if (plan_->can_fuse(fast)) fused_[fast] = try_fused(plan_->update_source(fast, true));
  });
  return fused_[fast].get();
}

const UpdateKernel& PairKernels::maxima() const {
  maxima_compiled_.call([&] { maxima_ = compile(plan_->maxima_source()); });
  return *maxima_;
}

const UpdateKernel* PairKernels::fused_maxima() const {
  fused_maxima_compiled_.call([&] {
    if (plan_->can_fuse(plan_->has_fast)) fused_maxima_ = try_fused(plan_->maxima_source(true));
  });
  return fused_maxima_.get();
}

}  // namespace mercer::jit
