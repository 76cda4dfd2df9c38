// Formulas: expressions over pairs of points, written with C++ operators, as text, or traced from Python.
//
//   auto [x, z] = mercer::points();
//   Expr l2 = sqrt(sum(square(x - z)));
//   Expr k  = exp(-sum(pow(abs(x - z), param("p"))) / param("bandwidth", 1.0));
//   Expr same = parse("exp(-sum(abs(x-z)^p)/bandwidth)");
//
// An expression outside every reduction is evaluated once per pair (m, n); inside a reduction it is the term, evaluated
// once per feature k. A reduction whose argument has one side only (a norm, a mean) is computed once per point.
//
// Values are IEEE: NaN and infinities go their way, x - x is not 0 for an infinity. Nothing here computes; building an
// expression throws invalid_argument only where a comment says so, a formula as a whole is checked by Formula.
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
  Expr() = default;
  Expr(double value);  // NOLINT(google-explicit-constructor): numbers are expressions
  explicit Expr(std::shared_ptr<const ir::Node> node) : node_(std::move(node)) {}

  bool empty() const { return node_ == nullptr; }
  const ir::Node& operator*() const { return *node_; }
  const ir::Node* operator->() const { return node_.get(); }
  const std::shared_ptr<const ir::Node>& node() const { return node_; }
  /// The text form; `parse(e.to_text())` gives an equal expression.
  std::string to_text() const;

 private:
  std::shared_ptr<const ir::Node> node_;
};

bool same(const Expr& a, const Expr& b);  ///< structural equality

// Leaves.

struct Points {
  Expr x, z;
};
Points points();                          ///< the features x[m, k] and z[n, k], to be read inside a reduction
Expr weights();                           ///< w[k]
Expr row_value();                         ///< row[m], a number per point of x given by the caller
Expr col_value();                         ///< col[n]
Expr index_i();                           ///< i = m + offset of the rows
Expr index_j();                           ///< j = n + offset of the columns
Expr feature_count();                     ///< K
/// A parameter that each call must give. Its name has ASCII letters, digits and underscores: throws invalid_argument
/// for any other.
Expr param(std::string name);
Expr param(std::string name, double default_value);  ///< one that a call may leave out

// Operators. Comparisons and logical operations give 1 or 0; what is not 0, NaN included, counts as true. (== and &&
// keep their meaning in C++.)

Expr operator+(const Expr& a, const Expr& b);
Expr operator-(const Expr& a, const Expr& b);
Expr operator*(const Expr& a, const Expr& b);
Expr operator/(const Expr& a, const Expr& b);
Expr operator-(const Expr& a);
Expr operator<(const Expr& a, const Expr& b);
Expr operator<=(const Expr& a, const Expr& b);
Expr operator>(const Expr& a, const Expr& b);
Expr operator>=(const Expr& a, const Expr& b);
Expr equal(const Expr& a, const Expr& b);
Expr not_equal(const Expr& a, const Expr& b);
Expr logical_and(const Expr& a, const Expr& b);
Expr logical_or(const Expr& a, const Expr& b);
Expr logical_not(const Expr& a);
Expr where(const Expr& condition, const Expr& a, const Expr& b);  ///< a where the condition is true, else b

// Functions. float32 results are within a few units in the last place (docs/guide/precision.md). Angles are radians.

Expr abs(const Expr& a);
Expr sign(const Expr& a);   ///< -1, 0 or 1
Expr square(const Expr& a);
Expr sqrt(const Expr& a);
Expr rsqrt(const Expr& a);  ///< 1 / sqrt(a)
Expr rcp(const Expr& a);    ///< 1 / a
Expr exp(const Expr& a);
Expr exp2(const Expr& a);
Expr expm1(const Expr& a);
Expr log(const Expr& a);
Expr log2(const Expr& a);
Expr log1p(const Expr& a);
Expr sin(const Expr& a);
Expr cos(const Expr& a);
Expr asin(const Expr& a);
Expr acos(const Expr& a);
Expr tanh(const Expr& a);
Expr erf(const Expr& a);
Expr floor(const Expr& a);
Expr ceil(const Expr& a);
Expr round(const Expr& a);  ///< to nearest, ties to even
Expr fma(const Expr& a, const Expr& b, const Expr& c);  ///< a * b + c, rounded once
Expr min(const Expr& a, const Expr& b);                 ///< NaN when either is
Expr max(const Expr& a, const Expr& b);
Expr pow(const Expr& a, const Expr& b);
Expr xlogy(const Expr& a, const Expr& b);               ///< a log(b), 0 for a = 0
Expr atan2(const Expr& a, const Expr& b);               ///< the angle of the point (b, a)
Expr copysign(const Expr& magnitude, const Expr& sign);

// Reductions over the features k. Over no features (K = 0) they give 0, 1, -Inf, Inf and -Inf.

Expr sum(const Expr& term);
Expr prod(const Expr& term);
Expr max(const Expr& term);  ///< NaN when any term is
Expr min(const Expr& term);
Expr logsumexp(const Expr& term);

/// A user's reduction. Its state is a tuple; `combine` reads the state as state(s) and the new term as incoming(s);
/// `merge` (optional) combines two states, the second read as incoming(s); `finish` makes one number of the state.
/// `associative` says that the combine may be split over k and merged (it then needs `merge`).
struct Reduce {
  std::vector<Expr> term;      // read as incoming(0), incoming(1), …
  std::vector<Expr> combine;   // the new states, one per slot
  std::vector<Expr> identity;  // the states before the first feature: numbers
  std::vector<Expr> merge;     // of two states, or empty
  Expr finish;                 // may be empty when there is one slot: state(0)
  bool associative = false;
};
Expr state(int slot = 0);      ///< a slot of the state, inside combine, merge and finish
Expr incoming(int slot = 0);   ///< a slot of what is combined with it
/// Throws invalid_argument when the lengths do not fit together.
Expr reduce(const Reduce& description);

/// A text of PTX as a function of up to 8 inputs: it reads {0}, {1}, ... and writes {out}. `meaning`, an expression
/// over what the inputs read, says the same in formula: float32 programs of GPUs run the text, fields of gradient_field
/// too; everything else (CPUs, float64, reductions of one side, derivatives) the meaning.
///
///   ptx("sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out};", {x, z}, abs(x - z))
///   ptx("selp.f32 {out}, {1}, {2}, {0:pred};", {x < z, x, z}, where(x < z, x, z))
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
