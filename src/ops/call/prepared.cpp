#include "ops/call/prepared.h"

#include <cstring>

#include "core/error.h"
#include "ir/passes/fold.h"
#include "ir/passes/log_power.h"
#include "ir/passes/split.h"
#include "plan/backward/weight_form.h"

namespace mercer {
namespace {

void add_distinct(std::vector<Expr>& list, const Expr& e) {
  for (const Expr& known : list)
    if (same(known, e)) return;
  list.push_back(e);
}

std::vector<Expr> params_of(const Expr& expression) {
  std::vector<Expr> params;
  ir::for_each(expression, [&](const Expr& e) {
    if (e->op == ir::Op::param) add_distinct(params, e);
  });
  return params;
}

bool contains(const Expr& expression, const Expr& part) {
  bool found = false;
  ir::for_each(expression, [&](const Expr& e) { found = found || same(e, part); });
  return found;
}

/// Powers with a number as exponent have faster programs than powers in general.
std::vector<Expr> exponents_of(const Expr& expression) {
  std::vector<Expr> exponents;
  ir::ExprMap<bool> nonnegative;
  ir::for_each(expression, [&](const Expr& e) {
    const bool power = e->op == ir::Op::pow;
    const Expr exponent = power ? e->args[1] : ir::read_log_power(e, nonnegative).exponent;
    if (exponent.empty() || !(power || ir::is_uniform(exponent))) return;
    for (const Expr& p : params_of(exponent)) add_distinct(exponents, p);
  });
  return exponents;
}

}  // namespace

std::shared_ptr<const cpu::PairProgram> ops::LastProgram::find(const Problem& problem) {
  if (busy_.test_and_set(std::memory_order_acquire)) return nullptr;
  constexpr int kHits = 64;  // the cache is asked now and then: it forgets what nobody asks it for
  auto found = problem == problem_ && ++hits_ % kHits != 0 ? program_.lock() : nullptr;
  busy_.clear(std::memory_order_release);
  return found;
}

void ops::LastProgram::keep(const Problem& problem, const std::shared_ptr<const cpu::PairProgram>& program) {
  if (busy_.test_and_set(std::memory_order_acquire)) return;
  problem_ = problem;
  program_ = program;
  busy_.clear(std::memory_order_release);
}

Formula::Prepared::Prepared(const Expr& given, ir::Form of)
    : form(of), is_field(of != ir::Form::pairs), is_fold(of == ir::Form::fold) {
  require(!given.empty(), "formula: must not be empty.");
  if (is_fold) ir::verify_fold(given);
  else ir::verify(given, form);
  const Expr read = is_fold ? ir::with_fold_leaves(given) : given;
  expression = ir::with_log_powers(ir::simplify(read));
  // What the formula names may be given, also what a rule removed.
  names = ir::uses(given);
  params = params_of(read);
  exponents = exponents_of(expression);
  reads_pairs = is_fold ? ir::fold_reads_pairs(expression) : is_field && ir::reads_pairs(expression);
  uses = ir::uses(expression);
  symmetric = !is_field && ir::is_symmetric(expression);
  key = is_fold ? ir::with_fold_names(expression).to_text() : expression.to_text();
  if (is_fold) {
    reads_amplitude = contains(read, ir::amplitude_leaf());
    reads_coef = contains(read, ir::coef_leaf());
  }
  const bool names_no_more = names.w == uses.w && names.row == uses.row && names.col == uses.col &&
                             params.size() == params_of(expression).size();
  written = names_no_more && !is_fold ? expression : given;
}

const Formula::Prepared& Formula::Prepared::swapped() const {
  swap_once_.call([this] { swapped_ = std::make_unique<Prepared>(ir::swap_sides(expression), form); });
  return *swapped_;
}

const Expr& Formula::Prepared::field() const {
  field_once_.call([this] { field_ = ir::simplify(differentiate(expression, points().x)); });
  return field_;
}

const Formula* Formula::Prepared::of_feature() const {
  feature_once_.call([this] {
    ir::ExprMap<Expr> by, without;
    const Expr phi = ir::pin_compared({field()})[0];
    ir::for_each(phi, [&](const Expr& e) {
      if (!ir::is_reduction(e->op)) return;
      by[e] = e;  // they read the points, not a feature
      without[e] = 0.0;
    });
    if (uses.row || uses.col || ir::uses(ir::substitute(phi, without)).w) return;
    by[points().x] = row_value();
    by[points().z] = col_value();
    auto formula = std::make_unique<Formula>(ir::substitute(phi, by));
    const Prepared& prepared = formula->prepared();  // what it does not read, a caller may not give
    if (prepared.uses.w == uses.w && prepared.params.size() == params.size()) of_feature_ = std::move(formula);
  });
  return of_feature_.get();
}

bool Formula::Prepared::has_weight_form() const {
  weight_once_.call([this] { has_weight_form_ = !is_field && bool(plan::weight_form(expression)); });
  return has_weight_form_;
}

const plan::Forms& Formula::Prepared::forms() const {
  forms_once_.call([this] { forms_ = plan::forms_of(expression); });
  return forms_;
}

std::shared_ptr<const Formula::Prepared> Formula::Prepared::bound(const std::vector<double>& values) const {
  std::string bits(values.size() * sizeof(double), '\0');
  std::memcpy(bits.data(), values.data(), bits.size());
  return bound_.get(bits, [&] {
    ir::ExprMap<Expr> numbers;
    for (std::size_t p = 0; p < exponents.size(); ++p) numbers[exponents[p]] = Expr(values[p]);
    return std::make_shared<const Prepared>(ir::substitute(expression, numbers), form);
  });
}

Formula::Formula(const Expr& expression) : prepared_(std::make_shared<const Prepared>(expression)) {}
Formula::Formula(std::string_view text) : Formula(parse(text)) {}
Formula Formula::field(const Expr& phi) { return Formula(std::make_shared<const Prepared>(phi, ir::Form::field)); }
Formula Formula::fold(const Expr& reduction) {
  require(!reduction.empty(), "gradient_field: must not be empty.");
  ir::verify_fold(reduction);
  if (const Expr phi = ir::field_of_fold(reduction); !phi.empty()) return field(phi);
  return Formula(std::make_shared<const Prepared>(reduction, ir::Form::fold));
}
const Expr& Formula::expression() const { return prepared_->expression; }
bool Formula::symmetric() const { return prepared_->symmetric; }

}  // namespace mercer
