// Ways to compute a call on a CPU (docs/design/cpu_ways.md). Each verb has a list of them; choose() asks them all, each
// reckons its time or says why it does not serve, and the least time is taken. A choice follows from the formula and
// the sizes of an item, from whether its points have 8 bits, and where the formula has a mask, from how many of its
// pairs are computed: never from the number of threads, and neither from strides nor from other types that values are
// converted from or to, nor from the batch around an item, so that none of these changes a bit of it.
#pragma once

#include <span>
#include <string>
#include <variant>

#include "mercer/tensor.h"
#include "plan/cpu/costs.h"
#include "plan/cpu/forms.h"
#include "plan/ways.h"

namespace mercer::plan::cpu {

/// The side of the rows is broadcast, that of the columns lies along vectors: of pairwise those of the output, of other
/// verbs the points that are summed over and those that stay.
struct Request {
  Verb verb = Verb::pairwise;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t columns = 1;  // of v, or the neighbours of a point
  Dtype type = Dtype::float32;
  bool symmetric = false;   // one of two halves of the pairs is enough
  bool has_bytes = false;   // points are uint8 or int8
  bool both_sides = false;  // of a gradient: by the points of x and of z, with `columns` factors, 0 for a matrix
  bool has_blas = true;
  bool has_amx = false;
  bool is_forced = false;   // amx_digits is asked for by its name: plain loops serve without AMX
  double computed = 1;      // of all pairs, the part that no mask knows

  double pairs() const { return static_cast<double>(m) * static_cast<double>(n); }
  double bytes_of_type() const { return type == Dtype::float64 ? 8 : 4; }
};

struct Offer {
  double microseconds = 0;
  const char* error_bound = "";
  std::int64_t bytes = 0;  // of values of pairs that are stored for a second step
};
using Considered = std::variant<Offer, Refusal>;

struct Way {
  const char* name;
  const char* does;  // a line for people
  Considered (*consider)(const Request& request, const PairForms& forms, const Costs& costs);
};

extern const Way kPackedTile, kPackedHalves, kFewPoints, kByteSums, kAmxDigits, kGemm, kMaterialised, kStoredNearest,
    kBothSides;

/// Up to so many features few_points has points of z as lanes, not features, which it adds up in their order as
/// packed_tile does: all ways of pairwise then have the same bits.
inline constexpr std::int64_t kOrderedFeatures = 32;
/// Sums of so many features of 8 bits fit 32 bits: 255^2 times as many are below 2^31.
inline constexpr std::int64_t kByteFeatures = 32768;
/// So many neighbours of a point are kept in their order; more of them as a heap.
inline constexpr std::int64_t kOrderedNeighbours = 32;

/// Totals of the shorter side that blocks of the longer one have in both_sides: of ranges of so many blocks.
inline std::int64_t blocks_of_range(std::int64_t blocks) {
  constexpr std::int64_t kMostRanges = 32;
  return (blocks + kMostRanges - 1) / kMostRanges;
}

/// Values that are stored at once for a second step: they stay in the third-level cache.
inline constexpr std::int64_t kValueBytes = std::int64_t{4} << 20;

/// Whether pairwise takes its sides in turn: few columns would leave vectors empty.
inline bool swaps_sides(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kFew = 16;
  return cols < kFew && rows >= 2 * cols;
}

/// The sides of a request for m x n pairs of a formula: of pairwise as for an output that lies by rows, whatever the
/// layout of the one that is there; other verbs have theirs in turn.
inline void set_sides(Request& request, std::int64_t m, std::int64_t n) {
  const bool turns = request.verb != Verb::pairwise || swaps_sides(m, n);
  request.m = turns ? n : m;
  request.n = turns ? m : n;
}

inline bool is_of_bytes(Dtype points) { return points == Dtype::uint8 || points == Dtype::int8; }

/// The list of a verb. packed_tile serves every call but for some of one set, which packed_halves serves.
std::span<const Way* const> ways_of(Verb verb);

/// The least time. Throws unsupported where ways are forced and none of them serves.
const Way& choose(const Request& request, const PairForms& forms, const Costs& costs, const ForcedWays& forced);
/// What each way says, for people, a line each; a star marks the one that is taken.
std::string ways_text(const Request& request, const PairForms& forms, const Costs& costs, const ForcedWays& forced);

}  // namespace mercer::plan::cpu
