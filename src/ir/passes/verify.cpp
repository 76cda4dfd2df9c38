// What a formula must be before any other pass sees it.
//
// A node is checked in each place where it stands: the place says which leaves have a meaning there. Each distinct
// (node, place) is visited once.
#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "core/error.h"
#include "ir/expr/ops.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

struct Place {
  const char* name;         // for messages
  bool features = false;    // x, z, w have a meaning
  bool in_reduction = false;
  int states = 0;           // of the reduce whose combine, merge or finish this is
  bool incoming = false;
  bool reductions = true;   // a reduction may stand here
};

bool of_x(const Uses& u) { return u.x || u.row || u.index_i; }
bool of_z(const Uses& u) { return u.z || u.col || u.index_j; }

std::size_t parts_of(const Node& n) { return n.has_merge ? 4 : 3; }

const char* name_of(Op op) {
  switch (op) {
    case Op::x: return "x";
    case Op::z: return "z";
    case Op::w: return "w";
    case Op::sum: return "sum";
    case Op::prod: return "prod";
    case Op::max_over: return "max";
    case Op::min_over: return "min";
    case Op::logsumexp: return "logsumexp";
    case Op::reduce: return "reduce";
    default: return info(op).name;
  }
}

class Verifier {
 public:
  void check(const Expr& e, const Place& p) {
    if (!seen_.insert({e.node().get(), p.name, p.states}).second) return;
    if (is_leaf(e->op)) return check_leaf(*e, p);
    if (is_reduction(e->op)) return check_reduction(e, p);
    if (e->op != Op::ptx) check_arity(*e, info(e->op).arity);
    for (const Expr& a : e->args) check(a, p);
  }

  /// A reduction over the features; or over the points, whose terms have reductions over the features of any kind.
  void check_terms(const Expr& e, bool over_features) {
    if (e->op == Op::reduce) {
      check_parts(*e);
      return check_reduce(*e, over_features);
    }
    check_arity(*e, 1);
    check(e->args[0], {.name = "the term of a reduction", .features = true, .in_reduction = over_features});
  }

 private:
  static void check_arity(const Node& n, std::size_t arity) {
    require(n.args.size() == arity, "formula: {} takes {} argument{}. Received {}.", name_of(n.op), arity,
            arity == 1 ? "" : "s", n.args.size());
  }

  static void check_leaf(const Node& n, const Place& p) {
    switch (n.op) {
      case Op::x: case Op::z: case Op::w:
        require(p.features,
                "formula: x, z and w stand inside a reduction over the features (sum, prod, max, min, logsumexp, "
                "reduce). Received {} in {}.", name_of(n.op), p.name);
        return;
      case Op::state: case Op::incoming: return check_state(n, p);
      case Op::row_stage: case Op::col_stage: case Op::accumulator: case Op::pair_value:
        fail(ErrorKind::invalid_argument,
             "formula: leaves made by later passes have no meaning in a formula. Received leaf number {}, slot {}.",
             static_cast<int>(n.op), n.slot);
      case Op::param:
        require(!n.name.empty(), "formula: a parameter needs a name. Received an empty one.");
        return;
      default: return;
    }
  }

  static void check_state(const Node& n, const Place& p) {
    const char* name = n.op == Op::state ? "state" : "incoming";
    require(p.states > 0, "formula: {} stands only inside the combine, merge or finish of reduce. Received it in {}.",
            name, p.name);
    require(n.op == Op::state || p.incoming, "formula: incoming stands only in the combine and merge of reduce. "
            "Received it in {}.", p.name);
    require(n.slot >= 0 && n.slot < p.states, "formula: {}(s) needs s below the number of states, {}. Received {}.",
            name, p.states, n.slot);
  }

  void check_reduction(const Expr& e, const Place& p) {
    require(p.reductions, "formula: no reduction stands in {}. Received {}(...).", p.name, name_of(e->op));
    if (p.in_reduction) check_one_sided(e);
    check_terms(e, true);
  }

  static void check_one_sided(const Expr& e) {
    const Uses u = uses(e);
    require(!of_x(u) || !of_z(u),
            "formula: a reduction inside another one has one side only, x or z, so that it is computed once per point. "
            "Received {}(...) of both sides inside a reduction. If it does not vary with the outer feature, move it "
            "outside.", name_of(e->op));
  }

  static void check_parts(const Node& n) {
    const std::size_t expected = n.slot > 0 ? parts_of(n) * n.slot + 1 : 0;
    require(expected > 0 && n.args.size() == expected,
            "reduce: term, combine, identity and merge have one part per state, and one finish. Received {} parts for "
            "{} states.", n.args.size(), n.slot);
    require(!n.associative || n.has_merge, "reduce: an associative reduction needs `merge`. Received none.");
  }

  void check_reduce(const Node& n, bool over_features) {
    const std::array<Place, 4> places{{
        {.name = "the term of reduce", .features = true, .in_reduction = over_features},
        {.name = "the combine of reduce", .features = true, .in_reduction = true, .states = n.slot, .incoming = true,
         .reductions = false},
        {.name = "the identity of reduce", .reductions = false},
        {.name = "the merge of reduce", .states = n.slot, .incoming = true, .reductions = false},
    }};
    for (std::size_t part = 0; part < parts_of(n); ++part) {
      for (std::int32_t s = 0; s < n.slot; ++s) check(n.args[part * n.slot + s], places[part]);
    }
    check(n.args.back(), {.name = "the finish of reduce", .states = n.slot, .reductions = false});
  }

  std::set<std::tuple<const Node*, std::string, int>> seen_;
};

}  // namespace

void verify(const Expr& e, Form form) {
  require(!e.empty(), "formula: an expression is needed. Received an empty one.");
  if (form == Form::fold) return Verifier().check_terms(e, false);
  // A field's reductions may be two-sided: they are values of the pair, not of the feature.
  Verifier().check(e, {.name = "an expression outside every reduction", .features = form == Form::field});
}

}  // namespace mercer::ir
