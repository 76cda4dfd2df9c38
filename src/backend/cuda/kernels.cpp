#include "backend/cuda/kernels.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <tuple>

#include "codegen/cuda_source.h"
#include "core/error.h"

namespace mercer::cuda {

jit::CudaSource cuda_source(std::string name, std::string text, const std::string& architecture) {
  return {std::move(name), std::move(text), architecture, {"-fmad=false"}};
}

PairSources pair_sources(const plan::GpuPairPlan& plan, Dtype points, Dtype out, const std::string& architecture) {
  const plan::GpuPairProblem& problem = plan.problem;
  const std::string formula = problem.outputs.front().to_text();
  const auto named = [&](const char* kind, std::string text) {
    return cuda_source(fmt::format("{} {} {}", kind, formula, name_of(problem.type)), std::move(text), architecture);
  };
  PairSources sources;
  sources.tile = named("tile", codegen::cuda_pair_source(plan));
  sources.pack_x = named("pack x", codegen::cuda_pack_source(plan, true, points));
  sources.pack_z = named("pack z", codegen::cuda_pack_source(plan, false, points));
  sources.uniforms = named("uniforms", codegen::cuda_uniforms_source(problem.type, plan.split.params.size(),
                                                                    plan.split.uniforms.size(), plan.uniforms));
  if (problem.consumer != plan::Consumer::store)
    sources.merge = named("merge", codegen::cuda_merge_source(problem.consumer, problem.fold, problem.type, out));
  return sources;
}

std::shared_ptr<const PairKernels> compile_pair_kernels(std::shared_ptr<const plan::GpuPairPlan> plan, Dtype points,
                                                        Dtype out, int device) {
  auto kernels = std::make_shared<PairKernels>();
  kernels->plan = plan;
  kernels->device = &cuda_device(device);
  const PairSources sources = pair_sources(*plan, points, out, kernels->device->architecture());
  struct Row {
    const jit::CudaSource* source;
    const char* function;
    Kernel* kernel;
  };
  std::vector<Row> rows = {{&sources.tile, "pair_tile", &kernels->tile},
                           {&sources.pack_x, "pack", &kernels->pack_x},
                           {&sources.pack_z, "pack", &kernels->pack_z},
                           {&sources.uniforms, "uniforms", &kernels->uniforms}};
  if (!sources.merge.text.empty()) rows.push_back({&sources.merge, "merge_ranges", &kernels->merge});
  std::vector<jit::CudaSource> texts;
  for (const Row& row : rows) texts.push_back(*row.source);
  const std::vector<jit::CudaBinary> binaries = jit::compile_all(texts);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].kernel->module = jit::CudaModule::load(binaries[i], device);
    rows[i].kernel->function = &rows[i].kernel->module->function(rows[i].function);
  }
  return kernels;
}

std::shared_ptr<const FieldKernels> compile_field_kernels(std::shared_ptr<const plan::GpuFieldPlan> plan, int device) {
  auto kernels = std::make_shared<FieldKernels>();
  kernels->plan = plan;
  const std::string architecture = cuda_device(device).architecture();
  const ir::FieldSplit& field = plan->problem.field;
  const std::string formula = field.field.to_text();
  const std::vector<jit::CudaBinary> binaries = jit::compile_all(
      {cuda_source(fmt::format("field {}", formula), codegen::cuda_field_source(*plan), architecture),
       cuda_source(fmt::format("uniforms {}", formula),
                   codegen::cuda_uniforms_source(plan->problem.type, field.params.size(), field.uniforms.size(),
                                                 plan->uniforms),
                   architecture)});
  for (auto [kernel, binary, function] : {std::tuple(&kernels->field, &binaries[0], "field"),
                                          std::tuple(&kernels->uniforms, &binaries[1], "uniforms")}) {
    kernel->module = jit::CudaModule::load(*binary, device);
    kernel->function = &kernel->module->function(function);
  }
  return kernels;
}

void require_no_capture(const char* op, int device, CuStream stream) {
  require(!cuda_is_capturing(device, stream),
          "{}: kernels must be compiled before a CUDA graph is captured; call once before, or mercer.compile. Received "
          "a capturing stream.",
          op);
}

Kernel shared_kernel(const char* function, const std::string& name, const std::string& text, int device,
                     CuStream stream) {
  // Never emptied: there are a few dozen of them at most.
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<std::string, int>, Kernel>;
  const std::pair key(name, device);
  {
    std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  require_no_capture(function, device, stream);
  Kernel kernel;
  kernel.module = jit::CudaModule::load(
      jit::cuda_compile(cuda_source(name, text, cuda_device(device).architecture())), device);
  kernel.function = &kernel.module->function(function);
  std::lock_guard lock(mutex);
  return known.emplace(key, kernel).first->second;
}

Kernel plain_pack(Dtype type, Dtype points, int device, CuStream stream) {
  return shared_kernel("pack", fmt::format("pack {} as {}", name_of(points), name_of(type)),
                       codegen::cuda_plain_pack_source(type, points), device, stream);
}

Kernel sum_splits(Dtype type, int device, CuStream stream) {
  return shared_kernel("sum_splits", fmt::format("sum of splits {}", name_of(type)), codegen::cuda_sum_source(type),
                       device, stream);
}

Kernel nearest_kernel(Dtype type, int device, CuStream stream) {
  return shared_kernel("nearest", fmt::format("nearest {}", name_of(type)), codegen::cuda_nearest_source(type), device,
                       stream);
}

Kernel fill(int device, CuStream stream) {
  return shared_kernel("fill", "fill", codegen::cuda_fill_source(), device, stream);
}

}  // namespace mercer::cuda
