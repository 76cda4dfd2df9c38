/// \file
/// Where and how calls run: the thread pool, the instruction set, the cache of compiled plans.
///
/// \code
/// mercer::Context& shared = mercer::Context::shared();  // of every call that names none
/// shared.set_threads(8);
///
/// mercer::Context reference;  // another pool, and plans of its own
/// reference.set_target(mercer::Target::interpreter);
/// mercer::pairwise(f, x, &z, out, {}, reference);
/// \endcode
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace mercer {

/// Instruction sets of the CPU back end. `interpreter` needs no executable memory.
enum class Target {
  x86_avx512,  ///< AVX-512 F, DQ, BW and VL
  x86_avx2,  ///< AVX2 and FMA
  interpreter,  ///< any processor, several times slower
};
const char* name_of(Target target);  ///< "x86_avx512"
/// The target of that name, whether or not this machine can run it; "auto" gives the best one that it can. Throws
/// invalid_argument, with the known names, for any other.
Target target_from_text(const std::string& name);

/// How sums of products and of squared differences of float32 are computed where they run on a GPU's tensor cores.
/// Such sums of float64 are products of float64, whatever is asked for, but for `direct`.
enum class Precision {
  fp32,  ///< three products of 16-bit pieces: within the contract of float32; what cancels is computed again
  direct,  ///< no tensor cores: products and differences by multiply-adds, slower by far
  tf32,  ///< one product of eleven binary digits a value: errors near 2^-11 of |x| |z|
  bf16,  ///< the same product here: nothing is gained by fewer digits
};
const char* name_of(Precision precision);  ///< "fp32"
/// Throws invalid_argument, with the known names, for any other. "fp64" is fp32, as float64 has its own way by itself.
Precision precision_from_text(const std::string& name);

/// Asked now and then during long work, on the calling thread: `done` of `total` steps so far. Returning false
/// cancels the call, which then throws Cancelled with its output half written.
using ProgressCallback = std::function<bool(double done, double total)>;

/// State shared by calls: a thread pool, a target, and the compiled plans, of which the most recently used are kept.
/// Safe to use from many threads at once; calls of one context share its threads. Programs rarely need another one than
/// shared().
class Context {
 public:
  struct State;  // of Mercer itself
  /// Threads from MERCER_THREADS (or the machine's number), target from MERCER_TARGET (or the best). Throws
  /// invalid_argument for a target that there is not, unsupported for one that this machine cannot run.
  Context();
  ~Context();  ///< when no call uses it any more
  Context(const Context&) = delete;  ///< a pool is not copied
  Context& operator=(const Context&) = delete;  ///< nor assigned

  /// Threads that a call uses, the calling one among them.
  int threads() const;
  /// The count is from 1 to 4096, or 0 for the machine's own number. Only the last bits of linalg on
  /// the CPU depend on it.
  void set_threads(int count);
  Target target() const;  ///< of calls on the CPU
  /// For calls from now on. Throws unsupported when this machine cannot run it.
  void set_target(Target target);
  Precision precision() const;  ///< of calls on CUDA arrays
  /// For calls from now on; fp32 at first.
  void set_precision(Precision precision);
  /// The ways that calls are held to (docs/design/ways.md); "" where they choose themselves.
  std::string ways() const;
  /// For calls from now on; from MERCER_WAY at first. "materialised", or "kernel_product:materialised,direct": a verb
  /// that has some of them takes the first that serves a call, whatever its sizes, or throws unsupported. Throws
  /// invalid_argument for a name that no verb has.
  void set_ways(const std::string& names);
  /// Compiled plans held now.
  std::size_t plan_count() const;
  /// Forgets them and unmaps their code; calls that still use it finish first.
  void clear_plans();
  State& state() { return *state_; }  ///< for Mercer itself

  /// The context of calls that name none, made at the first use.
  static Context& shared();

 private:
  std::unique_ptr<State> state_;
};

/// Thrown when a progress callback asked to stop. It is no Error: nothing went wrong.
struct Cancelled : std::exception {
  /// One line for people.
  const char* what() const noexcept override { return "mercer: cancelled by the caller"; }
};

/// What this machine offers and what Mercer chose, as lines of text.
std::string describe_machine();

}  // namespace mercer
