#include "backend/cuda/runtime/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "backend/cuda/runtime/workspace.h"
#include "codegen/cuda/cuda_source.h"
#include "codegen/cuda/kron_cuda.h"
#include "core/error.h"
#include "core/system/log.h"
#include "core/system/mutex.h"
#include "jit/quick_compile.h"
#include "plan/forms/rank_field.h"
#include "plan/gpu/stored_sums.h"
#include "plan/gpu/sums/bare_sums.h"

namespace mercer::cuda {
namespace {

template <class Owner>
struct KernelRow {
  const jit::CudaSource* source;
  const char* function;
  KernelPlace<Owner> place;
  Owner* owner;
};

template <class Owner>
void erase_empty(std::vector<KernelRow<Owner>>& rows) {
  std::erase_if(rows, [](const KernelRow<Owner>& row) { return row.source->text.empty(); });
}

/// Whether kernels are compiled and loaded in this call; if not, its rehearsal lists them.
bool is_loaded(const PairJob& job) {
  return job.rehearsal() == nullptr || job.rehearsal()->purpose == Rehearsal::Purpose::kernels;
}

Kernel load(const jit::CudaBinary& binary, const char* function, const PairJob& job) {
  Kernel kernel{jit::CudaModule::load(binary, job.device)};
  kernel.function = &kernel.module->function(function);
  return kernel;
}

/// Trials, and calls that only prepare others, want the kernels that stay.
bool comes_first(const PairJob& job) { return job.rehearsal() == nullptr && job.queue->trial == nullptr; }

/// Whether a quick kernel should lose less in this call than its compilation saves, a quarter of a second and more.
/// What first calls of 1.07e9 pairs times features took apart from the compiler, loading included, allows 0.3 s here.
bool wants_quick_kernels(const PairJob& job, FirstCall first) {
  if (first == FirstCall::full) return false;
  constexpr double kMost = 1e11;  // pairs times features
  const double work = static_cast<double>(job.x.count) * static_cast<double>(job.z.count) *
                      static_cast<double>(job.features) * static_cast<double>(job.items);
  return comes_first(job) && work <= kMost;
}

template <class Owner>
std::vector<jit::CudaSource> texts_of(const std::vector<KernelRow<Owner>>& rows) {
  std::vector<jit::CudaSource> texts;
  for (const KernelRow<Owner>& row : rows) texts.push_back(*row.source);
  return texts;
}

/// `found`, where the texts were looked for before.
std::vector<jit::QuickBinary> compile(const std::vector<jit::CudaSource>& texts, bool quickly,
                                      std::optional<jit::FoundBinaries> found = std::nullopt) {
  if (!found && quickly) found = jit::CudaCompiler::shared().find_all(texts);
  if (found && (quickly || found->is_complete())) return jit::compile_quickly(texts, std::move(*found));
  std::vector<jit::QuickBinary> binaries;
  for (jit::CudaBinary& binary : jit::compile_all(texts)) binaries.emplace_back().binary = std::move(binary);
  return binaries;
}

/// Compiles and loads, or lists what would be.
template <class Owner>
void get_kernels(const std::vector<KernelRow<Owner>>& rows, const PairJob& job, FirstCall first,
                 std::optional<jit::FoundBinaries> found = std::nullopt) {
  if (!is_loaded(job)) {
    for (const KernelRow<Owner>& row : rows) job.rehearsal()->sources.push_back(*row.source);
    return;
  }
  const bool quickly = wants_quick_kernels(job, first);
  const std::vector<jit::QuickBinary> binaries = compile(texts_of(rows), quickly, std::move(found));
  prepare_pool(job.device, job.op);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const KernelRow<Owner>& row = rows[i];
    row.place(*row.owner) = load(binaries[i].binary, row.function, job);
    if (binaries[i].full.valid()) row.owner->full.push_back({row.place, row.function, binaries[i].full});
  }
}

/// The full kernel, or what was there first where that cannot be had.
Kernel full_kernel(Kernel quick, const std::shared_future<jit::CudaBinary>& full, const char* function,
                   const PairJob& job) {
  try {
    const CaptureBreak loads;
    return load(full.get(), function, job);
  } catch (const Error& error) {
    log_once(LogLevel::warning, "cuda: first calls go on, for {} cannot be had: {}", function, error.what());
    quick.is_quick = false;
    return quick;
  }
}

template <class Owner>
std::shared_ptr<Owner> with_full_kernels(const Owner& quick, const PairJob& job) {
  auto kernels = std::make_shared<Owner>(quick);
  for (const FullKernel<Owner>& full : quick.full)
    full.place(*kernels) = full_kernel(full.place(*kernels), full.binary, full.function, job);
  kernels->full.clear();
  return kernels;
}

/// Kernels by their names, on all devices.
struct SharedKernels {
  struct Entry {
    Kernel kernel;
    std::shared_future<jit::CudaBinary> full;  // of a quick kernel
  };
  Mutex mutex;
  std::map<std::pair<std::string, int>, Entry> known;
};

SharedKernels& shared() {
  // Never emptied: there are a few dozen of them at most, and those of Kronecker products, by the shapes of factors.
  static constinit Lazy<SharedKernels> kernels;
  return kernels.get();
}

struct SharedRow {
  const char* function;
  std::string name;
  std::function<std::string()> make_text;
};

Kernel finish_kernel(const SharedKernels::Entry& entry, const SharedRow& row, const PairJob& job) {
  const Kernel kernel = full_kernel(entry.kernel, entry.full, row.function, job);
  std::lock_guard lock(shared().mutex);
  return (shared().known[{row.name, job.device}] = {kernel, {}}).kernel;
}

std::optional<Kernel> find_kernel(const SharedRow& row, const PairJob& job) {
  SharedKernels::Entry entry;
  {
    std::lock_guard lock(shared().mutex);
    const auto found = shared().known.find({row.name, job.device});
    if (found == shared().known.end()) return std::nullopt;
    entry = found->second;
  }
  return entry.kernel.is_quick ? finish_kernel(entry, row, job) : entry.kernel;
}

/// Rows have names of their own.
std::vector<Kernel> shared_kernels(const std::vector<SharedRow>& rows, const PairJob& job, bool quickly = false) {
  std::vector<Kernel> kernels(rows.size());
  std::vector<std::size_t> missing;
  std::vector<jit::CudaSource> texts;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto known = is_loaded(job) ? find_kernel(rows[i], job) : std::nullopt;
    if (known) kernels[i] = *known;
    else missing.push_back(i);
  }
  if (missing.empty()) return kernels;
  if (is_loaded(job)) require_no_capture(job);
  for (const std::size_t i : missing)
    texts.push_back(cuda_source(rows[i].name, rows[i].make_text(), job.hardware().architecture()));
  if (!is_loaded(job)) {
    std::move(texts.begin(), texts.end(), std::back_inserter(job.rehearsal()->sources));
    return kernels;
  }
  std::vector<jit::QuickBinary> binaries = compile(texts, quickly);
  prepare_pool(job.device, job.op);
  for (std::size_t j = 0; j < missing.size(); ++j) {
    const SharedRow& row = rows[missing[j]];
    Kernel kernel = load(binaries[j].binary, row.function, job);
    kernel.is_quick = binaries[j].full.valid();
    std::lock_guard lock(shared().mutex);
    SharedKernels::Entry entry{kernel, std::move(binaries[j].full)};
    kernels[missing[j]] = shared().known.try_emplace({row.name, job.device}, std::move(entry)).first->second.kernel;
  }
  return kernels;
}

template <class MakeText>
Kernel shared_kernel(const char* function, const std::string& name, const PairJob& job, const MakeText& make_text) {
  return shared_kernels({{function, name, make_text}}, job).front();
}

}  // namespace

jit::CudaSource cuda_source(std::string name, std::string text, const std::string& architecture) {
  return {std::move(name), std::move(text), architecture, {"-fmad=false"}};
}

namespace {

std::string uniforms_of(const plan::StoredSums& plan) {
  return codegen::cuda_uniforms_source(plan.type, plan.split.params.size(), plan.split.uniforms.size(), plan.uniforms);
}

std::string uniforms_of(const plan::GpuFieldPlan& plan) {
  const ir::FieldSplit& field = plan.problem.field;
  return codegen::cuda_uniforms_source(plan.problem.type, field.params.size(), field.uniforms.size(),
                                       plan.programs.uniforms);
}

}  // namespace

PairSources pair_sources(const plan::GpuPairPlan& plan, Dtype points, Dtype out, const std::string& architecture) {
  const plan::GpuPairProblem& problem = plan.problem;
  const std::string formula = problem.outputs.front().to_text();
  const auto named = [&](const char* kind, std::string text) {
    return cuda_source(fmt::format("{} {} {}", kind, formula, name_of(problem.type)), std::move(text), architecture);
  };
  PairSources sources;
  const bool doubles = plan.has_double_products();
  if (problem.gradient.field) {
    sources.common.tile = named("field of few features", codegen::cuda_few_features_source(plan));
    sources.common.field_uniforms = named("uniforms of a field", uniforms_of(*problem.gradient.field));
  } else if (problem.gradient.rank_field) {
    sources.common.tile = named("rows of a field", codegen::cuda_rank_rows_source(plan));
  } else if (!plan.few.mma_rhs && !problem.use.subtracts && (!doubles || plan::leaves_pairs(plan)))
    sources.common.tile = named("tile", codegen::cuda_pair_source(plan));
  if (problem.gradient.stored_sums) {
    sources.common.stored_sums = named("side sums", codegen::cuda_stored_sums_source(*problem.gradient.stored_sums));
    sources.common.field_uniforms = named("uniforms of side sums", uniforms_of(*problem.gradient.stored_sums));
  }
  if (!plan.input.direct) {
    sources.common.pack_x = named("pack x", codegen::cuda_pack_source(plan, true, points));
    sources.common.pack_z = named("pack z", codegen::cuda_pack_source(plan, false, points));
  }
  sources.common.uniforms =
      named("uniforms", codegen::cuda_uniforms_source(problem.type, plan.split.params.size(),
                                                      plan.split.uniforms.size(), plan.programs.uniforms));
  if (plan.pipes.mixed_sixteenths > 0)
    sources.pipes.integers = named("tile of integers", codegen::cuda_integers_source(plan));
  if (plan.pipes.differs)
    sources.pipes.differences = named("tile of differences", codegen::cuda_differences_source(plan));
  if (plan.few.expanded) {
    sources.pipes.expand = named("operands of expanded squares", codegen::cuda_expand_source(plan));
    sources.pipes.expanded =
        named("tile of expanded squares", plan.few.mma_rhs ? codegen::cuda_wide_source(*plan.few.expanded)
                                                           : codegen::cuda_pair_source(*plan.few.expanded));
  }
  if (doubles)
    sources.products.tile = named("products of float64", codegen::cuda_double_source(plan));
  else if (plan.products.bilinear)
    sources.products.tile = named("products", codegen::cuda_bilinear_source(plan));
  if (plan.keeps()) {
    sources.products.kept_values = named("powers", codegen::cuda_kept_source(plan));
    sources.products.kept_products =
        named("products of stored values", codegen::cuda_bilinear_source(*plan.products.kept_products));
  } else if (plan.rates()) {
    sources.products.rated = named("products of powers", codegen::cuda_bilinear_source(plan, true));
  }
  if (plan.few.mma_rhs) sources.products.tile = named("products with v", codegen::cuda_wide_source(plan));
  const bool lists =
      plan.products.bilinear && !doubles && !problem.use.subtracts && problem.consumer == plan::Consumer::store;
  if (lists) sources.products.repair = named("repair", codegen::cuda_repair_source(plan));
  if (problem.consumer == plan::Consumer::nearest)
    sources.common.candidates = named("candidates", codegen::cuda_candidates_source(plan));
  else if ((problem.consumer == plan::Consumer::product && !problem.gradient.rank_field) ||
           problem.consumer == plan::Consumer::fold)
    sources.common.merge =
        named("merge", codegen::cuda_merge_source(problem.consumer, problem.use.fold, problem.type, out));
  return sources;
}

FieldSources field_sources(const plan::GpuFieldPlan& plan, const std::string& architecture) {
  const ir::FieldSplit& field = plan.problem.field;
  const std::string formula = field.field.to_text();
  FieldSources sources;
  const auto named = [&](const char* kind, std::string text) {
    return cuda_source(fmt::format("{} {}", kind, formula), std::move(text), architecture);
  };
  sources.uniforms = named("uniforms", uniforms_of(plan));
  if (plan.problem.stored.tile) {
    const plan::GpuFieldProblem& problem = plan.problem;
    sources.stored =
        named("products of stored values", codegen::cuda_stored_source(problem.stored.tile, problem.stored.lie));
    return sources;
  }
  sources.field = named("field", codegen::cuda_field_source(plan));
  if (plan.products) {
    sources.contraction.products = named("products of the field", codegen::cuda_field_products_source(plan));
    sources.contraction.operands = named("operands of the field", codegen::cuda_field_operands_source(plan));
  }
  if (plan.has_units()) {
    sources.contraction.units = named("products of the field in units", codegen::cuda_field_units_source(plan));
    sources.contraction.rows = named("rows of the field", codegen::cuda_field_rows_source(plan));
  }
  if (plan.linear) {
    sources.contraction.linear = named("linear field", codegen::cuda_linear_source(plan));
    sources.contraction.linear_tile =
        named("products of the linear field", codegen::cuda_bilinear_source(*plan.linear));
  }
  if (plan.doubles) {
    sources.contraction.linear = named("linear field of float64", codegen::cuda_linear_doubles_source(plan));
    sources.contraction.linear_tile =
        cuda_source("products of stored float64", codegen::cuda_stored_doubles_source(plan.problem), architecture);
  }
  return sources;
}

namespace {

const char* tile_function(const plan::GpuPairPlan& plan) {
  return plan.problem.gradient.field ? "few_features" : plan.problem.gradient.rank_field ? "rank_rows" : "pair_tile";
}
const char* product_function(const plan::GpuPairPlan& plan) {
  if (plan.has_double_products()) return "pair_tile";
  return plan.few.mma_rhs ? "wide_tile" : "bilinear_tile";
}

using PairRows = std::vector<KernelRow<PairKernels>>;
using Common = CommonParts<Kernel>;
using Pipes = PipeParts<Kernel>;
using Products = ProductParts<Kernel>;
using Contraction = ContractionParts<Kernel>;

/// What a plan's kernels are compiled from, in `sources`, and where they go.
PairRows rows_of(PairKernels& of, std::shared_ptr<const plan::GpuPairPlan> plan, Dtype stored, const PairJob& job,
                 std::list<PairSources>& sources) {
  of.plan = std::move(plan);
  const PairSources& texts =
      sources.emplace_back(pair_sources(*of.plan, job.x.points.dtype, stored, job.hardware().architecture()));
  PairRows rows = {
      {&texts.common.tile, tile_function(*of.plan), place_of<&PairKernels::common, &Common::tile>, &of},
      {&texts.common.pack_x, "pack", place_of<&PairKernels::common, &Common::pack_x>, &of},
      {&texts.common.pack_z, "pack", place_of<&PairKernels::common, &Common::pack_z>, &of},
      {&texts.common.uniforms, "uniforms", place_of<&PairKernels::common, &Common::uniforms>, &of},
      {&texts.common.field_uniforms, "uniforms", place_of<&PairKernels::common, &Common::field_uniforms>, &of},
      {&texts.common.stored_sums, "finish_values", place_of<&PairKernels::common, &Common::stored_sums>, &of},
      {&texts.common.merge, "merge_ranges", place_of<&PairKernels::common, &Common::merge>, &of},
      {&texts.common.candidates, "tighten", place_of<&PairKernels::common, &Common::candidates>, &of},
      {&texts.pipes.integers, "pair_tile", place_of<&PairKernels::pipes, &Pipes::integers>, &of},
      {&texts.pipes.differences, "pair_tile", place_of<&PairKernels::pipes, &Pipes::differences>, &of},
      {&texts.pipes.expand, "start_expanded", place_of<&PairKernels::pipes, &Pipes::expand>, &of},
      {&texts.pipes.expanded, of.plan->few.mma_rhs ? "wide_tile" : "pair_tile",
       place_of<&PairKernels::pipes, &Pipes::expanded>, &of},
      {&texts.products.tile, product_function(*of.plan), place_of<&PairKernels::products, &Products::tile>, &of},
      {&texts.products.rated, "bilinear_tile", place_of<&PairKernels::products, &Products::rated>, &of},
      {&texts.products.kept_values, "bilinear_tile", place_of<&PairKernels::products, &Products::kept_values>, &of},
      {&texts.products.kept_products, "bilinear_tile", place_of<&PairKernels::products, &Products::kept_products>, &of},
      {&texts.products.repair, "repair", place_of<&PairKernels::products, &Products::repair>, &of}};
  erase_empty(rows);
  return rows;
}

/// Lists the kernels that store sums for first calls of other formulas.
void list_bare_sums(const plan::GpuPairPlan& plan, const PairJob& job) {
  const auto bare = plan::bare_sums(plan);
  if (bare == nullptr) return;
  PairKernels kernels;
  std::list<PairSources> sources;
  for (const auto& row : rows_of(kernels, bare, job.type, job, sources))
    job.rehearsal()->sources.push_back(*row.source);
}

bool has_arrays(const PairJob& job) {
  return std::any_of(job.params.begin(), job.params.end(), [](const JobParam& param) { return !param.is_number(); });
}

/// The kernels of its sums, where store and cache have all of them and they serve here. Items of a batch that share
/// sums would make them each: those with parameters of their own have none.
std::shared_ptr<PairKernels> find_bare_sums(const plan::GpuPairPlan& plan, const PairJob& job) {
  if (!jit::compiles_first() || (has_arrays(job) && job.items > 1)) return nullptr;
  const auto bare = plan::bare_sums(plan);
  if (bare == nullptr) return nullptr;
  auto kernels = std::make_shared<PairKernels>();
  std::list<PairSources> sources;
  const PairRows rows = rows_of(*kernels, bare, job.type, job, sources);
  const jit::FoundBinaries found = jit::CudaCompiler::shared().find_all(texts_of(rows));
  if (!found.is_complete()) return nullptr;
  try {
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i].place(*kernels) = load(*found.binaries[found.of.place_of[i]], rows[i].function, job);
  } catch (const Error& error) {
    log_once(LogLevel::warning, "cuda: a first call goes without stored sums: {}", error.what());
    return nullptr;
  }
  return kernels;
}

/// Where its sums are at hand, what makes values of them is compiled now, and what is missing of `rows` after it.
bool take_bare_sums(PairKernels& kernels, const PairRows& rows, jit::FoundBinaries& known, const PairJob& job) {
  const std::shared_ptr<PairKernels> sums = find_bare_sums(*kernels.plan, job);
  if (sums == nullptr) return false;
  const auto uniforms = std::find_if(rows.begin(), rows.end(), [](const auto& row) {
    return row.place == place_of<&PairKernels::common, &Common::uniforms, PairKernels>;
  });
  std::vector<jit::CudaSource> first, full;
  first.push_back(cuda_source("values of sums " + kernels.plan->problem.outputs.front().to_text(),
                              codegen::cuda_finish_source(*kernels.plan), job.hardware().architecture()));
  if (has_arrays(job)) first.push_back(*uniforms->source);
  for (const std::size_t i : known.of.first) full.push_back(*rows[i].source);
  const auto made = jit::compile_first(first, full);
  if (!made) return false;
  if (made->first.empty()) {  // nor will the full ones compile, most likely: they say why
    for (std::size_t i = 0; i < known.binaries.size(); ++i) known.binaries[i] = made->full[i].get();
    return false;
  }
  prepare_pool(job.device, job.op);
  auto bare = std::make_shared<BareSums>();
  bare->finish = load(made->first[0], "finish_stored", job);
  if (has_arrays(job)) bare->uniforms = load(made->first[1], uniforms->function, job);
  const bool allows = !kernels.plan->loss.allowance.outputs.empty();
  sums->first.values =
      std::make_shared<BareValues>(kernels.plan, allows ? sibling(bare->finish, "allow", job) : Kernel{});
  bare->sums = sums;
  kernels.first.bare = bare;
  for (std::size_t i = 0; i < rows.size(); ++i)
    kernels.full.push_back({rows[i].place, rows[i].function, made->full[known.of.place_of[i]]});
  return true;
}

}  // namespace

std::shared_ptr<const PairKernels> compile_pair_kernels(std::shared_ptr<const plan::GpuPairPlan> plan, Dtype out,
                                                        const PairJob& job, FirstCall first) {
  auto kernels = std::make_shared<PairKernels>();
  std::list<PairSources> sources;
  PairRows rows = rows_of(*kernels, plan, out, job, sources);
  std::optional<jit::FoundBinaries> known;
  const bool lists = job.rehearsal() != nullptr && job.rehearsal()->lists_bare_sums;
  if (first == FirstCall::on_bare_sums && lists) list_bare_sums(*plan, job);
  if (first == FirstCall::on_bare_sums && comes_first(job) && plan->products.planes.empty()) {
    known = jit::CudaCompiler::shared().find_all(texts_of(rows));
    if (!known->is_complete() && take_bare_sums(*kernels, rows, *known, job)) return kernels;
  }
  for (const auto& plane : plan->products.planes) {
    auto sum = std::make_shared<PairKernels>();
    const PairRows more = rows_of(*sum, plane, job.type, job, sources);
    rows.insert(rows.end(), more.begin(), more.end());
    kernels->products.sums.push_back(std::move(sum));
  }
  get_kernels(rows, job, first, std::move(known));
  return kernels;
}

std::shared_ptr<const FieldKernels> compile_field_kernels(std::shared_ptr<const plan::GpuFieldPlan> plan,
                                                          const PairJob& job, FirstCall first) {
  auto kernels = std::make_shared<FieldKernels>();
  kernels->plan = plan;
  const FieldSources sources = field_sources(*plan, job.hardware().architecture());
  std::vector<KernelRow<FieldKernels>> rows = {
      {&sources.field, "field", place_of<&FieldKernels::field>, kernels.get()},
      {&sources.uniforms, "uniforms", place_of<&FieldKernels::uniforms>, kernels.get()},
      {&sources.contraction.products, "field_products", place_of<&FieldKernels::contraction, &Contraction::products>,
       kernels.get()},
      {&sources.contraction.operands, "write_coefs", place_of<&FieldKernels::contraction, &Contraction::operands>,
       kernels.get()},
      {&sources.contraction.units, "field_products", place_of<&FieldKernels::contraction, &Contraction::units>,
       kernels.get()},
      {&sources.contraction.rows, "judge_rows", place_of<&FieldKernels::contraction, &Contraction::rows>,
       kernels.get()},
      {&sources.contraction.linear, plan->doubles ? "finish_rows" : "finish_field",
       place_of<&FieldKernels::contraction, &Contraction::linear>, kernels.get()},
      {&sources.contraction.linear_tile, plan->doubles ? "field" : "bilinear_tile",
       place_of<&FieldKernels::contraction, &Contraction::linear_tile>, kernels.get()},
      {&sources.stored, "wide_tile", place_of<&FieldKernels::stored>, kernels.get()}};
  erase_empty(rows);
  get_kernels(rows, job, first);
  return kernels;
}

bool PairKernels::are_quick() const {
  return !full.empty() ||
         std::any_of(products.sums.begin(), products.sums.end(), [](const auto& sum) { return sum->are_quick(); });
}

std::shared_ptr<const PairKernels> finish_kernels(const PairKernels& quick, const PairJob& job) {
  auto kernels = with_full_kernels(quick, job);
  // Where one cannot be had, calls go on with bare sums.
  const bool is_complete =
      std::all_of(quick.full.begin(), quick.full.end(), [&](const auto& full) { return bool(full.place(*kernels)); });
  if (is_complete) kernels->first.bare = nullptr;
  for (auto& sum : kernels->products.sums) sum = finish_kernels(*sum, job);
  return kernels;
}

std::shared_ptr<const FieldKernels> finish_kernels(const FieldKernels& quick, const PairJob& job) {
  return with_full_kernels(quick, job);
}

void require_no_capture(const PairJob& job) {
  require(job.rehearsal() != nullptr || !cuda_is_capturing(job.device, job.stream()),
          "{}: kernels must be compiled before a CUDA graph is captured; call once before, or mercer.compile. Received "
          "a capturing stream.",
          job.op);
}

Kernel plain_pack(Dtype points, const PairJob& job) {
  return shared_kernel("pack", fmt::format("pack {} as {}", name_of(points), name_of(job.type)), job,
                       [&] { return codegen::cuda_plain_pack_source(job.type, points); });
}

Kernel sum_splits(const PairJob& job) {
  return shared_kernel("sum_splits", fmt::format("sum of splits {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_sum_source(job.type); });
}

Kernel merge_products(const PairJob& job) {
  return shared_kernel("merge_ranges", "merge of products", job, [] {
    return codegen::cuda_merge_source(plan::Consumer::product, ReduceKind::sum, Dtype::float32, Dtype::float32);
  });
}

Kernel nearest_kernel(const PairJob& job) {
  return shared_kernel("nearest", fmt::format("nearest {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_nearest_source(job.type); });
}

Kernel quantise_kernels(const PairJob& job) {
  return shared_kernel("start_mixed", "quantise", job, codegen::cuda_quantise_source);
}

Kernel quantise_points_kernels(Dtype points, const PairJob& job) {
  return shared_kernel("find_ranges", fmt::format("quantise points {}", name_of(points)), job,
                       [&] { return codegen::cuda_quantise_points_source(points); });
}

bool has_few_features(const plan::GpuPairPlan& plan) {
  const plan::GpuPairProblem& problem = plan.problem;
  return problem.consumer == plan::Consumer::store && problem.product.brief > 0 &&
         problem.arrays.points == Dtype::float32 && !plan.products.bilinear.weighted() && !plan.input.direct &&
         plan.programs.row_slots == 0 && plan.programs.col_slots == 0;
}

Kernel operand_kernels(const plan::GpuPairPlan& plan, const PairJob& job) {
  const plan::Bilinear& own = plan.products.bilinear;
  const bool squares = own.kind == plan::BilinearKind::square, few_features = has_few_features(plan);
  return shared_kernel("find_centre", fmt::format("operands {} {} {}", squares, few_features, own.multiplier_text), job,
                       [&] { return codegen::cuda_operands_source(squares, own.multiplier, few_features); });
}

Kernel double_operand_kernels(const plan::Bilinear& bilinear, const PairJob& job) {
  const bool squares = bilinear.kind == plan::BilinearKind::square;
  const std::string name = fmt::format("operands of float64 {} {}", squares, bilinear.multiplier_text);
  return shared_kernel("start_doubles", name, job,
                       [&] { return codegen::cuda_double_operands_source(squares, bilinear.multiplier); });
}

Kernel wide_operands(const PairJob& job) {
  return shared_kernel("write_v", "v of many columns", job, codegen::cuda_wide_operands_source);
}

Kernel kept_operands(const PairJob& job) {
  return shared_kernel("write_kept", "v of stored values", job, codegen::cuda_kept_operands_source);
}

Kernel rank_field_kernels(const plan::RankField& field, const PairJob& job) {
  return shared_kernel("write_factors", fmt::format("fields that weigh products {}", field.weight_text), job,
                       [&] { return codegen::cuda_rank_field_source(field.weight); });
}

Kernel pair_weight_kernels(const PairJob& job) {
  return shared_kernel("weigh_pairs", fmt::format("weights of pairs {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_pair_weights_source(job.type); });
}

Kernel stream_merge_kernels(const PairJob& job) {
  return shared_kernel("merge_values", fmt::format("blocks that stream {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_stream_merge_source(job.type); });
}

Kernel factor_kernels(const PairJob& job) {
  return shared_kernel("find_scales", "blocked factorisation", job, codegen::cuda_factor_source);
}

Kernel lu_panel_kernels(const PairJob& job) {
  return shared_kernel("panel_of_2", "panels of LU", job, codegen::cuda_lu_panel_source);
}

Kernel lu_step_kernels(const PairJob& job) {
  return shared_kernel("start_block", "steps of LU", job, codegen::cuda_lu_steps_source);
}

Kernel triangle_kernels(const PairJob& job) {
  return shared_kernel("solve_lower", "triangles", job, codegen::cuda_triangles_source);
}

Kernel cg_condition_kernel(const PairJob& job) {
  return shared_kernel("cg_go_on", "condition of conjugate gradients", job, codegen::cuda_cg_condition_source);
}

Kernel few_columns_kernels(const PairJob& job) {
  return shared_kernel("add_parts", fmt::format("few columns {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_few_columns_source(job.type); });
}

Kernel dense_kernels(const PairJob& job) {
  return shared_kernel("move_dense", fmt::format("dense matrices {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_dense_source(job.type); });
}

Kernel small_kernel(const plan::SmallTile& tile, plan::SmallVerb verb, const PairJob& job) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"small_cholesky", "Cholesky"}, {"small_lu", "LU"}, {"small_eigh", "eigenvalues"}};
  const auto& [function, name] = kNames[static_cast<std::size_t>(verb)];
  return shared_kernel(function, fmt::format("small {} {} {}", name, tile.width, name_of(job.type)), job,
                       [&] { return codegen::cuda_small_source(job.type, tile, verb); });
}

Kernel column_kernels(const PairJob& job) {
  return shared_kernel("draw_columns", fmt::format("long columns {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_columns_source(job.type); });
}

Kernel tridiagonal_kernels(const PairJob& job, int cluster, int lane_rows) {
  return shared_kernel("reduce_symmetric", fmt::format("tridiagonal {} {}", cluster, lane_rows), job,
                       [&] { return codegen::cuda_tridiagonal_source(cluster, lane_rows); });
}

Kernel cg_kernels(const PairJob& job) {
  return shared_kernel("cg_begin", fmt::format("conjugate gradients {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_cg_source(job.type); });
}

Kernel low_rank_kernels(const PairJob& job) {
  return shared_kernel("weigh_elements", fmt::format("low rank {}", name_of(job.type)), job,
                       [&] { return codegen::cuda_low_rank_source(job.type); });
}

std::vector<Kernel> kron_kernels(const std::vector<plan::KronGpuPass>& passes, const PairJob& job, bool quickly) {
  std::vector<SharedRow> rows;
  std::vector<std::size_t> row_of;  // passes may share a kernel
  for (const plan::KronGpuPass& pass : passes)
    std::visit(
        [&](const auto& kernel) {
          const std::string name = kernel.key();
          const auto known = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.name == name; });
          row_of.push_back(static_cast<std::size_t>(known - rows.begin()));
          if (known != rows.end()) return;
          rows.push_back({codegen::kron_kernel_name(kernel), name,
                          [&kernel] { return codegen::cuda_kron_source(kernel); }});
        },
        pass.kernel);
  const std::vector<Kernel> distinct = shared_kernels(rows, job, quickly);
  std::vector<Kernel> kernels;
  for (const std::size_t row : row_of) kernels.push_back(distinct[row]);
  return kernels;
}

Kernel kron_finish_kernel(Dtype out, const PairJob& job) {
  return shared_kernel("kron_finish", fmt::format("end of kron {}", name_of(out)), job,
                       [&] { return codegen::cuda_kron_finish_source(job.type, out); });
}

Kernel skipped_kernels(Dtype v, Dtype out, const PairJob& job) {
  return shared_kernel("mark_skipped",
                       fmt::format("skipped rows of {}, {} to {}", name_of(v), name_of(job.type), name_of(out)), job,
                       [&] { return codegen::cuda_skipped_source(job.type, v, out); });
}

Kernel merge_known(ReduceKind fold, Dtype out, const PairJob& job) {
  const std::string name = fmt::format("fold {} of {} with known values", static_cast<int>(fold), name_of(job.type));
  return shared_kernel("merge_known", name, job, [&] { return codegen::cuda_known_folds_source(fold, job.type, out); });
}

Kernel merge_neighbours(const PairJob& job) {
  return shared_kernel("merge_neighbours", fmt::format("neighbours of {} with known values", name_of(job.type)), job,
                       [&] { return codegen::cuda_known_neighbours_source(job.type); });
}

Kernel fill(const PairJob& job) { return shared_kernel("fill", "fill", job, codegen::cuda_fill_source); }

}  // namespace mercer::cuda
