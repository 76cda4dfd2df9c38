#include "plan/cpu/fit_ports.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <vector>

namespace mercer::plan {
namespace {

/// Ports of vector instructions; the last two bits are the units next to them.
constexpr int kVectorPorts = 4;
constexpr std::uint8_t kAllPorts = (1 << kVectorPorts) - 1, kDivider = 16, kApart = 32;
/// Ports of these are tried all; the best of so many beginnings are carried on.
constexpr std::size_t kStarts = 100;
constexpr Kind kFirstKinds[] = {Kind::multiply, Kind::add, Kind::logic, Kind::permute};

bool is_divider(Kind kind) { return kind >= Kind::divide; }

/// Cycles that one instruction of each use takes. Only unions of their ports can be the busiest set.
double together(std::initializer_list<PortUse> uses) {
  double longest = 0;
  for (unsigned chosen = 1; chosen < 1u << uses.size(); ++chosen) {
    unsigned ports = 0, place = 0;
    for (const PortUse& use : uses)
      if (chosen >> place++ & 1) ports |= use.ports;
    double taken = 0;
    for (const PortUse& use : uses)
      if ((use.ports & ~ports) == 0) taken += use.cycles;
    if (ports != 0) longest = std::max(longest, taken / std::popcount(ports));
  }
  return longest;
}

constexpr auto kMultiply = static_cast<std::size_t>(Kind::multiply), kAdd = static_cast<std::size_t>(Kind::add);

class Fit {
  struct Start {
    double error;
    PortUses uses;
  };

 public:
  explicit Fit(const PortTimes& times) : times_(times) {
    for (int k = 0; k < kKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (times.alone[k] <= 0) continue;
      if (is_divider(kind)) uses_[k] = {kDivider, times.alone[k]};
      else if (kind == Kind::gather) uses_[k] = {kApart, times.alone[k]};
      else kinds_.push_back(k);
    }
  }

  PortUses operator()() {
    std::vector<Start> starts;
    find_starts(0, starts);
    std::ranges::stable_sort(starts, {}, &Start::error);
    starts.resize(std::min(starts.size(), kStarts));
    double least = HUGE_VAL;
    PortUses best{};
    for (const Start& start : starts) {
      uses_ = start.uses;
      for (bool changed = true; changed;) {
        changed = false;
        for (int k : kinds_) changed = improve(k) || changed;
      }
      double sum = 0;
      for (int k : kinds_) sum += error(k);
      if (sum >= least) continue;
      least = sum;
      best = uses_;
    }
    return best;
  }

 private:
  void set(int kind, unsigned ports) {
    uses_[kind] = {static_cast<std::uint8_t>(ports), times_.alone[kind] * std::popcount(ports)};
  }

  /// The error of the pairs of `kind` with kinds that have ports. Fewer ports win over more that explain as much.
  double error(int kind) const {
    constexpr double kOfAPort = 1e-4;
    double sum = kOfAPort * std::popcount(uses_[kind].ports);
    for (int other : kinds_) {
      const double measured = times_.pair[kind][other];
      if (other == kind || uses_[other].ports == 0 || measured <= 0) continue;
      const double off = together({uses_[kind], uses_[other]}) / measured - 1;
      sum += off * off;
    }
    return sum + error_with_both(static_cast<std::size_t>(kind));
  }

  /// The error of a multiplication, an addition and a third kind together: `kind`, or each kind if it is one of both.
  double error_with_both(std::size_t kind) const {
    double sum = 0;
    const bool one_of_both = kind == kMultiply || kind == kAdd;
    for (int k : kinds_) {
      const auto other = static_cast<std::size_t>(k);
      if ((!one_of_both && other != kind) || times_.with_both[other] <= 0 || uses_[other].ports == 0) continue;
      const double off = together({uses_[kMultiply], uses_[kAdd], uses_[other]}) / times_.with_both[other] - 1;
      sum += off * off;
    }
    return sum;
  }

  bool improve(int kind) {
    const PortUse before = uses_[kind];
    PortUse best = before;
    double least = before.ports == 0 ? HUGE_VAL : error(kind) - 1e-9;
    for (unsigned ports = 1; ports <= kAllPorts; ++ports) {
      set(kind, ports);
      const double found = error(kind);
      if (found >= least) continue;
      least = found;
      best = uses_[kind];
    }
    uses_[kind] = best;
    return !(best == before);
  }

  /// All ports that the first kinds may have. Ports have no names of their own: the very first has the lowest.
  void find_starts(std::size_t place, std::vector<Start>& starts) {
    if (place == std::size(kFirstKinds)) {
      double sum = 0;
      for (int k : kinds_)
        if (uses_[k].ports != 0) sum += error(k);
      return starts.push_back({sum, uses_});
    }
    const auto kind = static_cast<int>(kFirstKinds[place]);
    if (times_.alone[kind] <= 0) return find_starts(place + 1, starts);
    for (unsigned ports = 1; ports <= kAllPorts; ++ports) {
      if (place == 0 && (ports & (ports + 1)) != 0) continue;
      set(kind, ports);
      find_starts(place + 1, starts);
    }
    uses_[kind] = {};
  }

  const PortTimes& times_;
  PortUses uses_{};
  std::vector<int> kinds_;
};

}  // namespace

PortTimes times_of(const PortUses& uses) {
  PortTimes times;
  for (std::size_t a = 0; a < kKinds; ++a) {
    if (uses[a].ports == 0) continue;
    times.alone[a] = uses[a].alone();
    for (std::size_t b = 0; b < kKinds; ++b)
      if (uses[b].ports != 0 && a != b) times.pair[a][b] = together({uses[a], uses[b]});
    if (a != kMultiply && a != kAdd) times.with_both[a] = together({uses[kMultiply], uses[kAdd], uses[a]});
  }
  return times;
}

PortUses fit_ports(const PortTimes& times) { return Fit(times)(); }

}  // namespace mercer::plan
