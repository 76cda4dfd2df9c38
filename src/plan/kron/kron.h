// The plan of a product with a Kronecker product: which factors are multiplied out first, and which go together.
//
// A block of rows is an array [mb, d_1, ..., d_N, c], d_i = P_i until factor i is applied and Q_i from then on; c is
// the number of columns of a block that lies by columns (kron_matmul), else 1. Applying a factor,
//
//   out[l, q, r] = sum_p in[l, p, r] F[p, q],   l: what stands before its axis, r: what comes after it
//
// moves nothing to another place, so factors commute. Neighbouring factors form a *pass*:
//
//   for a tile of l's, or a piece of r               what comes before and after all factors of the pass
//     apply each factor of the pass (a *step*)       the tile stays in the first-level cache
//
// A pass reads its input once and writes its output once; between passes the block stays in the second-level cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mercer/tensor.h"

namespace mercer::plan {

struct KronShape {
  std::int64_t p = 1, q = 1;
  bool operator==(const KronShape&) const = default;
};

struct KronProblem {
  Dtype type = Dtype::float32;  // in which values are computed
  int lanes = 16;               // of the widest vectors
  std::vector<KronShape> factors;
  std::int64_t rows = 1;        // that step alike
  bool by_columns = false;      // neighbouring rows are neighbours in memory
  bool packed = true;           // arrays by columns have nothing between their rows
  std::int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20;
};

/// Factors first .. first + count - 1, multiplied out.
struct KronGroup {
  int first = 0, count = 1;
  std::int64_t p = 1, q = 1;
};

/// Groups first .. first + count - 1, applied to a tile while it is in the cache.
struct KronPass {
  int first = 0, count = 1;
  std::int64_t left = 1, right = 1;        // what comes before and after in one row; right counts columns as well
  std::int64_t in = 1, out = 1;            // products of p and of q
  std::vector<int> order = {};             // the groups in the order of their steps
  std::int64_t widest = 0;                 // the largest array between two steps, for one l and one r
  std::int64_t tile_left = 1;              // l's of a tile; more than 1 only where right is 1
  std::int64_t tile_right = 1;             // r's of a tile
  std::int64_t steps() const { return static_cast<std::int64_t>(order.size()); }
};

/// What a plan takes from estimates and what may be measured in their place. Every choice makes a plan whose results
/// keep the error bound of the products.
struct KronChoice {
  std::int64_t merged = 1024;  // elements up to which neighbouring factors are multiplied out
  std::int64_t tile = 75;      // hundredths of the first-level cache for arrays between the steps of a tile
  std::int64_t block = 8192;   // elements of a block of several rows
  std::int64_t piece = 192;    // bytes of a tile's piece of r: long enough for streams of the cache
  bool operator==(const KronChoice&) const = default;
  std::string record() const;
};

struct KronPlan {
  KronProblem problem;
  KronChoice choice;
  std::vector<KronGroup> groups;
  std::vector<KronPass> passes;      // in the order in which they run
  std::int64_t block_rows = 1;       // rows of a block
  std::int64_t columns = 1;          // c: block_rows where the block lies by columns, else 1
  std::int64_t k = 1, j = 1;         // products of all p and of all q
  std::int64_t widest = 0;           // elements of a row in the largest array before, between or after passes
  double flops = 0;                  // of one row
  std::string to_text() const;
};

/// What shrinks an array most goes first: of i and j, i first costs less where 1/p_i - 1/q_i < 1/p_j - 1/q_j.
inline double growth(double p, double q) { return 1 / p - 1 / q; }

/// What record() says; nothing for any other text.
std::optional<KronChoice> kron_choice_of(std::string_view record);
/// The model's own, `around`, and others near that; each makes another plan.
std::vector<KronChoice> kron_choices(const KronProblem& problem, const KronChoice& around);

KronPlan plan_kron(const KronProblem& problem, const KronChoice& choice = {});

/// Rows of a whole block of a problem by columns; those that are left over are better a problem of their own.
std::int64_t kron_columns(const KronProblem& problem, std::int64_t row);

}  // namespace mercer::plan
