// Where and how calls run: the thread pool, the instruction set, the cache of compiled plans.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace mercer {

/// Instruction sets of the CPU back end. `interpreter` needs no executable memory.
enum class Target { x86_avx512, x86_avx2, interpreter };
const char* name_of(Target target);
/// "auto" gives the best target of this machine; throws invalid_argument for a name it does not know, unsupported for
/// one that this machine cannot run.
Target target_from_text(const std::string& name);

/// Asked now and then during long work, on the calling thread: `done` of `total` steps so far. Returning false
/// cancels the call, which then throws Cancelled with its output half written.
using ProgressCallback = std::function<bool(double done, double total)>;

/// State shared by calls. The default one reads MERCER_THREADS and MERCER_TARGET; safe to use from many threads.
class Context {
 public:
  struct State;
  Context();
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const;
  void set_threads(int count);  ///< results do not depend on it
  Target target() const;
  void set_target(Target target);
  std::size_t plan_count() const;  ///< compiled plans held now
  void clear_plans();
  State& state() { return *state_; }

  static Context& shared();

 private:
  std::unique_ptr<State> state_;
};

/// Thrown when a progress callback asked to stop.
struct Cancelled : std::exception {
  const char* what() const noexcept override { return "mercer: cancelled by the caller"; }
};

/// What this machine offers and what Mercer chose, as text.
std::string describe_machine();

}  // namespace mercer
