#include "core/devices/cuda_solver.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <thread>
#include <type_traits>

#include "core/devices/library.h"
#include "core/devices/nvrtc.h"
#include "core/error.h"
#include "core/system/env.h"
#include "core/system/mutex.h"

namespace mercer {
namespace {

namespace fs = std::filesystem;

/// The libraries of one version of CUDA; what cuSOLVER links to comes before it.
struct Generation {
  int major;
  const char* solver;
  const char* blas;
  std::vector<const char*> needed;
};
const Generation kGenerations[] = {
    {13, "libcusolver.so.12", "libcublas.so.13", {"libnvJitLink.so.13", "libcublasLt.so.13", "libcusparse.so.12"}},
    {12, "libcusolver.so.11", "libcublas.so.12", {"libnvJitLink.so.12", "libcublasLt.so.12", "libcusparse.so.12"}},
};
constexpr const char* kPackage = "nvidia-cusolver";

/// The function's newest name first.
template <class Function>
void take(const Library& library, Function*& slot, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (slot == nullptr) slot = reinterpret_cast<Function*>(library.find(name));
}

bool is_complete(const CudaSolver& s) {
  const bool solver = s.create && s.set_stream && s.potrf_size && s.potrf && s.getrf_size && s.getrf && s.getrs &&
                      s.syevdx_size && s.syevdx && s.potrf_batched[0] && s.potrf_batched[1];
  const bool blas = s.blas_create && s.blas_set_stream;
  bool typed = true;
  for (int type : {0, 1})
    typed = typed && s.gemm[type] && s.trsm[type] && s.trsm_batched[type] && s.getrf_batched[type] &&
            s.getrs_batched[type];
  return solver && blas && typed;
}

CudaSolver functions_of(const Library& solver, const Library& blas) {
  CudaSolver s{};
  take(solver, s.create, {"cusolverDnCreate"});
  take(solver, s.set_stream, {"cusolverDnSetStream"});
  take(solver, s.potrf_size, {"cusolverDnXpotrf_bufferSize"});
  take(solver, s.potrf, {"cusolverDnXpotrf"});
  take(solver, s.getrf_size, {"cusolverDnXgetrf_bufferSize"});
  take(solver, s.getrf, {"cusolverDnXgetrf"});
  take(solver, s.getrs, {"cusolverDnXgetrs"});
  take(solver, s.syevdx_size, {"cusolverDnXsyevdx_bufferSize"});
  take(solver, s.syevdx, {"cusolverDnXsyevdx"});
  take(solver, s.syev_batched_size, {"cusolverDnXsyevBatched_bufferSize"});
  take(solver, s.syev_batched, {"cusolverDnXsyevBatched"});
  take(solver, s.potrf_batched[0], {"cusolverDnSpotrfBatched"});
  take(solver, s.potrf_batched[1], {"cusolverDnDpotrfBatched"});
  take(blas, s.blas_create, {"cublasCreate_v2"});
  take(blas, s.blas_set_stream, {"cublasSetStream_v2"});
  take(blas, s.gemm[0], {"cublasSgemm_v2"});
  take(blas, s.gemm[1], {"cublasDgemm_v2"});
  take(blas, s.trsm[0], {"cublasStrsm_v2"});
  take(blas, s.trsm[1], {"cublasDtrsm_v2"});
  take(blas, s.trsm_batched[0], {"cublasStrsmBatched"});
  take(blas, s.trsm_batched[1], {"cublasDtrsmBatched"});
  take(blas, s.getrf_batched[0], {"cublasSgetrfBatched"});
  take(blas, s.getrf_batched[1], {"cublasDgetrfBatched"});
  take(blas, s.getrs_batched[0], {"cublasSgetrsBatched"});
  take(blas, s.getrs_batched[1], {"cublasDgetrsBatched"});
  s.file = solver.path().empty() ? solver.name() : solver.path();
  return s;
}

struct Finder {
  Mutex mutex;
  std::atomic<const CudaSolver*> found{nullptr};
  std::size_t folders_searched = 0;  // their number then
  bool searched = false;
  std::string reason;
};

Finder& finder() {
  static constinit Lazy<Finder> kept;  // the libraries are never unloaded
  return kept.get();
}

/// The file in the first folder that has it, else its name, for the loader's own places.
std::string place_of(const char* soname, const std::vector<fs::path>& folders) {
  std::error_code error;
  for (const fs::path& folder : folders)
    if (fs::exists(folder / soname, error)) return (folder / soname).string();
  return soname;
}

const CudaSolver* load(const Generation& generation, const std::vector<fs::path>& folders, std::string& failures) {
  Library solver = Library::already_loaded({generation.solver});
  Library blas = Library::already_loaded({generation.blas});
  if (!solver) {
    // Opened by their files first, after which the loader knows them by name.
    for (const char* name : generation.needed) Library({place_of(name, folders)});
    if (!blas) blas = Library({place_of(generation.blas, folders)});
    solver = Library({place_of(generation.solver, folders)});
  } else if (!blas) {
    blas = Library({generation.blas, place_of(generation.blas, folders)});
  }
  for (const Library* library : {&solver, &blas})
    if (!*library) failures += library->why_not();
  if (!solver || !blas) return nullptr;
  CudaSolver functions = functions_of(solver, blas);
  if (is_complete(functions)) return new CudaSolver(std::move(functions));
  failures += fmt::format("{}: lacks functions of CUDA 12\n", functions.file);
  return nullptr;
}

const CudaSolver* load_named(const std::string& name, std::string& failures) {
  const fs::path file(name);
  for (const Generation& generation : kGenerations) {
    const std::string blas_name = place_of(generation.blas, {file.parent_path()});
    const Library solver({name}), blas({blas_name});
    if (!solver) failures = solver.why_not();
    if (!solver || !blas) continue;
    CudaSolver functions = functions_of(solver, blas);
    if (is_complete(functions)) return new CudaSolver(std::move(functions));
  }
  if (failures.empty()) failures = "it lacks functions of CUDA 12, or has no cuBLAS next to it";
  return nullptr;
}

const CudaSolver* search(Finder& state, const std::vector<fs::path>& folders) {
  std::string failures;
  if (const auto named = env_text("MERCER_CUSOLVER")) {
    const CudaSolver* found = load_named(*named, failures);
    state.reason = fmt::format("MERCER_CUSOLVER names no cuSOLVER of CUDA 12 or 13: {}", failures);
    return found;
  }
  const int driver = cuda_driver_version() / 1000;
  for (const Generation& generation : kGenerations) {
    if (driver != 0 && driver < generation.major) continue;
    if (const CudaSolver* found = load(generation, folders, failures)) return found;
  }
  std::vector<std::string> places;
  for (const fs::path& folder : folders) places.push_back(folder.string());
  state.reason = fmt::format("looked in {} and the loader's places. {}", fmt::join(places, ", "), failures);
  return nullptr;
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

const CudaSolver* cuda_solver() {
  Finder& state = finder();
  if (const CudaSolver* known = state.found.load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(state.mutex);
  const std::vector<fs::path> folders = library_folders();
  if (state.found == nullptr && (!state.searched || state.folders_searched != folders.size())) {
    state.searched = true;
    state.folders_searched = folders.size();
    state.found = search(state, folders);
  }
  return state.found;
}

const CudaSolver& need_cuda_solver(const char* op) {
  if (const CudaSolver* found = cuda_solver()) return *found;
  const std::lock_guard lock(finder().mutex);
  fail(ErrorKind::unsupported, "{}: needs cuSOLVER and cuBLAS on CUDA; pip install {} brings them. Received none: {}",
       op, kPackage, trimmed(finder().reason));
}

std::string describe_cuda_solver() {
  if (const CudaSolver* found = cuda_solver()) return fmt::format("cuSOLVER: {}\n", found->file);
  const std::lock_guard lock(finder().mutex);
  return fmt::format("cuSOLVER: none; {}. pip install {} brings it.\n", trimmed(finder().reason), kPackage);
}

void check_solver(int status, const char* op, const char* function) {
  if (status != 0) fail(ErrorKind::device, "{}: {} must succeed. Received status {}.", op, function, status);
}

struct SolverHandles::Kept {
  int device = 0;
  std::thread::id thread = {};
  CuStream stream = nullptr;
  CuSolverHandle solver = nullptr;
  CuBlasHandle blas = nullptr;
  std::vector<std::vector<char>> host_memory;
};

namespace {

/// More handles than this mean that streams come and go; then old handles serve new streams.
constexpr std::size_t kMostIdle = 32;

struct IdleHandles {
  Mutex mutex;
  std::list<std::unique_ptr<SolverHandles::Kept>> list;  // the most recently used first
};

IdleHandles& idle_handles() {
  static constinit Lazy<IdleHandles> kept;  // handles are never destroyed: that synchronises the device
  return kept.get();
}

/// Whose stream it is: one value stands for each thread's own default stream.
std::thread::id thread_of(CuStream stream) {
  constexpr std::uintptr_t kOfThread = 2;  // CU_STREAM_PER_THREAD
  return reinterpret_cast<std::uintptr_t>(stream) == kOfThread ? std::this_thread::get_id() : std::thread::id();
}

/// One of the same stream, or, once there are many, the oldest of the device, with nothing left to do.
std::unique_ptr<SolverHandles::Kept> find_idle(int device, CuStream stream, bool& is_foreign) {
  IdleHandles& idle = idle_handles();
  const std::lock_guard lock(idle.mutex);
  const auto taken = [&](auto place) {
    std::unique_ptr<SolverHandles::Kept> handles = std::move(*place);
    idle.list.erase(place);
    return handles;
  };
  for (auto at = idle.list.begin(); at != idle.list.end(); ++at)
    if ((*at)->device == device && (*at)->stream == stream && (*at)->thread == thread_of(stream)) return taken(at);
  if (idle.list.size() < kMostIdle) return nullptr;
  const auto oldest = std::find_if(idle.list.rbegin(), idle.list.rend(),
                                   [&](const auto& handles) { return handles->device == device; });
  if (oldest == idle.list.rend()) return nullptr;
  is_foreign = true;
  return taken(std::prev(oldest.base()));
}

}  // namespace

SolverHandles::SolverHandles(int device, CuStream stream, const char* op) {
  const CudaSolver& library = need_cuda_solver(op);
  bool is_foreign = false;
  kept_ = find_idle(device, stream, is_foreign);
  if (is_foreign) check_cuda(cuda_driver()->context_synchronize(), op);
  if (kept_ == nullptr) {
    auto made = std::make_unique<Kept>();
    made->device = device;
    check_solver(library.create(&made->solver), op, "cusolverDnCreate");
    check_solver(library.blas_create(&made->blas), op, "cublasCreate");
    kept_ = std::move(made);
    is_foreign = true;
  }
  if (!is_foreign) return;
  kept_->stream = stream;
  kept_->thread = thread_of(stream);
  check_solver(library.set_stream(kept_->solver, stream), op, "cusolverDnSetStream");
  check_solver(library.blas_set_stream(kept_->blas, stream), op, "cublasSetStream");
}

SolverHandles::~SolverHandles() {
  if (kept_ == nullptr) return;
  IdleHandles& idle = idle_handles();
  const std::lock_guard lock(idle.mutex);
  idle.list.push_front(std::move(kept_));
}

CuSolverHandle SolverHandles::solver() const { return kept_->solver; }
CuBlasHandle SolverHandles::blas() const { return kept_->blas; }

void* SolverHandles::host_memory(std::size_t bytes) const {
  if (bytes == 0) return nullptr;
  auto& blocks = kept_->host_memory;
  // What grew too small stays: a routine may not be done with it.
  if (blocks.empty() || blocks.back().size() < bytes) blocks.emplace_back(std::max(bytes, std::size_t{1} << 16));
  return blocks.back().data();
}

}  // namespace mercer
