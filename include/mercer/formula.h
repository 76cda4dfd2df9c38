/// \file
/// Formulas: expressions over pairs of points, written with C++ operators, as text, or traced from Python.
///
/// \code
/// auto [x, z] = mercer::points();
/// mercer::Expr l2 = sqrt(sum(square(x - z)));
/// mercer::Expr k = exp(-sum(pow(abs(x - z), mercer::param("p"))) / mercer::param("bandwidth", 1.0));
/// mercer::Expr same = mercer::parse("exp(-sum(abs(x-z)^p)/bandwidth)");
/// \endcode
///
/// An expression outside every reduction is evaluated once per pair (m, n); inside a reduction it is the term,
/// evaluated once per feature k. A reduction whose argument has one side only (a norm, a mean) is computed once per
/// point.
///
/// Values are IEEE: NaN and infinities go their way, x - x is not 0 for an infinity. Nothing here computes; building an
/// expression throws invalid_argument only where a comment says so, a formula as a whole is checked by Formula.
///
/// Comparisons and logical operations give 1 or 0; what is not 0, NaN included, counts as true. (== and && keep their
/// meaning in C++.) float32 results of functions are within a few units in the last place (docs/guide/precision.md);
/// angles are radians.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mercer {

namespace ir {
struct Node;
}

/// An immutable expression; copying it is copying a pointer. Equal expressions compare equal however they were built.
class Expr {
 public:
  Expr() = default;  ///< no expression
  /// A number.
  Expr(double value);  // NOLINT(google-explicit-constructor): numbers are expressions
  explicit Expr(std::shared_ptr<const ir::Node> node) : node_(std::move(node)) {}  ///< for Mercer itself

  bool empty() const { return node_ == nullptr; }  ///< whether there is none
  const ir::Node& operator*() const { return *node_; }  ///< for Mercer itself
  const ir::Node* operator->() const { return node_.get(); }  ///< for Mercer itself
  const std::shared_ptr<const ir::Node>& node() const { return node_; }  ///< for Mercer itself
  /// The text form; `parse(e.to_text())` gives an equal expression.
  std::string to_text() const;

 private:
  std::shared_ptr<const ir::Node> node_;
};

bool same(const Expr& a, const Expr& b);  ///< structural equality

// Leaves.

/// The features of both points of a pair.
struct Points {
  Expr x;  ///< x[m, k]
  Expr z;  ///< z[n, k]
};
Points points();  ///< the features x[m, k] and z[n, k], to be read inside a reduction
Expr weights();  ///< w[k]
Expr row_value();  ///< row[m], a number per point of x given by the caller
Expr col_value();  ///< col[n]
Expr index_i();  ///< i = m + offset of the rows
Expr index_j();  ///< j = n + offset of the columns
Expr feature_count();  ///< K
/// A parameter that each call must give. Its name has ASCII letters, digits and underscores: throws invalid_argument
/// for any other.
Expr param(std::string name);
Expr param(std::string name, double default_value);  ///< one that a call may leave out

// Operators.

Expr operator+(const Expr& a, const Expr& b);  ///< the sum
Expr operator-(const Expr& a, const Expr& b);  ///< the difference
Expr operator*(const Expr& a, const Expr& b);  ///< the product
Expr operator/(const Expr& a, const Expr& b);  ///< the quotient
Expr operator-(const Expr& a);  ///< the negative
Expr operator<(const Expr& a, const Expr& b);  ///< 1 or 0; 0 for NaN
Expr operator<=(const Expr& a, const Expr& b);  ///< 1 or 0; 0 for NaN
Expr operator>(const Expr& a, const Expr& b);  ///< 1 or 0; 0 for NaN
Expr operator>=(const Expr& a, const Expr& b);  ///< 1 or 0; 0 for NaN
Expr equal(const Expr& a, const Expr& b);  ///< 1 or 0; 0 for NaN
Expr not_equal(const Expr& a, const Expr& b);  ///< 1 or 0; 1 for NaN
Expr logical_and(const Expr& a, const Expr& b);  ///< 1 where both are true, else 0
Expr logical_or(const Expr& a, const Expr& b);  ///< 1 where one is true, else 0
Expr logical_not(const Expr& a);  ///< 1 for 0, else 0
Expr where(const Expr& condition, const Expr& a, const Expr& b);  ///< a where the condition is true, else b

// Functions.

Expr abs(const Expr& a);  ///< |a|
Expr sign(const Expr& a);  ///< -1, 0 or 1
Expr square(const Expr& a);  ///< a a
Expr sqrt(const Expr& a);  ///< the root; NaN below 0
Expr rsqrt(const Expr& a);  ///< 1 / sqrt(a)
Expr rcp(const Expr& a);  ///< 1 / a
Expr exp(const Expr& a);  ///< e^a
Expr exp2(const Expr& a);  ///< 2^a
Expr expm1(const Expr& a);  ///< e^a - 1, accurate near 0
Expr log(const Expr& a);  ///< to base e; -Inf for 0, NaN below
Expr log2(const Expr& a);  ///< to base 2
Expr log1p(const Expr& a);  ///< log(1 + a), accurate near 0
Expr sin(const Expr& a);  ///< of radians
Expr cos(const Expr& a);  ///< of radians
Expr asin(const Expr& a);  ///< radians from -pi/2 to pi/2
Expr acos(const Expr& a);  ///< radians from 0 to pi
Expr tanh(const Expr& a);  ///< the hyperbolic tangent
Expr erf(const Expr& a);  ///< the error function
Expr floor(const Expr& a);  ///< the largest whole number up to a
Expr ceil(const Expr& a);  ///< the smallest whole number from a on
Expr round(const Expr& a);  ///< to nearest, ties to even
Expr fma(const Expr& a, const Expr& b, const Expr& c);  ///< a * b + c, rounded once
Expr min(const Expr& a, const Expr& b);  ///< NaN when either is
Expr max(const Expr& a, const Expr& b);  ///< NaN when either is
Expr pow(const Expr& a, const Expr& b);  ///< a^b
Expr xlogy(const Expr& a, const Expr& b);  ///< a log(b), 0 for a = 0
Expr atan2(const Expr& a, const Expr& b);  ///< the angle of the point (b, a), in radians
Expr copysign(const Expr& magnitude, const Expr& sign);  ///< |magnitude| with that sign

// Reductions over the features k.

Expr sum(const Expr& term);  ///< 0 over no features
Expr prod(const Expr& term);  ///< 1 over no features
Expr max(const Expr& term);  ///< NaN when any term is; -Inf over no features
Expr min(const Expr& term);  ///< likewise; Inf over no features
Expr logsumexp(const Expr& term);  ///< log(sum(exp(term))) without overflow; -Inf over no features

/// A user's reduction. Its state is a tuple; `combine` reads the state as state(s) and the new term as incoming(s);
/// `merge` (optional) combines two states, the second read as incoming(s); `finish` makes one number of the state.
/// `associative` says that the combine may be split over k and merged (it then needs `merge`).
struct Reduce {
  std::vector<Expr> term;  ///< read as incoming(0), incoming(1), …
  std::vector<Expr> combine;  ///< the new states, one per slot
  std::vector<Expr> identity;  ///< the states before the first feature: numbers
  std::vector<Expr> merge;  ///< of two states, or empty
  Expr finish;  ///< may be empty when there is one slot: state(0)
  bool associative = false;  ///< whether combine may be split over k and merged
};
Expr state(int slot = 0);  ///< a slot of the state, inside combine, merge and finish
Expr incoming(int slot = 0);  ///< a slot of what is combined with it
/// Throws invalid_argument when the lengths do not fit together.
Expr reduce(const Reduce& description);

/// A text of PTX as a function of up to 8 inputs: it reads {0}, {1}, ... and writes {out}. `meaning`, an expression
/// over what the inputs read, says the same in formula: float32 programs of GPUs run the text, fields of gradient_field
/// too; everything else (CPUs, float64, reductions of one side, derivatives) the meaning.
///
///     ptx("sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out};", {x, z}, abs(x - z))
///     ptx("selp.f32 {out}, {1}, {2}, {0:pred};", {x < z, x, z}, where(x < z, x, z))
///
/// Values are float32. {0:u32}, {out:u32} have the bits of one; {0:pred} is true where the input is not 0 (as NaN),
/// {out:pred} makes 1 of true and 0 of false.
/// Registers of its own are declared in it (.reg .f32 t;), and nobody else sees them. It must give the same for the
/// same inputs and touch nothing else. Throws invalid_argument for a text that cannot be one
/// (docs/reference/grammar.md); what only the assembler finds is a compile error of the call, with the text.
Expr ptx(std::string_view text, std::vector<Expr> inputs, const Expr& meaning);
/// A text that writes {out0}, {out1}, ..., at most four: an expression for each, with a meaning each. A GPU runs the
/// text once for all of them.
std::vector<Expr> ptx_outputs(std::string_view text, const std::vector<Expr>& inputs,
                              const std::vector<Expr>& meanings);

/// Reads the text form (docs/reference/grammar.md). Throws invalid_argument with a caret under the fault.
Expr parse(std::string_view text);

/// d expression / d variable, where `variable` is one of the features x or z, the weights, or a parameter. With
/// respect to a feature the result has x and z outside reductions: they are x[m, k] and z[n, k] at the feature k of the
/// derivative. Applied twice it gives the diagonal of the second derivative. Zero at kinks and singular points.
Expr differentiate(const Expr& expression, const Expr& variable);

/// Names of the parameters in order of first use; a value where a default is known.
std::vector<std::pair<std::string, std::optional<double>>> parameters(const Expr& expression);
/// The expression with its parameters replaced by expressions (numbers among them); names that it does not have are
/// ignored.
Expr bind(const Expr& expression, const std::map<std::string, Expr>& values);

}  // namespace mercer
