// A formula made ready for calls.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/system/mutex.h"
#include "ir/expr/expr.h"
#include "ir/passes/passes.h"
#include "mercer/pairwise.h"
#include "ops/context.h"
#include "plan/forms/forms.h"

namespace mercer {

namespace ops {

/// The program that a formula took last: calls of one problem, one after the other, find it without the lock of their
/// context and without a text for its key. It is the context's, and gone from here when it is gone there.
class LastProgram {
 public:
  struct Problem {
    const void* context = nullptr;
    Dtype type = Dtype::float32;
    Target target = Target::interpreter;
    bool empty_features = false;
    std::int64_t rows_hint = 0;
    bool operator==(const Problem&) const = default;
  };
  /// Null where it is another's, where another thread looks right now, and each 64th time.
  std::shared_ptr<const cpu::PairProgram> find(const Problem& problem);
  void keep(const Problem& problem, const std::shared_ptr<const cpu::PairProgram>& program);

 private:
  std::atomic_flag busy_;  // held by a thread that forks it stays set in the child, which goes the long way then
  Problem problem_;
  int hits_ = 0;
  std::weak_ptr<const cpu::PairProgram> program_;
};

}  // namespace ops

struct Formula::Prepared {
  explicit Prepared(const Expr& expression, ir::Form form = ir::Form::pairs);

  Expr expression;                    // simplified and verified
  std::string key;                    // its text: equal keys mean equal programs
  Expr written;                       // as given where that names more, for callers that prepare it again
  std::vector<Expr> params;           // parameter leaves in order of first use
  std::vector<Expr> exponents;        // those in an exponent: a number given there becomes part of the program
  ir::Uses uses;
  ir::Uses names;                     // of the formula as written, of which simplification may have removed some
  ir::Form form = ir::Form::pairs;
  bool is_field = false;              // or a fold
  bool is_fold = false;
  bool reads_pairs = false;           // a field with values of the pair: reductions, indices
  bool reads_amplitude = true, reads_coef = true;  // a fold need not
  bool symmetric = false;

  /// The formula with the sides swapped (made once).
  const Prepared& swapped() const;
  /// The derivative by x as a field (made once).
  const Expr& field() const;
  /// That at one feature, which row and col give: [m, n] = φ(row[m], col[n], pair values of (m, n)) (made once). Null
  /// where φ reads the feature's weight or row or col themselves, or not all that f reads.
  const Formula* of_feature() const;

  /// Whether gradients by w are made of those by the points (plan/backward/weight_form.h; found once).
  bool has_weight_form() const;

  /// What ways of computing it look for (found once).
  const plan::Forms& forms() const;

  /// The formula with its exponents bound to these numbers; recent ones are kept.
  std::shared_ptr<const Prepared> bound(const std::vector<double>& values) const;

  mutable ops::LastProgram last_program;

 private:
  mutable Once swap_once_, field_once_, feature_once_, weight_once_, forms_once_;
  mutable std::unique_ptr<Prepared> swapped_;
  mutable Expr field_;
  mutable std::unique_ptr<Formula> of_feature_;
  mutable bool has_weight_form_ = false;
  mutable plan::Forms forms_;
  mutable RecentCache<Prepared> bound_{64};
};

}  // namespace mercer
