#include "core/devices/lapack.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <type_traits>
#include <vector>

#include "core/devices/library.h"
#include "core/error.h"
#include "core/system/env.h"
#include "core/system/log.h"
#include "core/system/mutex.h"
#include "core/system/parallel.h"

namespace mercer {

struct Lapack::Functions {
  Library library;
  std::string file;
  bool wide = false;  // integers of 64 bits
  void* routines[2][kRoutines] = {};
  void (*set_threads)(int count) = nullptr;  // null: neither OpenBLAS nor MKL, its threads are its own
  int (*get_threads)() = nullptr;
  char* (*configuration)() = nullptr;
};

namespace {

namespace fs = std::filesystem;
using Functions = Lapack::Functions;
/// Fortran hands over the lengths of texts after all else.
using Length = std::size_t;

constexpr const char* kNames[kRoutines] = {"potrf", "getrf", "gemm", "syrk", "trsm", "trsv", "syevd", "syevr"};
constexpr auto kPeriod = std::chrono::milliseconds(50);
constexpr const char* kPackage = "'mercer[linalg]'";
/// The one with threads of its own first: OpenMP's do not survive fork, and its runtime may meet another copy of it.
const std::vector<std::string> kSonames = {"libopenblasp.so.0", "libopenblas64.so.0", "libopenblas.so.0",
                                           "libopenblas.so"};
/// Looked for after all files: MKL, and whatever the system has under LAPACK's own name, which may be slow.
const std::vector<std::string> kLastSonames = {"libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so", "liblapack.so.3"};

struct Spelling {
  const char *prefix, *suffix, *own_suffix;  // own: of OpenBLAS's functions that are not LAPACK's
};
constexpr Spelling kSpellings[] = {{"", "_", ""}, {"scipy_", "_64_", "64_"}, {"scipy_", "_", ""}, {"", "_64_", "64_"}};

/// Whether integers have 64 bits, which names do not always tell: MKL decides it at run time. A number of elements that
/// is 3 in 32 bits and negative in 64 has a largest element in the former alone.
bool has_wide_integers(const Library& library, const Spelling& spelling) {
  using Largest = int(const std::int64_t* n, const float* x, const std::int64_t* step);
  const auto largest = reinterpret_cast<Largest*>(
      library.find(fmt::format("{}isamax{}", spelling.prefix, spelling.suffix).c_str()));
  if (largest == nullptr) return spelling.own_suffix[0] != '\0';
  constexpr std::int64_t kThreeOrNegative = -(std::int64_t{1} << 32) + 3, kStep = 1;
  constexpr float kValues[] = {1, 2, 1};
  return largest(&kThreeOrNegative, kValues, &kStep) == 0;
}

/// False when the library spells its names otherwise or lacks one.
bool read_functions(const Library& library, const Spelling& spelling, Functions& f) {
  for (int type = 0; type < 2; ++type) {
    for (int routine = 0; routine < kRoutines; ++routine) {
      const auto symbol =
          fmt::format("{}{}{}{}", spelling.prefix, type == 0 ? 's' : 'd', kNames[routine], spelling.suffix);
      f.routines[type][routine] = library.find(symbol.c_str());
      if (f.routines[type][routine] == nullptr) return false;
    }
  }
  const auto own = [&](const char* name) {
    return library.find(fmt::format("{}openblas_{}{}", spelling.prefix, name, spelling.own_suffix).c_str());
  };
  const auto either = [&](const char* name, const char* of_mkl) {
    void* const found = own(name);
    return found != nullptr ? found : library.find(of_mkl);
  };
  f.set_threads = reinterpret_cast<void (*)(int)>(either("set_num_threads", "MKL_Set_Num_Threads"));
  f.get_threads = reinterpret_cast<int (*)()>(either("get_num_threads", "MKL_Get_Max_Threads"));
  f.configuration = reinterpret_cast<char* (*)()>(own("get_config"));
  f.wide = has_wide_integers(library, spelling);
  return true;
}

struct Finder {
  Mutex mutex;
  std::vector<fs::path> files, shared_files;
  std::atomic<const Lapack*> found{nullptr};
  bool searched = false;
  std::string reason;
};

Finder& finder() {
  static constinit Lazy<Finder> kept;  // the library is never unloaded, so its owner is never destroyed
  return kept.get();
}

std::vector<std::string> candidates(const Finder& state) {
  std::vector<std::string> names;
  for (const fs::path& file : state.files) names.push_back(file.string());
  names.insert(names.end(), kSonames.begin(), kSonames.end());
  for (const fs::path& file : state.shared_files) names.push_back(file.string());
  names.insert(names.end(), kLastSonames.begin(), kLastSonames.end());
  return names;
}

const Lapack* load(const std::string& name, std::string& failures) {
  Library library({name});
  if (!library) {
    failures += library.why_not();
    return nullptr;
  }
  for (const Spelling& spelling : kSpellings) {
    Functions f;
    if (!read_functions(library, spelling, f)) continue;
    f.file = library.path().empty() ? library.name() : library.path();
    f.library = std::move(library);
    return new Lapack(*new Functions(std::move(f)));
  }
  failures += fmt::format("{}: has no LAPACK in any known spelling\n", name);
  return nullptr;
}

void warn_of_openmp(const Lapack& found) {
  if (found.configuration().find("USE_OPENMP") == std::string::npos) return;
  log_once(LogLevel::warning,
           "{} runs on OpenMP, which sets its own threads; MERCER_LAPACK may name one that does not, such as that of "
           "NumPy's wheel (numpy.libs)",
           found.file());
}

const Lapack* search(Finder& state) {
  state.searched = true;
  const auto named = env_text("MERCER_LAPACK");
  const std::vector<std::string> names = named ? std::vector{*named} : candidates(state);
  std::string failures;
  for (const std::string& name : names) {
    if (const Lapack* found = load(name, failures)) {
      warn_of_openmp(*found);
      return found;
    }
  }
  while (!failures.empty() && failures.back() == '\n') failures.pop_back();
  state.reason = named ? fmt::format("MERCER_LAPACK names no LAPACK: {}", failures)
                       : fmt::format("looked for {}. {}", fmt::join(names, ", "), failures);
  return nullptr;
}

/// Which number of threads is in force, and for how many calls. A forked child finds another pid in it and makes its
/// own: the parent's lock may be held for ever.
struct Gate {
  const pid_t pid = ::getpid();
  std::mutex mutex;
  std::condition_variable idle;
  int threads = 0, before = 0, calls = 0;
};

Gate& gate() {
  static constinit std::atomic<Gate*> current{nullptr};
  Gate* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->pid != ::getpid()) {
    Gate* fresh = new Gate;
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *found;
}

template <class T>
void* routine_of(const Functions& f, Routine routine) {
  return f.routines[std::is_same_v<T, double>][static_cast<int>(routine)];
}

/// Calls body with an integer of the library's width.
template <class Body>
auto with_integer(const Functions& f, const Body& body) {
  return f.wide ? body(std::int64_t{}) : body(std::int32_t{});
}

/// Widens integers of the library's to 64 bits in place, counted from 0 instead of 1.
template <class Int>
void widen_pivots(std::int64_t* pivots, std::int64_t count) {
  const char* bytes = reinterpret_cast<const char*>(pivots);
  for (std::int64_t i = count; i-- > 0;) {
    Int value;
    std::memcpy(&value, bytes + i * static_cast<std::int64_t>(sizeof(Int)), sizeof(Int));
    pivots[i] = static_cast<std::int64_t>(value) - 1;
  }
}

char triangle(bool lower) { return lower ? 'L' : 'U'; }

}  // namespace

void add_lapack_file(fs::path file, bool shared) {
  Finder& state = finder();
  const std::lock_guard lock(state.mutex);
  auto& files = shared ? state.shared_files : state.files;
  if (std::find(files.begin(), files.end(), file) != files.end()) return;
  files.push_back(std::move(file));
  state.searched = false;
}

const Lapack* lapack() {
  Finder& state = finder();
  if (const Lapack* known = state.found.load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(state.mutex);
  if (!state.searched && state.found == nullptr) state.found = search(state);
  return state.found;
}

const Lapack& need_lapack(const char* op) {
  if (const Lapack* found = lapack()) return *found;
  const std::lock_guard lock(finder().mutex);
  fail(ErrorKind::unsupported,
       "{}: needs LAPACK on the CPU, which NumPy's wheels have; pip install {} brings it, or libopenblas0-pthread of "
       "Debian. Received none: {}",
       op, kPackage, finder().reason);
}

std::string describe_lapack() {
  if (const Lapack* found = lapack()) {
    const std::string says = found->configuration();
    return fmt::format("LAPACK: {} ({})\n", says.empty() ? "of unknown make" : says, found->file());
  }
  const std::lock_guard lock(finder().mutex);
  return fmt::format("LAPACK: none; {}. pip install {} brings it.\n", finder().reason, kPackage);
}

Lapack::Lapack(const Functions& functions) : functions_(&functions) {}

const std::string& Lapack::file() const { return functions_->file; }

std::string Lapack::configuration() const {
  std::string says = functions_->configuration != nullptr ? functions_->configuration() : "";
  while (!says.empty() && says.back() == ' ') says.pop_back();
  return says;
}

std::int64_t Lapack::largest_size() const {
  return functions_->wide ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int32_t>::max();
}

std::int64_t Lapack::largest_syevd() const {
  return functions_->wide ? std::int64_t{1} << 30 : 32766;  // 1 + 6n + 2n^2 < 2^63, 2^31
}

Lapack Lapack::in_calls_of(double operations) const {
  Lapack library = *this;
  library.operations_ = operations;
  return library;
}

double Lapack::most_operations() const {
  return operations_ * (functions_->get_threads != nullptr ? std::max(functions_->get_threads(), 1) : 1);
}

template <class T>
std::int64_t Lapack::potrf_at_once(bool lower, std::int64_t n, T* a, std::int64_t stride) const {
  return with_integer(*functions_, [&](auto integer) -> std::int64_t {
    using Int = decltype(integer);
    using Call = void(const char*, const Int*, T*, const Int*, Int*, Length);
    const char uplo = triangle(lower);
    const Int order = static_cast<Int>(n), lda = static_cast<Int>(stride);
    Int info = 0;
    reinterpret_cast<Call*>(routine_of<T>(*functions_, Routine::potrf))(&uplo, &order, a, &lda, &info, 1);
    return info;
  });
}

template <class T>
std::int64_t Lapack::getrf_at_once(std::int64_t m, std::int64_t n, T* a, std::int64_t stride,
                                   std::int64_t* pivots) const {
  return with_integer(*functions_, [&](auto integer) -> std::int64_t {
    using Int = decltype(integer);
    using Call = void(const Int*, const Int*, T*, const Int*, void*, Int*);
    const Int rows = static_cast<Int>(m), cols = static_cast<Int>(n), lda = static_cast<Int>(stride);
    Int info = 0;
    reinterpret_cast<Call*>(routine_of<T>(*functions_, Routine::getrf))(&rows, &cols, a, &lda, pivots, &info);
    widen_pivots<Int>(pivots, std::min(m, n));
    return info;
  });
}

template <class T>
void Lapack::gemm_at_once(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k,
                          T alpha, const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, T beta, T* c,
                          std::int64_t c_stride) const {
  with_integer(*functions_, [&](auto integer) {
    using Int = decltype(integer);
    using Call = void(const char*, const char*, const Int*, const Int*, const Int*, const T*, const T*, const Int*,
                      const T*, const Int*, const T*, T*, const Int*, Length, Length);
    const char op_a = a_transposed ? 'T' : 'N', op_b = b_transposed ? 'T' : 'N';
    const Int rows = static_cast<Int>(m), cols = static_cast<Int>(n), sum = static_cast<Int>(k);
    const Int lda = static_cast<Int>(a_stride), ldb = static_cast<Int>(b_stride), ldc = static_cast<Int>(c_stride);
    reinterpret_cast<Call*>(routine_of<T>(*functions_, Routine::gemm))(&op_a, &op_b, &rows, &cols, &sum, &alpha, a,
                                                                       &lda, b, &ldb, &beta, c, &ldc, 1, 1);
  });
}

template <class T>
void Lapack::syrk_at_once(bool lower, bool transposed, std::int64_t n, std::int64_t k, T alpha, const T* a,
                          std::int64_t a_stride, T beta, T* c, std::int64_t c_stride) const {
  with_integer(*functions_, [&](auto integer) {
    using Int = decltype(integer);
    using Call = void(const char*, const char*, const Int*, const Int*, const T*, const T*, const Int*, const T*, T*,
                      const Int*, Length, Length);
    const char uplo = triangle(lower), op = transposed ? 'T' : 'N';
    const Int order = static_cast<Int>(n), sum = static_cast<Int>(k);
    const Int lda = static_cast<Int>(a_stride), ldc = static_cast<Int>(c_stride);
    reinterpret_cast<Call*>(routine_of<T>(*functions_, Routine::syrk))(&uplo, &op, &order, &sum, &alpha, a, &lda,
                                                                       &beta, c, &ldc, 1, 1);
  });
}

template <class T>
void Lapack::trsm_at_once(bool right, bool lower, bool transposed, bool unit, std::int64_t rows, std::int64_t cols,
                          const T* t, std::int64_t stride, T* b, std::int64_t b_stride) const {
  with_integer(*functions_, [&](auto integer) {
    using Int = decltype(integer);
    using Call = void(const char*, const char*, const char*, const char*, const Int*, const Int*, const T*, const T*,
                      const Int*, T*, const Int*, Length, Length, Length, Length);
    const char side = right ? 'R' : 'L', uplo = triangle(lower), op = transposed ? 'T' : 'N', diag = unit ? 'U' : 'N';
    const Int m = static_cast<Int>(rows), n = static_cast<Int>(cols);
    const Int lda = static_cast<Int>(stride), ldb = static_cast<Int>(b_stride);
    const T one = 1;
    reinterpret_cast<Call*>(routine_of<T>(*functions_, Routine::trsm))(&side, &uplo, &op, &diag, &m, &n, &one, t, &lda,
                                                                       b, &ldb, 1, 1, 1, 1);
  });
}

template <class T>
void Lapack::trsv(bool lower, bool transposed, bool unit, std::int64_t n, const T* t, std::int64_t stride, T* b,
                  std::int64_t step) const {
  with_integer(*functions_, [&](auto integer) {
    using Int = decltype(integer);
    using Call = void(const char*, const char*, const char*, const Int*, const T*, const Int*, T*, const Int*, Length,
                      Length, Length);
    const char uplo = triangle(lower), op = transposed ? 'T' : 'N', diag = unit ? 'U' : 'N';
    const Int order = static_cast<Int>(n), lda = static_cast<Int>(stride), incx = static_cast<Int>(step);
    T* const lowest = step < 0 ? b + (n - 1) * step : b;  // where BLAS counts from
    reinterpret_cast<Call*>(routine_of<T>(*functions_, Routine::trsv))(&uplo, &op, &diag, &order, t, &lda, lowest,
                                                                       &incx, 1, 1, 1);
  });
}

template <class T>
Lapack::Scratch Lapack::syevd_scratch(bool vectors, std::int64_t n) const {
  T elements = 0;
  std::int64_t integers = 0;
  // The smallest sizes by the routine's own document: what it would like best it says in a T, which may round.
  syevd<T>(vectors, true, n, nullptr, std::max<std::int64_t>(n, 1), nullptr, &elements, &integers, {-1, -1});
  const std::int64_t least = vectors ? 1 + 6 * n + 2 * n * n : 2 * n + 1;
  const auto liked = static_cast<std::int64_t>(static_cast<double>(elements) * 1.0000002);
  return {std::max(least, std::min(liked, largest_size())), vectors ? 3 + 5 * n : 1};
}

template <class T>
std::int64_t Lapack::syevd(bool vectors, bool lower, std::int64_t n, T* a, std::int64_t stride, T* w, T* elements,
                           std::int64_t* integers, Scratch size) const {
  return with_integer(*functions_, [&](auto integer) -> std::int64_t {
    using Int = decltype(integer);
    using Call = void(const char*, const char*, const Int*, T*, const Int*, T*, T*, const Int*, void*, const Int*, Int*,
                      Length, Length);
    const char job = vectors ? 'V' : 'N', uplo = triangle(lower);
    const Int order = static_cast<Int>(n), lda = static_cast<Int>(stride);
    const Int lwork = static_cast<Int>(size.elements), liwork = static_cast<Int>(size.integers);
    Int info = 0;
    reinterpret_cast<Call*>(routine_of<T>(*functions_, Routine::syevd))(&job, &uplo, &order, a, &lda, w, elements,
                                                                        &lwork, integers, &liwork, &info, 1, 1);
    return info;
  });
}

template <class T>
Lapack::Scratch Lapack::syevr_scratch(bool vectors, std::int64_t n) const {
  T elements = 0;
  std::int64_t integers = 0;
  syevr<T>(vectors, true, n, nullptr, std::max<std::int64_t>(n, 1), 0, 0, nullptr, nullptr,
           std::max<std::int64_t>(n, 1), &elements, &integers, {-1, -1});
  const auto liked = static_cast<std::int64_t>(static_cast<double>(elements) * 1.0000002);
  return {std::max(26 * n, std::min(liked, largest_size())), 12 * n};  // 10 n, and 2 n for its support of vectors
}

template <class T>
std::int64_t Lapack::syevr(bool vectors, bool lower, std::int64_t n, T* a, std::int64_t stride, std::int64_t first,
                           std::int64_t last, T* w, T* v, std::int64_t v_stride, T* elements, std::int64_t* integers,
                           Scratch size) const {
  return with_integer(*functions_, [&](auto integer) -> std::int64_t {
    using Int = decltype(integer);
    using Call = void(const char*, const char*, const char*, const Int*, T*, const Int*, const T*, const T*, const Int*,
                      const Int*, const T*, Int*, T*, T*, const Int*, void*, T*, const Int*, void*, const Int*, Int*,
                      Length, Length, Length);
    const char job = vectors ? 'V' : 'N', range = 'I', uplo = triangle(lower);
    const Int order = static_cast<Int>(n), lda = static_cast<Int>(stride), ldz = static_cast<Int>(v_stride);
    const Int il = static_cast<Int>(first + 1), iu = static_cast<Int>(last + 1);
    const Int lwork = static_cast<Int>(size.elements);
    const Int liwork = static_cast<Int>(size.integers < 0 ? -1 : 10 * n);
    const T unused = 0, tolerance = 0;
    Int found = 0, info = 0;
    std::int64_t* const support = integers + (size.integers < 0 ? 0 : 10 * n);
    reinterpret_cast<Call*>(routine_of<T>(*functions_, Routine::syevr))(
        &job, &range, &uplo, &order, a, &lda, &unused, &unused, &il, &iu, &tolerance, &found, w, v, &ldz, support,
        elements, &lwork, integers, &liwork, &info, 1, 1, 1);
    return info;
  });
}

// NOLINTBEGIN: one line a type and routine.
#define MERCER_INSTANTIATE(T)                                                                                         \
  template std::int64_t Lapack::potrf_at_once(bool, std::int64_t, T*, std::int64_t) const;                            \
  template std::int64_t Lapack::getrf_at_once(std::int64_t, std::int64_t, T*, std::int64_t, std::int64_t*) const;     \
  template void Lapack::gemm_at_once(bool, bool, std::int64_t, std::int64_t, std::int64_t, T, const T*, std::int64_t, \
                                     const T*, std::int64_t, T, T*, std::int64_t) const;                              \
  template void Lapack::syrk_at_once(bool, bool, std::int64_t, std::int64_t, T, const T*, std::int64_t, T, T*,        \
                                     std::int64_t) const;                                                             \
  template void Lapack::trsm_at_once(bool, bool, bool, bool, std::int64_t, std::int64_t, const T*, std::int64_t, T*,  \
                                     std::int64_t) const;                                                             \
  template void Lapack::trsv(bool, bool, bool, std::int64_t, const T*, std::int64_t, T*, std::int64_t) const;         \
  template Lapack::Scratch Lapack::syevd_scratch<T>(bool, std::int64_t) const;                                        \
  template std::int64_t Lapack::syevd(bool, bool, std::int64_t, T*, std::int64_t, T*, T*, std::int64_t*, Scratch)     \
      const;                                                                                                          \
  template Lapack::Scratch Lapack::syevr_scratch<T>(bool, std::int64_t) const;                                        \
  template std::int64_t Lapack::syevr(bool, bool, std::int64_t, T*, std::int64_t, std::int64_t, std::int64_t, T*, T*, \
                                      std::int64_t, T*, std::int64_t*, Scratch) const;
MERCER_INSTANTIATE(float)
MERCER_INSTANTIATE(double)
#undef MERCER_INSTANTIATE
// NOLINTEND

LapackThreads::LapackThreads(const Lapack& lapack, int threads) : lapack_(lapack) {
  Gate& state = gate();
  std::unique_lock lock(state.mutex);
  const auto is_free = [&] { return state.calls == 0 || state.threads == threads; };
  while (!state.idle.wait_for(lock, kPeriod, is_free)) {
    lock.unlock();
    stop_if_cancelled();
    lock.lock();
  }
  const Functions& f = *lapack_.functions_;
  if (state.calls++ > 0 || f.set_threads == nullptr || f.get_threads == nullptr) {
    state.threads = threads;
    return;
  }
  state.threads = threads;
  state.before = f.get_threads();
  if (state.before != threads) f.set_threads(threads);
}

LapackThreads::~LapackThreads() {
  Gate& state = gate();
  const Functions& f = *lapack_.functions_;
  {
    const std::lock_guard lock(state.mutex);
    if (--state.calls > 0) return;
    if (f.set_threads != nullptr && f.get_threads != nullptr && state.before != state.threads)
      f.set_threads(state.before);
  }
  state.idle.notify_all();
}

}  // namespace mercer
