// The module mercer._mercer: errors, expressions, the zoo, the verbs, the machine.
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include "arrays.h"
#include "calls.h"
#include "core/devices/lapack.h"
#include "core/devices/nvrtc.h"
#include "core/dtypes.h"
#include "core/system/env.h"
#include "core/system/file_cache.h"
#include "gil.h"
#include "jit/cuda_compile.h"
#include "jit/quick_compile.h"
#include "mercer/device.h"
#include "mercer/error.h"
#include "mercer/explain.h"
#include "ops/context.h"
#include "settings.h"
#include "symbols.h"
#include "texts.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

const char* python_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::compile: return "CompileError";
    case ErrorKind::device: return "DeviceError";
    default: return "LinAlgError";
  }
}

void set_error(nb::handle type, const char* message) { PyErr_SetObject(type.ptr(), to_text(message).ptr()); }

void set_error(const char* class_in_errors, const char* message) {
  set_error(nb::module_::import_("mercer.errors").attr(class_in_errors), message);
}

/// A null pointer is CPython's unwinding of a thread that it ends, in work that nothing else guards.
void translate(const std::exception_ptr& thrown, void*) {
  if (!thrown) sleep_until_the_end();
  try {
    std::rethrow_exception(thrown);
  } catch (const DtypeError& error) {
    set_error("DtypeError", error.what());
  } catch (const Error& error) {
    switch (error.kind()) {
      case ErrorKind::invalid_argument: set_error(PyExc_ValueError, error.what()); break;
      case ErrorKind::unsupported: set_error(PyExc_NotImplementedError, error.what()); break;
      default: set_error(python_name(error.kind()), error.what());
    }
  }
}

FileCache& disk_cache() {
  static FileCache cache = FileCache::from_environment();
  return cache;
}

nb::list environment_rows() {
  nb::list rows;
  for (const EnvRow& row : env_table()) rows.append(nb::make_tuple(row.name, row.default_text, row.doc));
  return rows;
}

void bind_cache(nb::module_& module) {
  module.def(
      "cache_path", [] { return to_path(disk_cache().directory().native()); },
      "The folder of compiled kernels (MERCER_CACHE_DIR).");
  module.def(
      "cache_stats",
      [] {
        const FileCache::Stats stats = disk_cache().stats();
        return nb::make_tuple(stats.files, stats.bytes);
      },
      nb::sig("def cache_stats() -> tuple[int, int]"), "Number of files in the cache and their bytes.");
  module.def(
      "cache_files",
      [] {
        nb::list rows;
        for (const FileCache::File& file : disk_cache().files())
          rows.append(nb::make_tuple(nb::bytes(file.key.data(), file.key.size()),
                                     nb::bytes(file.first_line.data(), file.first_line.size()), file.bytes,
                                     file.age_seconds));
        return rows;
      },
      nb::sig("def cache_files() -> list[tuple[bytes, bytes, int, int]]"),
      "The files of the cache, the youngest first: (key, first line, bytes, age in seconds).");
  module.def(
      "cache_clear", [] { disk_cache().clear(); }, "Removes all compiled kernels from the disk.");
}

void bind_floors(nb::module_& module) {
  module.def(
      "clock_ghz",
      [] {
        const Clock clock = measure_clock();
        return nb::make_tuple(clock.gigahertz, clock.by_rotations, clock.agrees());
      },
      nb::sig("def clock_ghz() -> tuple[float, float, bool]"),
      "The clock of this core in GHz, measured by a chain of multiplications, and by one of rotations; whether they "
      "agree.");
  module.def(
      "cpu_costs",
      [] {
        const CpuCosts costs = cpu_costs();
        return nb::make_tuple(costs.name, costs.known, costs.text);
      },
      nb::sig("def cpu_costs() -> tuple[str, bool, str]"),
      "Whose costs plans and floors of CPUs follow: a name, whether they are this processor's, a line for people.");
  module.def(
      "floor_rate",
      [](const std::string& formula, nb::handle shape, const std::string& dtype, const std::string& target,
         double gigahertz) {
        return floor_rate(Formula(formula), to_shape(shape, "floor_rate"), to_dtype(dtype, "floor_rate"),
                          target, gigahertz);
      },
      "formula"_a, "shape"_a, "dtype"_a, "target"_a, "gigahertz"_a,
      nb::sig("def floor_rate(formula: str, shape: tuple[int, int, int], dtype: str, target: str, gigahertz: float) -> "
              "float"),
      "Elements (m, n, k) a second, in 1e9, that one core can reach by the formula's instruction mix.");
  module.def(
      "gpu_floor",
      [](const std::string& formula, nb::handle shape, const std::string& dtype, const std::string& target,
         const std::string& verb, std::int64_t items, std::int64_t columns, bool symmetric, bool mixed_pipes,
         int products) {
        const GpuCall call{.verb = verb, .items = items, .columns = columns, .symmetric = symmetric,
                           .mixed_pipes = mixed_pipes, .products = products};
        const GpuFloor floor =
            gpu_floor(Formula(formula), to_shape(shape, "gpu_floor"), to_dtype(dtype, "gpu_floor"), target, call);
        nb::dict times;
        times["ms"] = floor.ms;
        times["issue"] = floor.issue;
        times["fma"] = floor.fma;
        times["alu"] = floor.alu;
        times["unit"] = floor.unit;
        times["tensor"] = floor.tensor;
        times["memory"] = floor.memory;
        return times;
      },
      "formula"_a, "shape"_a, "dtype"_a, "target"_a, "verb"_a = "pairwise", "items"_a = 1, "columns"_a = 1,
      "symmetric"_a = false, "mixed_pipes"_a = true, "products"_a = 3,
      nb::sig("def gpu_floor(formula: str, shape: tuple[int, int, int], dtype: str, target: str, verb: str = "
              "'pairwise', items: int = 1, columns: int = 1, symmetric: bool = False, mixed_pipes: bool = True, "
              "products: int = 3) -> dict[str, float]"),
      "Milliseconds that a call takes at least on a GPU (\"cuda:0\", \"sm_90\"): of each unit, and of the busiest, "
      "\"ms\".");
}

/// What `ask` says under the options of the caller's thread or task.
template <auto ask>
auto in_force() {
  const CallSettings settings;
  return ask();
}

}  // namespace

void bind_machine(nb::module_& module) {
  bind_settings(module);
  module.def("describe_machine", in_force<[] { return to_text(describe_machine()); }>,
             "What this machine offers and what Mercer chose, as text.");
  module.def(
      "get_num_threads", in_force<[] {
        follow_worker();
        return Context::shared().threads();
      }>,
      "Threads that a call may use here.");
  module.def(
      "limit_num_threads", [](int most) { Context::shared().state().pool.limit_threads(most); }, "most"_a,
      "Most threads of a call where neither set_num_threads nor MERCER_THREADS asks for a number; 0 lifts the limit.");
  module.def("forget_worker", forget_worker, "For a child that was forked: it may be a worker of its own.");
  module.def(
      "set_num_threads", [](int count) { Context::shared().set_threads(count); }, "count"_a,
      "Sets how many threads a call of this process may use, where mercer.options says nothing else: 1 to 4096, or 0 "
      "for the machine's own number, at most OMP_NUM_THREADS; ValueError otherwise. "
      "Results do not depend on it, but for the last bits of mercer.linalg on the CPU.");
  module.def(
      "get_target", in_force<[] { return std::string(name_of(Context::shared().target())); }>,
      "The instruction set in use here: \"x86_avx512\", \"x86_avx2\" or \"interpreter\".");
  module.def(
      "set_target", [](const std::string& name) { Context::shared().set_target(target_from_text(name)); }, "name"_a,
      "Chooses the instruction set of this process: \"x86_avx512\", \"x86_avx2\", \"interpreter\", or \"auto\" for the "
      "best of this machine. ValueError for another name.");
  module.def(
      "get_precision", in_force<[] { return std::string(name_of(Context::shared().precision())); }>,
      "How products run here on tensor cores: \"fp32\", \"direct\", \"tf32\" or \"bf16\".");
  module.def(
      "set_precision", [](const std::string& name) { Context::shared().set_precision(precision_from_text(name)); },
      "name"_a,
      "Chooses how products of this process run on tensor cores: \"fp32\" (or \"fp64\", the same), \"direct\", "
      "\"tf32\" or \"bf16\". ValueError for another name.");
  module.def(
      "plan_count", [] { return Context::shared().plan_count(); }, "Compiled plans held now.");
  module.def(
      "clear_plans", [] { Context::shared().clear_plans(); }, "Forgets all compiled plans.");
  module.def(
      "point_types",
      [] {
        nb::dict types;
        for (const DtypeRow& row : kDtypes)
          if (row.of_points) types[row.name] = name_of(row.computing);
        return types;
      },
      nb::sig("def point_types() -> dict[str, str]"),
      "The dtypes that points may have, each with the one in which values are computed.");
  bind_floors(module);
  module.def("env_rows", environment_rows, nb::sig("def env_rows() -> list[tuple[str, str, str]]"),
             "The environment variables that Mercer reads: (name, default, meaning).");
  module.def(
      "add_library_folder", [](nb::handle folder) { add_library_folder(bytes_of_path(folder)); }, "folder"_a,
      nb::sig("def add_library_folder(folder: str) -> None"), "Names a folder in which NVIDIA's libraries may lie.");
  module.def(
      "add_lapack_file", [](nb::handle file, bool shared) { add_lapack_file(bytes_of_path(file), shared); }, "file"_a,
      "shared"_a, nb::sig("def add_lapack_file(file: str, shared: bool) -> None"),
      "Names a file that may have LAPACK, a copy that others use if shared.");
  module.def(
      "set_cuda_store", [](nb::handle folder) { jit::set_cuda_store(bytes_of_path(folder)); }, "folder"_a,
      nb::sig("def set_cuda_store(folder: str) -> None"),
      "Names the folder of GPU kernels that came with the package.");
  module.def(
      "finish_compiling",
      [] {
        const Unlocked unlocked;
        jit::finish_compiling();
      },
      "Waits for all GPU kernels that are still compiled after first calls.");
  bind_cache(module);
}

NB_MODULE(_mercer, module) {
  module.doc() = "The compiled part of mercer; use the package.";
  module.attr("__version__") = MERCER_VERSION;
  nb::set_leak_warnings(false);  // an expression that some global still holds at exit is no fault
  nb::register_exception_translator(translate);
  bind_expressions(module);
  bind_derivatives(module);
  bind_backward_plan(module);
  bind_zoo(module);
  bind_verbs(module);
  bind_sparse(module);
  bind_compile(module);
  bind_workspace(module);
  bind_tune(module);
  bind_jax(module);
  bind_linalg(module);
  bind_kernel_operator(module);
  bind_eigh_top(module);
  bind_preconditioners(module);
  bind_cg(module);
  bind_kron(module);
  bind_machine(module);
  bind_messages(module);
}

}  // namespace mercer::python
