// What the plan of a formula on a CPU is, for the ways that look for something special (plan/cpu/ways.h).
#pragma once

#include <cstdint>

namespace mercer::plan {
struct PairPlan;
}

namespace mercer::plan::cpu {

/// The only reduction over the features, of the points themselves: x z, (x - z)^2, |x - z|, or the largest |x - z|.
enum class PairSum : std::uint8_t { none, product, square, absolute, largest };
inline constexpr int kPairSums = 5;
const char* name_of(PairSum sum);  ///< "x z"

struct PairForms {
  PairSum sum = PairSum::none;
  bool is_bare = false;      // values are the sums
  bool reads_sides = false;  // values read what one point alone gives: row, an index, a norm
  bool sides_turn = false;   // what they read of one side, if anything, has the same bits with the sides in turn
  bool is_ranged = false;    // sums may leave the range of their type and are looked at (plan/cpu/guard.h)
  bool has_maxima = false;   // sums of maxima may serve large calls
  double update_cycles = 0, epilogue_cycles = 0;  // of a vector of pairs and a feature, of one of pairs
  int lanes = 16;
};

PairForms forms_of(const PairPlan& plan);

}  // namespace mercer::plan::cpu
