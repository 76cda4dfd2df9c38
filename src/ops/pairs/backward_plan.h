// The backward of a weighted sum over pairs as a list of passes, which is made before the first of them runs. With f
// the formula and W[m, n] = dL/df(x_m, z_n) the list has the gradients of L by all leaves that are wanted; whoever runs
// it (mercer/_torch/passes.py) takes no decision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mercer/explain.h"
#include "mercer/formula.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"
#include "ops/pairs/summed_leaves.h"

namespace mercer::ops {

/// How W is given: as factors u v', as one matrix, or in another way (a matrix with factors, or one factor alone).
enum class PairWeights : std::uint8_t { factors, matrix, other };

/// A choice that tests make in place of the plan.
enum class Choice : std::uint8_t { planned, never, always };

struct BackwardRequest {
  Expr formula;
  PairWeights weights = PairWeights::factors;
  std::vector<std::string> wanted;  // "x", "z", "w", "row", "col", "v", "p:h" and "d:0", a direction
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t columns = 1;  // of u and v
  Dtype type = Dtype::float32;  // computing type
  int capability = 0;           // of the CUDA device; 0: CPUs
  bool tiny_items = false;      // a batch of very small items, which the engine does not take
  bool same_points = false;     // z is x
  bool same_row = false;        // row is col, or neither is given
  bool same_offsets = false;    // of the indices of rows and columns
  bool has_w = false, has_row = false, has_col = false;  // as operands
  bool in_memory = false;       // nobody follows or maps the arrays: both sides may have one pass
  bool recorded = false;        // a derivative of the backward will be asked for
  std::string along;            // targets of the directions in which f is differentiated
  std::vector<std::string> arrays;  // parameters that have axes or lie on a device
  Choice points = Choice::planned, passes = Choice::planned, both_sides = Choice::planned;
};

/// Which points are the rows of a pass. `both`: those of x and z at once, with the weights u v' + v u', where the
/// formula does not tell the sides apart.
enum class PassRows : std::uint8_t { x, z, both };

/// One step of a backward.
struct BackwardPass {
  enum class Verb : std::uint8_t {
    point_form,  // goes on with a formula of other points (ir/passes/point_form.h)
    product_backward,  // the field of the rows, and side sums; the weights are u v'
    pairwise_backward,  // the same of a matrix of weights
    both_sides,  // the fields of x and of z, of pairs made once, and the product with u (plan/cpu/sum_field.h)
    linear_form,  // the same as products of matrices (plan/forms/linear_form.h)
    linear_form_by_pass,  // that too, but the matrix times points by a pass over the pairs
    field,  // the field by one target
    sums,  // sums over the columns of the derivative by one leaf
    product,  // the matrix of the formula times v
    direction,  // the field by a direction
    point_form_back,  // the gradients by the points that point_form was given
  };
  Verb verb = Verb::field;
  PassRows rows = PassRows::x;
  /// What is differentiated by, as the rows have it: in a pass with the rows z, "row" is a value of the points z.
  std::vector<std::string> by = {};
  /// The leaves whose gradients the results are or are added to, in the order field, those of `by`, product, weights;
  /// several with a space between, none where a result serves another one only.
  std::vector<std::string> yields = {};
  bool product = false;         // the product with v is among the results
  bool without_weight = false;  // the field lacks its factor of w, by which the gradients by w are made of it
  std::string formula = {};     // of point_form: the one of the other points
};
const char* name_of(BackwardPass::Verb verb);
const char* name_of(PassRows rows);

std::vector<BackwardPass> plan_backward(const BackwardRequest& request);
/// The list for mercer.parameter_gradient: of product_backward, pairwise_backward and sums alone.
std::vector<BackwardPass> plan_parameter_gradient(const BackwardRequest& request);
/// Leaves by whose derivatives a pass adds up side sums, where these parameters have axes or lie on a
/// device: others in an exponent become numbers of the formula that runs.
SummedLeaves summed_leaves(const Formula& formula, const std::vector<std::string>& arrays);
/// What the ways of the gradients by both sides say of it on CPUs; empty where there is nothing to choose.
std::string ways_of_both_sides(const BackwardRequest& request);
/// A line for each pass.
std::string text_of(const std::vector<BackwardPass>& passes);
/// The lists of pairwise and of kernel_product with one column, by all that the formula reads, for a target of
/// explain().
std::string explain_backward(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target);
/// Prints the list where MERCER_DUMP asks for plans, and returns it.
std::vector<BackwardPass> dumped(const BackwardRequest& request, std::vector<BackwardPass> passes);

/// How the field by one target is computed.
enum class FieldVerb : std::uint8_t { product_gradient, product_backward, pairwise_backward, by_rows, contraction };
struct FieldRequest {
  Expr formula;
  std::string target;  // "x", "w" or the multiplier of a field, "t"
  bool has_matrix = false, has_u = false, has_v = false;
  std::int64_t k = 0, columns = 1;  // columns of u and v
  bool on_cuda = false;
};
FieldVerb plan_field(const FieldRequest& request);
const char* name_of(FieldVerb verb);

}  // namespace mercer::ops
