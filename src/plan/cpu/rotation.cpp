#include "plan/cpu/rotation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "plan/cpu/registers.h"

namespace mercer::plan {

using ir::Instr;
using ir::Prim;

namespace {

/// Shorter programs have their neighbours in the tile; longer ones are far from fitting sixteen registers.
constexpr int kFewestSteps = 10, kMostSteps = 40, kFewRegisters = 16;

/// How long the result of a step is waited for, in cycles. Waits are not the core's latencies: its schedulers hide
/// those of a chain better than those before and after it. They were searched for on Zen 4
/// (docs/kernels/cpu_tile.md).
struct Waits {
  double stream;  // a step that reads z
  double multiply_add, multiply, add, shift, permute, either;
  double widest;    // steps of a vector in a cycle, where registers allow
  double lateness;  // between as early as its operands allow (0) and as late as its readers do (1)
};
constexpr Waits kWaits{9.35, 1.155, 0.2, 4.62, 0.3, 3.1, 2.81, 2.4, 0.9};  // |d|^1.3, |d|^2.2 and exp together
/// Powers of narrow data. Programs without lookups run up to a tenth faster by those above.
constexpr Waits kWaitsOfShortPowers{23.3, 1.371, 2.898, 11.62, 1.513, 2.109, 4.225, 2.745, 0.728};
constexpr std::size_t kMostOfShortPowers = 16;

constexpr double kNarrowest = 0.5, kNarrower = 0.125;

class Rotator {
 public:
  Rotator(const ir::Program& update, int vectors, int registers, const TargetInfo& target)
      : p_(update), vectors_(vectors), registers_(registers), target_(target) {
    const std::size_t n = p_.code.size();
    place_.assign(n, -1);
    last_.assign(n, -1);
    needed_ = leaves_in_registers(p_, target_.embedded_broadcast);
    for (std::size_t i = 0; i < n; ++i)
      if (!is_leaf(p_.code[i].op)) steps_.push_back(static_cast<std::int32_t>(i));
    turn_ = static_cast<int>(steps_.size()) * vectors_;
    const bool short_power = !p_.tables.empty() && steps_.size() <= kMostOfShortPowers;
    waits_ = short_power ? kWaitsOfShortPowers : kWaits;
  }

  std::optional<Rotation> operator()() {
    if (!rotates()) return std::nullopt;
    set_times();
    const int needed = place_widely();
    if (needed < 0) return std::nullopt;
    return result(needed);
  }

 private:
  bool is_step(std::int32_t i) const { return i >= 0 && !is_leaf(p_.code[i].op); }

  /// Every step is read, none waits for the divider, and states change in place.
  bool rotates() const {
    const int n = static_cast<int>(steps_.size());
    if (target_.registers > kFewRegisters || n < kFewestSteps || n > kMostSteps) return false;
    std::vector<bool> read(p_.code.size(), false);
    for (const Instr& instr : p_.code)
      for (std::int32_t o : operands(instr))
        if (o >= 0) read[o] = true;
    for (std::int32_t i : steps_) {
      if (p_.code[i].op == Prim::div || p_.code[i].op == Prim::sqrt) return false;
      const auto outputs = std::count(p_.outputs.begin(), p_.outputs.end(), i);
      if (read[i] ? outputs != 0 : outputs != 1) return false;
    }
    for (std::size_t s = 0; s < p_.outputs.size(); ++s)
      if (!in_place(static_cast<int>(s))) return false;
    return true;
  }

  /// The new state `s` reads the old one as an addend or an operand, and nobody else does.
  bool in_place(int s) const {
    const std::int32_t output = p_.outputs[s];
    const Instr& instr = p_.code[output];
    if (is_leaf(instr.op) || ir::makes_mask(instr.op) || instr.op == Prim::table16) return false;
    std::int32_t state = -1;
    for (std::size_t i = 0; i < p_.code.size(); ++i) {
      const Instr& leaf = p_.code[i];
      if (leaf.op != Prim::input || p_.inputs[leaf.index].site != ir::Site::accumulator) continue;
      if (p_.inputs[leaf.index].slot != s) continue;
      if (state >= 0) return false;
      state = static_cast<std::int32_t>(i);
    }
    if (state < 0) return false;
    for (std::int32_t i : steps_) {
      const Instr& reader = p_.code[i];
      if (i != output && (reader.a == state || reader.b == state || reader.c == state)) return false;
    }
    if (ir::operand_count(instr.op) == 3) return instr.c == state && instr.a != state && instr.b != state;
    return ir::operand_count(instr.op) == 2 && (instr.a == state) != (instr.b == state);
  }

  bool reads_stream(const Instr& instr) const {
    const std::array<std::int32_t, 3> from = operands(instr);
    return std::any_of(from.begin(), from.end(), [&](std::int32_t o) {
      return o >= 0 && p_.code[o].op == Prim::input && p_.inputs[p_.code[o].index].site == ir::Site::z;
    });
  }

  double wait(std::int32_t i) const {
    const Instr& instr = p_.code[i];
    if (reads_stream(instr)) return waits_.stream;
    if (instr.op == Prim::mul) return waits_.multiply;
    if (instr.op == Prim::shift_left || instr.op == Prim::shift_right) return waits_.shift;
    if (instr.op == Prim::table16) return waits_.permute;
    const auto has_ports_of = [&](Kind kind) {
      return target_.cost(instr.op, p_.type).ports == use_of(*target_.uses, kind).ports;
    };
    return has_ports_of(Kind::multiply) ? waits_.multiply_add : has_ports_of(Kind::add) ? waits_.add : waits_.either;
  }

  /// Cycles after the feature's first step.
  void set_times() {
    time_.assign(p_.code.size(), 0);
    for (std::int32_t i : steps_)
      for (std::int32_t o : operands(p_.code[i]))
        if (is_step(o)) time_[i] = std::max(time_[i], time_[o] + wait(o));
    constexpr double kNever = std::numeric_limits<double>::infinity();
    std::vector<double> latest(p_.code.size(), kNever);
    const std::vector<double> early = time_;
    for (std::size_t k = steps_.size(); k-- > 0;) {
      const std::int32_t i = steps_[k];
      if (latest[i] < kNever) time_[i] = latest[i];
      for (std::int32_t o : operands(p_.code[i]))
        if (is_step(o)) latest[o] = std::min(latest[o], time_[i] - wait(o));
    }
    for (std::int32_t i : steps_) time_[i] = early[i] + waits_.lateness * (time_[i] - early[i]);
  }

  /// As wide as registers allow. How many it takes; -1: it does not fit.
  int place_widely() {
    for (double spread = waits_.widest; spread >= kNarrowest; spread -= kNarrower) {
      place(spread);
      const int needed = pressure();
      if (needed >= 0 && needed <= registers_) return needed;
    }
    return -1;
  }

  /// The first free place at or after `spread` places a cycle: one step of one vector each.
  void place(double spread) {
    const int n = static_cast<int>(steps_.size());
    order_ = steps_;
    std::stable_sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) { return time_[a] < time_[b]; });
    std::vector<bool> taken(n, false);
    for (std::int32_t i : order_) {
      int at = static_cast<int>(std::lround(spread * time_[i]));
      for (std::int32_t o : operands(p_.code[i]))
        if (is_step(o)) at = std::max(at, place_[o] + 1);
      while (taken[at % n]) ++at;
      taken[at % n] = true;
      place_[i] = at;
    }
    std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) { return place_[a] < place_[b]; });
  }

  /// Registers that a step takes on top of those of its operands and its result, while it runs: for leaves that it
  /// cannot read from memory, and for its parts.
  int extra_registers(const Instr& instr) const {
    int leaves = 0, others = 0;
    for (std::int32_t o : operands(instr)) {
      others += is_step(o);
      leaves += o >= 0 && !is_step(o) && needed_[o];
    }
    // The result of an operation on leaves alone takes the register of one.
    if (ir::operand_count(instr.op) == 2 && others == 0 && leaves > 0) --leaves;
    const bool table = instr.op == Prim::table16 &&
                       (p_.type == Dtype::float64 || !repeats_after_eight(p_.tables[instr.index]));
    const bool one_more = instr.op == Prim::select || instr.op == Prim::large_sine;
    return leaves + (table || instr.op == Prim::abs_max ? 3 : one_more ? 1 : 0);
  }

  /// Registers of a turn; -1 where a value would live longer than a turn or a step would be two turns behind.
  int pressure() {
    std::fill(last_.begin(), last_.end(), -1);
    int scratch = 0;
    for (std::int32_t i : steps_) {
      for (std::int32_t o : operands(p_.code[i]))
        if (is_step(o)) last_[o] = std::max(last_[o], place_[i]);
      if ((vectors_ - 1) * static_cast<int>(steps_.size()) + place_[i] >= 2 * turn_) return -1;
      scratch = std::max(scratch, extra_registers(p_.code[i]));
    }
    // Values that begin to live less those that end at each place; a vector adds what the first one has, n places on.
    const int n = static_cast<int>(steps_.size());
    std::vector<int> change(n, 0);
    int live = 0;
    for (std::int32_t i : steps_) {
      if (last_[i] < 0) continue;
      if (last_[i] - place_[i] >= turn_) return -1;
      ++change[place_[i] % n];
      --change[last_[i] % n];
      live += last_[i] / n - place_[i] / n;
    }
    int most = 0;
    for (int at = 0; at < n; ++at) most = std::max(most, live += change[at]);
    return most + scratch;
  }

  Rotation result(int needed) const {
    Rotation r;
    r.registers = needed;
    r.program = p_;
    r.program.code.clear();
    std::vector<std::int32_t> now(p_.code.size(), -1);
    const auto append = [&](std::int32_t i) {
      Instr instr = p_.code[i];
      for (std::int32_t* o : {&instr.a, &instr.b, &instr.c})
        if (*o >= 0) *o = now[*o];
      now[i] = static_cast<std::int32_t>(r.program.code.size());
      r.program.code.push_back(instr);
    };
    for (std::size_t i = 0; i < p_.code.size(); ++i)
      if (!is_step(static_cast<std::int32_t>(i))) append(static_cast<std::int32_t>(i));
    for (std::int32_t i : order_) append(i);
    for (std::int32_t& o : r.program.outputs) o = now[o];
    r.steps.resize(turn_);
    for (std::int32_t i : steps_)
      for (int v = 0; v < vectors_; ++v) {
        const int at = place_[i] + v * static_cast<int>(steps_.size());
        r.steps[at % turn_] = {now[i], v, at >= turn_};
      }
    return r;
  }

  const ir::Program& p_;
  int vectors_, registers_, turn_;
  const TargetInfo& target_;
  Waits waits_;
  std::vector<std::int32_t> steps_, order_;  // instructions that are no leaves; by place
  std::vector<bool> needed_;                 // leaves in registers
  std::vector<double> time_;                 // of an instruction, in cycles
  std::vector<int> place_, last_;            // of an instruction of vector 0, and of its last reader
};

}  // namespace

std::optional<Rotation> rotate(const ir::Program& update, int vectors, int registers, const TargetInfo& target) {
  return Rotator(update, vectors, registers, target)();
}

}  // namespace mercer::plan
