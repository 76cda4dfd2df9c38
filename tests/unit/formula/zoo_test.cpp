// Every row of the zoo against a direct loop in double: the definitions of SciPy, scikit-learn and the papers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ir/expr/evaluate.h"
#include "ir/expr/syntax.h"
#include "ir/passes/passes.h"
#include "mercer/error.h"
#include "mercer/zoo.h"

namespace mercer {
namespace {

using Vec = std::vector<double>;
using Values = std::map<std::string, double>;
using Reference = std::function<double(const Vec& x, const Vec& z, const Vec& w)>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kPi = std::numbers::pi;

template <class F>
double total(const Vec& x, F term) {
  double sum = 0;
  for (std::size_t k = 0; k < x.size(); ++k) sum += term(k);
  return sum;
}

double dot(const Vec& x, const Vec& z, const Vec& w) { return total(x, [&](auto k) { return w[k] * x[k] * z[k]; }); }
double sq(double t) { return t * t; }

double norm(const Vec& x, const Vec& z, const Vec& w, double p) {
  if (std::isinf(p)) {
    double most = 0;
    for (std::size_t k = 0; k < x.size(); ++k) most = std::max(most, w[k] > 0 ? std::fabs(x[k] - z[k]) : 0.0);
    return most;
  }
  const double sum =
      total(x, [&](auto k) { return w[k] * (p == 0 ? x[k] != z[k] : std::pow(std::fabs(x[k] - z[k]), p)); });
  return p == 0 ? sum : std::pow(sum, 1 / p);
}

Reference lp(double p) {
  return [p](const Vec& x, const Vec& z, const Vec& w) { return norm(x, z, w, p); };
}

/// A function of the euclidean distance.
Reference of_distance(std::function<double(double)> f) {
  return [f](const Vec& x, const Vec& z, const Vec& w) { return f(norm(x, z, w, 2)); };
}

Reference of_terms(std::function<double(double x, double z)> term, std::function<double(double)> f = nullptr) {
  return [=](const Vec& x, const Vec& z, const Vec& w) {
    const double sum = total(x, [&](auto k) { return w[k] * term(x[k], z[k]); });
    return f ? f(sum) : sum;
  };
}

double cosine(const Vec& x, const Vec& z, const Vec& w) {
  return dot(x, z, w) / std::sqrt(dot(x, x, w) * dot(z, z, w));
}

double correlation(Vec x, Vec z, const Vec& w) {
  const double all = std::accumulate(w.begin(), w.end(), 0.0);
  for (Vec* v : {&x, &z}) {
    const double mean = total(*v, [&](auto k) { return w[k] * (*v)[k]; }) / all;
    for (double& t : *v) t -= mean;
  }
  return 1 - cosine(x, z, w);
}

/// The great circle's angle by the vectors of the unit sphere, for w = (1, 0).
double haversine(const Vec& x, const Vec& z, const Vec&) {
  if (x.size() != 2) return std::nan("");
  const double a[] = {std::cos(x[0]) * std::cos(x[1]), std::cos(x[0]) * std::sin(x[1]), std::sin(x[0])};
  const double b[] = {std::cos(z[0]) * std::cos(z[1]), std::cos(z[0]) * std::sin(z[1]), std::sin(z[0])};
  double apart = 0, together = 0;
  for (int i = 0; i < 3; ++i) apart += sq(a[i] - b[i]), together += sq(a[i] + b[i]);
  return 2 * std::atan2(std::sqrt(apart), std::sqrt(together));
}

/// The product of the counts of features in x alone and in z alone counts.
double yule(const Vec& x, const Vec& z, const Vec& w) {
  const auto count = [&](bool in_x, bool in_z) {
    return total(x, [&](auto k) { return w[k] * ((x[k] != 0) == in_x && (z[k] != 0) == in_z); });
  };
  const double half = count(true, false) * count(false, true);
  return half == 0 ? 0 : 2 * half / (count(true, true) * count(false, false) + half);
}

/// Counts of features in both, in one and in neither, for a dissimilarity of sets.
Reference of_sets(std::function<double(double both, double one, double neither)> f) {
  return [f](const Vec& x, const Vec& z, const Vec& w) {
    double both = 0, one = 0, neither = 0;
    for (std::size_t k = 0; k < x.size(); ++k) (x[k] && z[k] ? both : x[k] || z[k] ? one : neither) += w[k];
    return one == 0 ? 0 : f(both, one, neither);
  };
}

double jensenshannon(const Vec& x, const Vec& z, const Vec&) {
  const double sx = std::accumulate(x.begin(), x.end(), 0.0), sz = std::accumulate(z.begin(), z.end(), 0.0);
  const auto part = [](double p, double m) { return p == 0 ? 0 : p * std::log(p / m); };
  const double js = total(x, [&](auto k) {
    const double p = x[k] / sx, q = z[k] / sz, m = (p + q) / 2;
    return part(p, m) + part(q, m);
  });
  return std::sqrt(std::max(js, 0.0) / 2);
}

double angle(const Vec& x, const Vec& z, const Vec& w) {
  const double c = cosine(x, z, w);
  return std::isnan(c) ? kPi / 2 : std::acos(std::clamp(c, -1.0, 1.0));
}

Reference arc_cosine(int degree) {
  return [degree](const Vec& x, const Vec& z, const Vec& w) {
    const double t = angle(x, z, w), c = std::cos(t), s = std::sin(t);
    const double j = degree == 0   ? kPi - t
                     : degree == 1 ? s + (kPi - t) * c
                                   : 3 * s * c + (kPi - t) * (1 + 2 * c * c);
    return std::pow(std::sqrt(dot(x, x, w) * dot(z, z, w)), degree) * j / kPi;
  };
}

Reference ntk(int depth, double bias) {
  return [=](const Vec& x, const Vec& z, const Vec& w) {
    const double norms = std::sqrt(dot(x, x, w) * dot(z, z, w));
    double c = std::cos(angle(x, z, w)), tangent = norms * c + bias * bias;
    for (int layer = 1; layer < depth; ++layer) {
      const double k0 = 1 - std::acos(c) / kPi, k1 = c * k0 + std::sqrt(1 - c * c) / kPi;
      tangent = tangent * k0 + norms * k1 + bias * bias;
      c = std::min(k1, 1.0);
    }
    return tangent;
  };
}

struct Case {
  const char* name;
  Values options;
  Reference reference;
  double tolerance = 1e-12;
};

std::vector<Case> cases() {
  const auto abs_diff = [](double x, double z) { return std::fabs(x - z); };
  const auto ratio = [](double over, double under) { return over == 0 ? 0 : over / under; };
  return {
      {"euclidean", {}, lp(2)},
      {"l2", {}, lp(2)},
      {"seuclidean", {},
       [](auto& x, auto& z, auto& w) {
         return std::sqrt(total(x, [&](auto k) { return sq(x[k] - z[k]) / w[k]; }));
       }},
      {"nan_euclidean", {}, lp(2)},
      {"haversine", {}, haversine},
      {"sqeuclidean", {}, of_terms([](double x, double z) { return sq(x - z); })},
      {"cityblock", {}, lp(1)},
      {"manhattan", {}, lp(1)},
      {"chebyshev", {}, lp(kInf)},
      {"minkowski", {}, lp(2)},
      {"minkowski", {{"p", 0}}, lp(0)},
      {"minkowski", {{"p", 0.5}}, lp(0.5)},
      {"minkowski", {{"p", 1}}, lp(1)},
      {"minkowski", {{"p", 1.3}}, lp(1.3)},
      {"minkowski", {{"p", 1.5}}, lp(1.5)},
      {"minkowski", {{"p", 3}}, lp(3)},
      {"minkowski", {{"p", 4}}, lp(4)},
      {"minkowski", {{"p", kInf}}, lp(kInf)},
      {"cosine", {}, [](auto& x, auto& z, auto& w) { return 1 - cosine(x, z, w); }},
      {"correlation", {}, correlation},
      {"angular", {}, [](auto& x, auto& z, auto& w) { return angle(x, z, w) / kPi; }, 1e-8},
      {"canberra", {},
       of_terms([=](double x, double z) { return ratio(abs_diff(x, z), std::fabs(x) + std::fabs(z)); })},
      {"braycurtis", {},
       [=](auto& x, auto& z, auto& w) {
         return ratio(total(x, [&](auto k) { return w[k] * std::fabs(x[k] - z[k]); }),
                      total(x, [&](auto k) { return w[k] * std::fabs(x[k] + z[k]); }));
       }},
      {"hamming", {},
       [](auto& x, auto& z, auto& w) { return norm(x, z, w, 0) / std::accumulate(w.begin(), w.end(), 0.0); }},
      {"lorentzian", {}, of_terms([](double x, double z) { return std::log(1 + std::fabs(x - z)); })},
      {"clark", {}, of_terms([=](double x, double z) { return sq(ratio(abs_diff(x, z), std::fabs(x) + std::fabs(z))); },
                             [](double s) { return std::sqrt(s); })},
      {"soergel", {},
       [=](auto& x, auto& z, auto& w) {
         return ratio(norm(x, z, w, 1), total(x, [&](auto k) { return std::max(x[k], z[k]); }));
       }},
      {"chi2", {}, of_terms([=](double x, double z) { return ratio(sq(x - z), x + z); })},
      {"hellinger", {}, of_terms([](double x, double z) { return sq(std::sqrt(x) - std::sqrt(z)); },
                                 [](double s) { return std::sqrt(s / 2); })},
      {"jensenshannon", {}, jensenshannon, 1e-7},
      {"kl_divergence", {},
       of_terms([](double x, double z) { return x == 0 ? z : x * std::log(x / z) - x + z; })},
      {"itakura_saito", {}, of_terms([](double x, double z) { return x / z - std::log(x / z) - 1; })},
      {"jaccard", {}, of_sets([](double both, double one, double) { return one / (both + one); })},
      {"dice", {}, of_sets([](double both, double one, double) { return one / (2 * both + one); })},
      {"rogerstanimoto", {},
       of_sets([](double both, double one, double neither) { return 2 * one / (both + neither + 2 * one); })},
      {"sokalsneath", {}, of_sets([](double both, double one, double) { return 2 * one / (both + 2 * one); })},
      {"yule", {}, yule},
      {"russellrao", {},
       [](auto& x, auto& z, auto& w) {
         return 1 - total(x, [&](auto k) { return w[k] * (x[k] && z[k]); }) /
                        std::accumulate(w.begin(), w.end(), 0.0);
       }},
      {"dot", {}, dot},
      {"cosine_similarity", {}, cosine},
      {"polynomial", {{"degree", 1}},
       [](auto& x, auto& z, auto& w) { return dot(x, z, w) + 1; }},
      {"polynomial", {{"degree", 3}, {"gamma", 0.5}, {"coef0", 2}},
       [](auto& x, auto& z, auto& w) { return std::pow(0.5 * dot(x, z, w) + 2, 3); }, 1e-11},
      {"sigmoid", {{"gamma", 0.1}}, [](auto& x, auto& z, auto& w) { return std::tanh(0.1 * dot(x, z, w) + 1); }},
      {"arc_cosine", {{"degree", 0}}, arc_cosine(0), 1e-7},
      {"arc_cosine", {}, arc_cosine(1)},
      {"arc_cosine", {{"degree", 2}}, arc_cosine(2)},
      {"ntk_relu", {{"depth", 1}, {"bias", 0.5}}, ntk(1, 0.5)},
      {"ntk_relu", {}, ntk(2, 0), 1e-7},
      {"ntk_relu", {{"depth", 5}, {"bias", 0.3}}, ntk(5, 0.3), 1e-7},
      {"intersection", {}, of_terms([](double x, double z) { return std::min(x, z); })},
      {"bhattacharyya", {}, of_terms([](double x, double z) { return std::sqrt(x * z); })},
      {"laplace", {{"bandwidth", 2}}, [](auto& x, auto& z, auto& w) { return std::exp(-norm(x, z, w, 1) / 2); }},
      {"laplace", {{"p", 2}}, of_distance([](double d) { return std::exp(-d); })},
      {"laplace", {{"p", 0.7}, {"bandwidth", 9}},
       [](auto& x, auto& z, auto& w) { return std::exp(-norm(x, z, w, 0.7) / 9); }},
      {"gauss", {{"bandwidth", 3}}, of_distance([](double d) { return std::exp(-d * d / 18); })},
      {"gauss", {{"p", 1}, {"bandwidth", 5}},
       [](auto& x, auto& z, auto& w) { return std::exp(-sq(norm(x, z, w, 1)) / 50); }},
      {"rbf", {{"gamma", 0.3}}, of_distance([](double d) { return std::exp(-0.3 * d * d); })},
      {"matern12", {{"bandwidth", 2}}, of_distance([](double d) { return std::exp(-d / 2); })},
      {"matern32", {{"bandwidth", 2}}, of_distance([](double d) {
         const double r = std::sqrt(3.0) * d / 2;
         return (1 + r) * std::exp(-r);
       })},
      {"matern52", {{"bandwidth", 2}}, of_distance([](double d) {
         const double r = std::sqrt(5.0) * d / 2;
         return (1 + r + r * r / 3) * std::exp(-r);
       })},
      {"rational_quadratic", {{"alpha", 1.5}, {"bandwidth", 2}},
       of_distance([](double d) { return std::pow(1 + d * d / 12, -1.5); })},
      {"periodic", {{"period", 3}, {"bandwidth", 2}},
       of_terms([](double x, double z) { return sq(std::sin(kPi * (x - z) / 3)); },
                [](double s) { return std::exp(-s / 2); })},
      {"cauchy", {{"bandwidth", 2}}, of_distance([](double d) { return 1 / (1 + d * d / 4); })},
      {"multiquadric", {{"bandwidth", 2}}, of_distance([](double d) { return std::sqrt(1 + d * d / 4); })},
      {"inverse_multiquadric", {{"bandwidth", 2}}, of_distance([](double d) { return 1 / std::sqrt(1 + d * d / 4); })},
      {"thin_plate", {}, of_distance([](double d) { return d == 0 ? 0 : d * d * std::log(d); }), 1e-11},
      {"product_laplace", {{"p", 1.2}, {"bandwidth", 4}},
       of_terms([](double x, double z) { return std::pow(std::fabs(x - z), 1.2); },
                [](double s) { return std::exp(-s / std::pow(4.0, 1.2)); })},
      {"product_laplace", {}, [](auto& x, auto& z, auto& w) { return std::exp(-norm(x, z, w, 1)); }},
      {"lpq", {{"p", 1.3}, {"q", 0.8}, {"bandwidth", 4}},
       [](auto& x, auto& z, auto& w) { return std::exp(-std::pow(norm(x, z, w, 1.3) / 4, 0.8)); }},
      {"sum_power_laplace", {{"p", 1.2}, {"bandwidth", 2}, {"const_mix", 0.25}, {"power", 3}},
       [](auto& x, auto& z, auto&) {
         const double sum =
             total(x, [&](auto k) { return std::exp(-std::pow(std::fabs(x[k] - z[k]) / 2, 1.2)); });
         return std::pow(0.75 * sum / static_cast<double>(x.size()) + 0.25, 3);
       }},
      {"exp_power", {{"p", 2}, {"bandwidth", 3}},
       of_terms([](double x, double z) { return std::exp(-sq(x - z) / 3); })},
      {"dispersal", {{"gamma", 1.4}, {"bandwidth", 3}},
       of_distance([](double d) { return std::exp(-std::pow(d, 1.4) / 3); })},
      {"chi2_kernel", {{"gamma", 0.2}},
       of_terms([=](double x, double z) { return ratio(sq(x - z), x + z); },
                [](double s) { return std::exp(-0.2 * s); })},
  };
}

/// Pairs with equal features, zeros on one and on both sides, and coincident points, inside the entry's domain.
std::vector<std::pair<Vec, Vec>> pairs(const std::string& domain) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  const auto value = [&] {
    const double t = normal(random);
    return domain == "real" ? t : std::fabs(t) + (domain == "positive" ? 0.1 : 0.0);
  };
  std::vector<std::pair<Vec, Vec>> made;
  for (std::size_t features : {1, 2, 3, 7, 33}) {
    for (int repeat = 0; repeat < 4; ++repeat) {
      Vec x(features), z(features);
      std::generate(x.begin(), x.end(), value);
      std::generate(z.begin(), z.end(), value);
      if (features > 2) z[1] = x[1];
      if (features > 2 && domain != "positive") x[2] = 0;
      if (features > 6 && domain != "positive") x[4] = z[4] = z[5] = 0;
      if (repeat == 3) z = x;
      made.emplace_back(x, z);
    }
  }
  return made;
}

Vec some_weights(std::size_t features) {
  Vec w(features);
  for (std::size_t k = 0; k < features; ++k) w[k] = k % 5 == 3 ? 0 : 0.25 + static_cast<double>(k % 7);
  return w;
}

/// What a row with a meaning of w of its own reads.
Vec own_weights(const ZooEntry& entry, std::size_t features) {
  Vec w(features, entry.name == "haversine" ? 0.0 : 0.75);
  if (entry.name == "haversine" && features > 0) w[0] = 1;
  return w;
}

double value_of(const Expr& e, const Vec& x, const Vec& z, const Vec& w) {
  ir::PairInputs inputs;
  inputs.x = x.data();
  inputs.z = z.data();
  inputs.w = w.data();
  inputs.features = static_cast<std::int64_t>(x.size());
  const Values none;
  inputs.params = &none;
  return ir::evaluate(e, inputs);
}

void expect_close(double got, double want, double tolerance, const std::string& what) {
  if (std::isnan(want)) return;  // where the direct loop has no answer, the row may have one
  if (got == want) return;  // infinities
  EXPECT_NEAR(got, want, tolerance * (1 + std::fabs(want))) << what;
}

TEST(Zoo, EveryRowHasAReference) {
  std::set<std::string> known;
  for (const Case& c : cases()) {
    ASSERT_NE(find_zoo_entry(c.name), nullptr) << c.name;
    known.insert(find_zoo_entry(c.name)->name);
  }
  for (const ZooEntry& entry : zoo_table()) EXPECT_TRUE(known.contains(entry.name)) << entry.name;
}

TEST(Zoo, ValuesMatchADirectLoop) {
  for (const Case& c : cases()) {
    const ZooEntry& entry = *find_zoo_entry(c.name);
    for (bool weighted : {false, true}) {
      if (weighted && !entry.weighted) continue;
      const Expr e = zoo(c.name, c.options, weighted);
      for (const auto& [x, z] : pairs(entry.domain)) {
        const bool flat = entry.name == "correlation" && x.size() == 1;  // no correlation of one feature
        if (flat) continue;
        const Vec w = weighted                     ? some_weights(x.size())
                      : entry.w_meaning.empty() ? Vec(x.size(), 1.0)
                                                : own_weights(entry, x.size());
        expect_close(value_of(e, x, z, w), c.reference(x, z, w), c.tolerance, entry.name + ": " + e.to_text());
      }
    }
  }
}

TEST(Zoo, CoincidentPointsAreAtDistanceZero) {
  for (const ZooEntry& entry : zoo_table()) {
    if (!entry.is_metric || entry.name == "russellrao") continue;
    for (bool weighted : {false, true}) {
      if (weighted && !entry.weighted) continue;
      const Expr e = zoo(entry.name, {}, weighted);
      for (const auto& [x, ignored] : pairs(entry.domain)) {
        if (entry.name == "correlation" && x.size() == 1) continue;
        const Vec w = entry.w_meaning.empty() ? some_weights(x.size()) : own_weights(entry, x.size());
        EXPECT_EQ(value_of(e, x, x, w), 0) << e.to_text();
      }
    }
  }
}

TEST(Zoo, NearDuplicatesKeepTheirDigits) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(0.5, 2), nudge(-1e-7, 1e-7);
  for (const ZooEntry& entry : zoo_table()) {
    if (!entry.is_metric) continue;
    const Expr e = zoo(entry.name);
    Vec x(16), z(16);
    for (std::size_t k = 0; k < x.size(); ++k) x[k] = uniform(random), z[k] = x[k] + nudge(random);
    const Vec w = own_weights(entry, x.size());
    ir::PairInputs inputs{.x = x.data(), .z = z.data(), .w = w.data(), .features = 16};
    const auto exact = static_cast<double>(ir::evaluate_wide(e, inputs));
    EXPECT_NEAR(ir::evaluate(e, inputs), exact, 1e-8 * std::fabs(exact)) << e.to_text();
  }
}

TEST(Zoo, NoFeatures) {
  const Vec none;
  for (double p : {0.0, 0.5, 1.0, 2.0, 3.0, kInf}) {
    EXPECT_EQ(value_of(minkowski(p), none, none, none), 0) << p;
    EXPECT_EQ(value_of(minkowski(p, true), none, none, none), 0) << p;
  }
  EXPECT_EQ(value_of(zoo("laplace"), none, none, none), 1);
  EXPECT_EQ(value_of(zoo("dot"), none, none, none), 0);
}

TEST(Zoo, NanMakesThePairNan) {
  const Vec x{1, std::nan(""), 2}, z{1, 1, 3}, ones{1, 1, 1};
  for (double p : {0.0, 0.5, 1.0, 1.3, 2.0, kInf}) EXPECT_TRUE(std::isnan(value_of(minkowski(p), x, z, ones))) << p;
}

TEST(Zoo, MissingFeaturesAreSkipped) {
  const double missing = std::nan("");
  const Vec x{1, missing, 2, 4}, z{3, 1, missing, 5}, none{missing, missing, 1, missing};
  const Expr e = zoo("nan_euclidean");
  EXPECT_NEAR(value_of(e, x, z, x), std::sqrt(4 / 2.0 * 5), 1e-15);
  EXPECT_TRUE(std::isnan(value_of(e, none, z, x)));
}

TEST(Zoo, TheHaversineKeepsItsDigits) {
  const Expr e = zoo("haversine");
  const Vec w{1, 0}, here{0.7, 1.25}, near{0.7 + 1e-9, 1.25}, opposite{-0.7 + 1e-9, 1.25 - kPi};
  EXPECT_NEAR(value_of(e, here, near, w), near[0] - here[0], 1e-24);
  EXPECT_NEAR(kPi - value_of(e, here, opposite, w), opposite[0] + here[0], 1e-15);
}

TEST(Zoo, TextsParseVerifyAndPrintBack) {
  for (const ZooEntry& entry : zoo_table()) {
    for (bool weighted : {false, true}) {
      if (weighted && !entry.weighted) continue;
      const Expr e = parse(weighted ? entry.weighted_text : entry.text);
      EXPECT_NO_THROW(ir::verify(e)) << entry.name;
      EXPECT_TRUE(same(parse(e.to_text()), e)) << entry.name;
      EXPECT_EQ(ir::uses(e).w, weighted || !entry.w_meaning.empty()) << entry.name;
    }
    EXPECT_EQ(entry.weighted, !entry.weighted_text.empty()) << entry.name;
    EXPECT_FALSE(entry.source.empty()) << entry.name;
    EXPECT_TRUE(entry.domain == "real" || entry.domain == "nonnegative" || entry.domain == "positive") << entry.name;
  }
}

TEST(Zoo, SymmetricExceptDivergences) {
  const std::set<std::string> directed{"kl_divergence", "itakura_saito"};
  for (const Case& c : cases()) {
    const ZooEntry& entry = *find_zoo_entry(c.name);
    for (bool weighted : {false, true}) {
      if (weighted && !entry.weighted) continue;
      const Expr e = zoo(c.name, c.options, weighted);
      EXPECT_EQ(ir::is_symmetric(e), !directed.contains(entry.name)) << entry.name << ": " << e.to_text();
    }
  }
}

TEST(Zoo, NamesAreDistinctAndNotReserved) {
  std::set<std::string> names;
  for (const ZooEntry& entry : zoo_table()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    for (const std::string& alias : entry.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
    for (const ZooOption& option : entry.options) EXPECT_FALSE(ir::is_reserved(option.name)) << option.name;
    EXPECT_EQ(find_zoo_entry(entry.name), &entry);
    for (const std::string& alias : entry.aliases) EXPECT_EQ(find_zoo_entry(alias), &entry);
  }
}

TEST(Zoo, OptionsThatAreNotStaticStayParameters) {
  const auto open = parameters(zoo("laplace", {{"p", 2}, {"bandwidth", 3}}));
  ASSERT_EQ(open.size(), 1u);
  EXPECT_EQ(open[0].first, "bandwidth");
  EXPECT_EQ(open[0].second, 3);
  EXPECT_EQ(zoo("gauss").to_text(), "exp(-sum(square(x - z))/(2*param(bandwidth, 1)^2))");
  for (const ZooEntry& entry : zoo_table()) {
    for (const auto& [name, value] : parameters(zoo(entry.name))) {
      const auto option = std::find_if(entry.options.begin(), entry.options.end(),
                                       [&, n = name](const ZooOption& o) { return o.name == n && !o.is_static; });
      ASSERT_NE(option, entry.options.end()) << entry.name << " " << name;
      EXPECT_EQ(value, option->default_value);
    }
  }
}

TEST(Zoo, ShortTexts) {
  EXPECT_EQ(minkowski(0).to_text(), "sum(abs(sign(x - z)))");
  EXPECT_EQ(minkowski(0.5).to_text(), "square(sum(sqrt(abs(x - z))))");
  EXPECT_EQ(minkowski(1).to_text(), "sum(abs(x - z))");
  EXPECT_EQ(minkowski(2).to_text(), "sqrt(sum(square(x - z)))");
  EXPECT_EQ(minkowski(1.3).to_text(), "sum(abs(x - z)^1.3)^(1/1.3)");
  EXPECT_EQ(minkowski(3, false, false).to_text(), "sum(abs(x - z)^3)");
  EXPECT_EQ(minkowski(2, true, false).to_text(), "sum(w*square(x - z))");
  EXPECT_EQ(minkowski(kInf).to_text(), "max(max(abs(x - z)), 0)");
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    return e.what();
  }
  return "(no error)";
}

TEST(Zoo, Refusals) {
  EXPECT_EQ(refusal([] { zoo("eucldean"); }),
            "zoo: there is no metric or kernel of this name; did you mean 'euclidean'? Received 'eucldean'.");
  EXPECT_EQ(refusal([] { zoo("laplacian"); }),
            "zoo: 'laplacian' names two kernels; write laplace (p=1) or matern12 (p=2). Received 'laplacian'.");
  EXPECT_EQ(refusal([] { zoo("mahalanobis"); }),
            "zoo: a formula cannot hold the matrix of 'mahalanobis'; call cdist(x, z, metric=\"mahalanobis\", VI=...). "
            "Received 'mahalanobis'.");
  EXPECT_TRUE(refusal([] { zoo("frobnicate"); }).starts_with(
      "zoo: there is no metric or kernel of this name. Received 'frobnicate'; known are euclidean, sqeuclidean, "));
  EXPECT_EQ(refusal([] { zoo("gauss", {{"sigma", 2}}); }), "gauss: its options are: p, bandwidth. Received 'sigma'.");
  EXPECT_EQ(refusal([] { zoo("cosine", {{"p", 2}}); }), "cosine: its options are: none. Received 'p'.");
  EXPECT_EQ(refusal([] { zoo("jensenshannon", {}, true); }),
            "jensenshannon: it has no weighted form. Received weights.");
  EXPECT_EQ(refusal([] { minkowski(-1); }), "minkowski: p must lie in [0, inf]. Received p = -1.");
  EXPECT_EQ(refusal([] { minkowski(std::nan("")); }), "minkowski: p must lie in [0, inf]. Received p = nan.");
  EXPECT_EQ(refusal([] { zoo("product_laplace", {{"p", kInf}}); }),
            "zoo: p must be positive and finite. Received p = inf.");
  EXPECT_EQ(refusal([] { zoo("arc_cosine", {{"degree", 1.5}}); }),
            "zoo: degree must be a whole number from 0 to 2. Received 1.5.");
}

}  // namespace
}  // namespace mercer
