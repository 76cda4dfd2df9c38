#include "plan/cpu/ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/integers.h"
#include "plan/cpu/planner.h"
#include "plan/promotion.h"

namespace mercer::plan::cpu {
namespace {

constexpr double kMicro = 1e-3;  // of nanoseconds

double rounded_up(std::int64_t count, std::int64_t multiple) { return static_cast<double>(round_up(count, multiple)); }

/// Rows of the tile that a call of so many takes.
std::int64_t tile_rows(std::int64_t m) {
  std::int64_t rows = kManyRows;
  while (rows > 1 && rows / 2 >= m) rows /= 2;
  return rows;
}

std::int64_t tile_cols(const PairForms& forms) { return std::int64_t{3} * forms.lanes; }

/// What packing takes, and the sums of one side.
double packing(const Request& r, const PairForms& forms, const Costs& costs) {
  const double points = rounded_up(r.m, tile_rows(r.m)) + rounded_up(r.n, tile_cols(forms));
  const double pack = costs.pack * (r.type == Dtype::float64 ? costs.pack_wide : 1);
  return points * static_cast<double>(r.k) * (pack + (forms.reads_sides ? costs.stage : 0));
}

/// Nanoseconds of the values of one item: tiles, full or not.
double tiles(const Request& r, const PairForms& forms, const Costs& costs) {
  const double pairs = rounded_up(r.m, tile_rows(r.m)) * rounded_up(r.n, tile_cols(forms)) * r.computed;
  const double cycles = static_cast<double>(r.k) * forms.update_cycles + forms.epilogue_cycles;
  return pairs / forms.lanes * cycles * costs.cycle;
}

double written(const Request& r, const PairForms& forms, const Costs& costs) {
  const bool whole = r.n >= tile_cols(forms);
  const double values = r.verb == Verb::pairwise ? r.pairs() : r.pairs() * r.computed;
  return values * (whole ? costs.write : costs.copy) * r.bytes_of_type() / 4;
}

/// Neighbours that all points keep in turn, of values in any order.
double kept_neighbours(const Request& r) {
  const double k = static_cast<double>(r.columns);
  return static_cast<double>(r.n) * k * (1 + std::log(std::max(1.0, static_cast<double>(r.m) / k)));
}

/// What a product, and neighbours, add to their pairs.
double columns_of(const Request& r, const Costs& costs) {
  if (r.verb == Verb::nearest)
    return static_cast<double>(r.n) * costs.nearest_point + r.pairs() * r.computed * costs.nearest_pair +
           kept_neighbours(r) * costs.heap_step;
  if (r.verb != Verb::product) return 0;
  const double columns = static_cast<double>(r.columns), outputs = static_cast<double>(r.n) * columns;
  const double packed = static_cast<double>(r.m) * columns * costs.product_v;
  const double terms = r.pairs() * r.computed * columns;
  return packed + outputs * costs.product_state + terms * costs.product_term * r.bytes_of_type() / 4;
}

/// Whether a pair has the same bits as the one with its points in turn.
bool is_symmetric_in_bits(const PairForms& forms) {
  return forms.sum != PairSum::none && forms.sides_turn && !forms.has_maxima;
}

/// Features of a point as its lines have them.
double padded_features(const Request& r) { return rounded_up(r.k, 64 / static_cast<std::int64_t>(r.bytes_of_type())); }

/// A pass over the pairs for each side.
double two_passes(const Request& r, const Costs& costs) {
  const double pairs = rounded_up(r.m, 8) * rounded_up(r.n, 8), width = r.bytes_of_type() / 4;
  const double columns = static_cast<double>(r.columns > 1 ? r.columns : 0);
  const double features = padded_features(r), points = static_cast<double>(r.m + r.n);
  return 2 * costs.pass_call + points * (costs.pass_point + features * costs.pass_feature) +
         pairs * width * (costs.pass_pair + columns * costs.pass_column + features * costs.pass_term);
}

Considered consider_both_sides(const Request& r, const PairForms& forms, const Costs& costs) {
  if (!r.both_sides) return Refusal{"the gradients by the points of both sides must be asked for, and no others"};
  if (forms.sum != PairSum::product && forms.sum != PairSum::square)
    return Refusal{"the formula must be a function of one sum of (x - z)^2 or of x z"};
  constexpr std::int64_t kBlock = 192;
  constexpr double kMostTotals = 1 << 24;
  const std::int64_t rows = std::min(r.m, r.n), cols = std::max(r.m, r.n), blocks = ceil_div(cols, kBlock);
  const double features = padded_features(r), wide = r.bytes_of_type() / 4;
  const double totals = static_cast<double>(rows * ceil_div(blocks, blocks_of_range(blocks))) *
                        (features + static_cast<double>(r.columns));
  if (totals > kMostTotals) return Refusal{"totals of parts would take more than 128 MiB"};
  const double pairs = static_cast<double>(rows) * rounded_up(cols, 48);
  const double item =
      costs.both_call + static_cast<double>(r.m + r.n) * (costs.both_point + features * costs.both_feature) +
      pairs * wide * (costs.both_pair + static_cast<double>(r.columns) * costs.both_column) +
      r.pairs() * wide * features * costs.both_term;
  return Offer{item * kMicro, "that of the formula's program"};
}

Considered consider_packed_tile(const Request& r, const PairForms& forms, const Costs& costs) {
  if (r.both_sides) return Offer{two_passes(r, costs) * kMicro, "that of the formula's program"};
  if (r.verb == Verb::pairwise && r.symmetric && !is_symmetric_in_bits(forms))
    return Refusal{"both halves must have the same bits"};
  const double item = costs.packed_call + packing(r, forms, costs) + tiles(r, forms, costs) + written(r, forms, costs);
  return Offer{(item + columns_of(r, costs)) * kMicro, "that of the formula's program"};
}

Considered consider_packed_halves(const Request& r, const PairForms& forms, const Costs& costs) {
  if (!r.symmetric) return Refusal{"the formula is not symmetric, or its points are two sets"};
  const double mirrored = r.pairs() / 2 * (r.m > tile_cols(forms) ? costs.mirror : costs.copy);
  const double item =
      costs.packed_call + packing(r, forms, costs) + (tiles(r, forms, costs) + written(r, forms, costs)) / 2;
  return Offer{(item + mirrored) * kMicro, "that of the formula's program"};
}

/// The time of few_points to write, which stores its sums in the output: half of that where a core's cache holds it.
double stored_in_place(const Request& r, const PairForms& forms, const Costs& costs) {
  constexpr double kOwnCache = 2 << 20;
  const double all = written(r, forms, costs);
  return r.pairs() * r.bytes_of_type() > kOwnCache ? all : all / 2;
}

Considered consider_few_points(const Request& r, const PairForms& forms, const Costs& costs) {
  if (forms.sum == PairSum::none)
    return Refusal{"the only reduction must be a sum of x z, (x - z)^2 or |x - z| or the largest |x - z|"};
  if (r.symmetric && !forms.sides_turn) return Refusal{"both halves must have the same bits"};
  if (r.computed < 1) return Refusal{"packed_tile fills rows of pairs that a mask knows"};
  const double points = static_cast<double>(r.m + r.n) * static_cast<double>(r.k);
  const double vectors = std::ceil(static_cast<double>(r.k) / forms.lanes);
  const double bytes = points * r.bytes_of_type() * costs.few_byte;
  const double reached = static_cast<double>(r.m) * rounded_up(r.n, tile_cols(forms));
  const double epilogue = forms.is_bare ? 0
                                        : reached / forms.lanes * forms.epilogue_cycles * costs.cycle +
                                              r.pairs() * costs.few_epilogue * r.bytes_of_type() / 4;
  const double sides = forms.reads_sides ? points * costs.stage : 0;
  const bool is_narrow = forms.lanes * static_cast<int>(r.bytes_of_type()) < 64;
  const double vector = costs.few_vector[static_cast<int>(forms.sum)] * (is_narrow ? costs.few_narrow : 1);
  double sums = r.pairs() * (costs.few_pair + vectors * vector);
  if (r.k <= kOrderedFeatures) {
    const auto k = static_cast<double>(r.k), m = static_cast<double>(r.m);
    const double rows = m * rounded_up(r.n, forms.lanes) / forms.lanes;
    sums = static_cast<double>(r.n) * k * costs.turned +
           rows * (costs.few_row + k * costs.few_step * vector / costs.few_vector[1]);
  }
  const double item = costs.few_call + bytes + sides + epilogue + stored_in_place(r, forms, costs) + sums;
  return Offer{item * kMicro, "that of the formula's program"};
}

Considered consider_byte_sums(const Request& r, const PairForms& forms, const Costs& costs) {
  if (!r.has_bytes) return Refusal{"points must be uint8 or int8"};
  if (forms.sum == PairSum::none)
    return Refusal{"the only reduction must be a sum of x z, (x - z)^2 or |x - z| or the largest |x - z|"};
  if (r.symmetric && !forms.sides_turn) return Refusal{"both halves must have the same bits"};
  if (r.k > kByteFeatures) return Refusal{"sums of more than 32768 features need more than 32 bits"};
  const double pairs = rounded_up(r.m, 2) * rounded_up(r.n, tile_cols(forms)), features = rounded_up(r.k, 8);
  const double points = static_cast<double>(r.m) + rounded_up(r.n, tile_cols(forms));
  const double epilogue = forms.is_bare ? 0 : pairs / forms.lanes * forms.epilogue_cycles * costs.cycle;
  const double sides = forms.reads_sides ? points * static_cast<double>(r.k) * costs.stage : 0;
  const double sums = pairs * (costs.byte_pair + features * costs.byte_sum[static_cast<int>(forms.sum)]);
  const double item =
      costs.byte_call + points * features * costs.byte_feature + sides + (sums + epilogue) * r.computed +
      written(r, forms, costs);
  return Offer{item * kMicro, "none of the sums"};
}

Considered consider_amx_digits(const Request& r, const PairForms& forms, const Costs& costs) {
  if (forms.sum != PairSum::product && forms.sum != PairSum::square)
    return Refusal{"the only reduction must be a sum of x z or (x - z)^2"};
  if (r.type != Dtype::float32) return Refusal{"points must be float32 or narrower"};
  if (r.symmetric && forms.reads_sides) return Refusal{"both halves must have the same bits"};
  if (r.computed < 1) return Refusal{"packed_tile fills rows of pairs that a mask knows"};
  if (r.k <= kOrderedFeatures) return Refusal{"few features are added up in their order"};
  if (r.k > kByteFeatures) return Refusal{"sums of more than 32768 features need more than 32 bits"};
  if (!r.has_amx && !r.is_forced)
    return Refusal{"the processor has no AMX, the system does not grant it, or MERCER_AMX is off"};
  const double features = rounded_up(r.k, 64), points = static_cast<double>(r.m + r.n);
  const double pairs = rounded_up(r.m, 32) * rounded_up(r.n, 96);
  const double epilogue = forms.is_bare ? 0 : pairs / forms.lanes * forms.epilogue_cycles * costs.cycle;
  const double sides = forms.reads_sides ? points * static_cast<double>(r.k) * costs.stage : 0;
  const double item = costs.digit_call + points * (costs.digit_point + features * costs.digit_feature) + sides +
                      epilogue + pairs * (costs.digit_pair + features * costs.digit_term) + written(r, forms, costs);
  const bool meets_gemm = forms.sum == PairSum::product && forms.is_bare && r.has_blas && !r.symmetric;
  const char* const bound = forms.sum == PairSum::product ? "at most 1e-6 of |x||z|"
                                                          : "at most 1e-6 of a difference";
  return Offer{item * (meets_gemm ? costs.digit_product : 1) * kMicro, bound};
}

Considered consider_gemm(const Request& r, const PairForms& forms, const Costs& costs) {
  if (forms.sum != PairSum::product) return Refusal{"the only reduction must be a sum of x z"};
  if (r.symmetric) return Refusal{"both halves must have the same bits"};
  if (!r.has_blas) return Refusal{"OpenBLAS is not installed"};
  if (!forms.is_bare) return Refusal{"values must be the sums themselves"};
  if (r.k <= kOrderedFeatures) return Refusal{"few features are added up in their order"};
  if (r.type == Dtype::float32 && r.k > kFeaturesOfTotal)
    return Refusal{"sums of more than 8192 float32 features are added up part by part"};
  const double wide = r.bytes_of_type() / 4, points = static_cast<double>(r.m + r.n) * static_cast<double>(r.k);
  const double item = costs.gemm_call + points * r.bytes_of_type() * costs.gemm_byte +
                      r.pairs() * wide * (costs.gemm_pair + static_cast<double>(r.k) * costs.gemm_term);
  return Offer{item * kMicro, "that of a sum in order"};
}

/// Digits of values that are stored a part at a time: each part takes all points of one side apart again.
Considered consider_parts_by_digits(const Request& r, const PairForms& forms, const Costs& costs) {
  const std::int64_t bytes = std::max<std::int64_t>(1, r.n) * static_cast<std::int64_t>(r.bytes_of_type());
  Request part = r;
  part.m = std::max<std::int64_t>(1, std::min(r.m, kValueBytes / bytes));
  Considered said = consider_amx_digits(part, forms, costs);
  if (auto* const offer = std::get_if<Offer>(&said))
    offer->microseconds *= static_cast<double>(ceil_div(r.m, part.m));
  return said;
}

/// The least time of the values of a product as a matrix; the sides of a product are in turn.
double values_time(const Request& r, const PairForms& forms, const Costs& costs) {
  Request values = r;
  values.verb = Verb::pairwise;
  values.is_forced = false;
  values.m = swaps_sides(r.n, r.m) ? r.m : r.n;
  values.n = r.m + r.n - values.m;
  double least = 0;
  for (const auto consider : {consider_few_points, consider_byte_sums, consider_parts_by_digits, consider_gemm,
                              consider_packed_halves, consider_packed_tile}) {
    const Considered said = consider(values, forms, costs);
    const auto* const offer = std::get_if<Offer>(&said);
    if (offer != nullptr && (least == 0 || offer->microseconds < least)) least = offer->microseconds;
  }
  return least;
}

Considered consider_materialised(const Request& r, const PairForms& forms, const Costs& costs) {
  constexpr std::int64_t kMostPoints = kFeaturesOfTotal;
  if (!r.has_blas) return Refusal{"OpenBLAS is not installed"};
  if (r.m == 0) return Refusal{"there are no points to sum over"};
  if (r.m > kMostPoints) return Refusal{"sums over more than 8192 points are kept in double"};
  const double columns = static_cast<double>(r.columns), wide = r.bytes_of_type() / 4;
  const double outputs = static_cast<double>(r.n) * columns, terms = r.pairs() * columns;
  const double product = costs.gemm_call + static_cast<double>(r.m) * columns * r.bytes_of_type() * costs.gemm_byte +
                         wide * (outputs * costs.gemm_pair + terms * costs.gemm_term);
  const double bytes = std::min(r.pairs() * r.bytes_of_type(), static_cast<double>(kValueBytes));
  return Offer{values_time(r, forms, costs) + (costs.stored_call + product) * kMicro,
               "that of the values and of sums in order", static_cast<std::int64_t>(bytes)};
}

Considered consider_stored_nearest(const Request& r, const PairForms& forms, const Costs& costs) {
  if (r.m == 0 || r.n == 0) return Refusal{"there are no pairs"};
  const double step = r.columns > kOrderedNeighbours ? costs.heap_step : costs.ordered_step;
  const double chosen = static_cast<double>(r.n) * costs.nearest_point + r.pairs() * costs.stored_pair +
                        kept_neighbours(r) * step;
  const double bytes = std::min(r.pairs() * r.bytes_of_type(), static_cast<double>(kValueBytes));
  return Offer{values_time(r, forms, costs) + (costs.stored_call + chosen) * kMicro, "that of the values",
               static_cast<std::int64_t>(bytes)};
}

constexpr const Way* kOfPairwise[] = {&kFewPoints, &kByteSums, &kAmxDigits, &kGemm, &kPackedHalves, &kPackedTile};
constexpr const Way* kOfProduct[] = {&kMaterialised, &kPackedTile};
constexpr const Way* kOfNearest[] = {&kStoredNearest, &kPackedTile};
constexpr const Way* kOfGradient[] = {&kBothSides, &kPackedTile};
constexpr const Way* kOfOthers[] = {&kPackedTile};

Request with_forced(Request request, const ForcedWays& forced) {
  request.is_forced = forced.names(request.verb, kAmxDigits.name);
  return request;
}

bool is_forced_out(const Way& way, Verb verb, bool is_forced, const ForcedWays& forced) {
  return is_forced && !forced.names(verb, way.name);
}

}  // namespace

const Way kPackedTile{"packed_tile", "points are packed into panels, and a register tile takes the features one by one",
                      consider_packed_tile};
const Way kPackedHalves{"packed_halves", "the same for one half of the pairs, which is copied to the other",
                        consider_packed_halves};
const Way kFewPoints{"few_points", "sums along the features of points where they lie, several items of a batch a call",
                     consider_few_points};
const Way kByteSums{"byte_sums", "exact sums of whole numbers of 8 bits", consider_byte_sums};
const Way kAmxDigits{"amx_digits", "inner products and squared differences from digits of 8 bits, by tiles of AMX",
                     consider_amx_digits};
const Way kGemm{"gemm", "inner products by OpenBLAS", consider_gemm};
const Way kBothSides{"both_sides", "pairs are made once for the gradients by the points of both sides",
                     consider_both_sides};
const Way kStoredNearest{"materialised", "values are stored, a part at a time, and the smallest of each row are kept",
                         consider_stored_nearest};
const Way kMaterialised{"materialised", "values are stored, a part at a time, and multiplied with v",
                        consider_materialised};

std::span<const Way* const> ways_of(Verb verb) {
  switch (verb) {
    case Verb::pairwise: return kOfPairwise;
    case Verb::product: return kOfProduct;
    case Verb::nearest: return kOfNearest;
    case Verb::gradient: return kOfGradient;
    default: return kOfOthers;
  }
}

const Way& choose(const Request& asked, const PairForms& forms, const Costs& costs, const ForcedWays& forced) {
  const auto ways = ways_of(asked.verb);
  const bool is_forced = forced.any_of(asked.verb, ways);
  const Request request = with_forced(asked, forced);
  const Way* best = nullptr;
  double least = 0;
  std::string refusals;
  for (const Way* way : ways) {
    if (is_forced_out(*way, request.verb, is_forced, forced)) continue;
    const Considered said = way->consider(request, forms, costs);
    if (const auto* refusal = std::get_if<Refusal>(&said)) {
      if (is_forced) refusals += fmt::format(" {}: {}.", way->name, refusal->to_text());
      continue;
    }
    const double time = std::get<Offer>(said).microseconds;
    if (best != nullptr && time >= least) continue;
    best = way;
    least = time;
  }
  if (best == nullptr) fail_forced(request.verb, forced, refusals);
  return *best;
}

std::string ways_text(const Request& asked, const PairForms& forms, const Costs& costs, const ForcedWays& forced) {
  const Request request = with_forced(asked, forced);
  const Way& taken = choose(request, forms, costs, forced);
  std::string text = fmt::format("{}, the one of the least time:\n", plan::name_of(request.verb));
  for (const Way* way : ways_of(request.verb)) {
    const Considered said = way->consider(request, forms, costs);
    text += fmt::format("{} {}: ", way == &taken ? '*' : ' ', way->name);
    if (const auto* refusal = std::get_if<Refusal>(&said)) {
      text += fmt::format("refused, {}\n", refusal->to_text());
      continue;
    }
    const Offer& offer = std::get<Offer>(said);
    text += fmt::format("about {:.4g} us on one thread; {}; {}\n", offer.microseconds, way->does, offer.error_bound);
  }
  return text;
}

}  // namespace mercer::plan::cpu
