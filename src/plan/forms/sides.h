// What a formula needs of one side alone, and of parameters alone: programs that run in double, whatever the computing
// type, because they cost O((M + N) K) or less.
#pragma once

#include <initializer_list>
#include <vector>

#include "ir/expr/program.h"
#include "ir/passes/split.h"

namespace mercer::plan {

/// Stage 0 and the streams of both sides.
struct Sides {
  /// A value per point: a reduction over its features.
  struct Stage {
    bool of_x = true;
    ir::Program update, finish;
    std::vector<double> identity;
    bool is_squares = false;  // the sum of the squares of the features
  };
  /// A value per point and feature.
  struct Stream {
    bool plain = false;  // just x (or z): copied while packing
    ir::Program program;
  };
  std::vector<Stage> stages;
  std::vector<Stream> x_streams, z_streams;
};
/// Whether streams of a side read what stage 0 leaves of it.
bool streams_read_slots(const Sides& sides, bool of_x);
/// Whether a side has one stream, its points.
bool are_points(const std::vector<Sides::Stream>& streams);
Sides lower_sides(const ir::Split& split);

/// Expressions of parameters alone; computed once per batch item.
ir::Program lower_uniforms(const std::vector<Expr>& uniforms, const std::vector<Expr>& params);
/// Identities of reductions as numbers; refuses parameters there.
std::vector<double> numbers_of(const std::vector<Expr>& identities);
/// Parameters that the reductions of these expressions read.
std::vector<Expr> params_of_reductions(const std::vector<Expr>& outputs);
bool reads_site(const ir::Program& program, std::initializer_list<ir::Site> sites);
/// Whether what is made of one side's features, or of either's, reads parameters or what is made of them.
bool reads_params(const Sides& sides, bool of_x);
inline bool reads_params(const Sides& sides) { return reads_params(sides, true) || reads_params(sides, false); }

}  // namespace mercer::plan
