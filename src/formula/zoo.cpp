// The named metrics and kernels, one row of text each. To add one, add a row: the parser, every back end, gradients,
// Python, the command line, tests and documentation follow from it.
//
// Conventions of the rows:
//   - A distance is a sum of non-negative terms in differences, never an expansion of a square: coincident points give
//     exactly 0 and near-duplicates keep their digits. Cosine and correlation are half the squared distance of unit
//     vectors for the same reason.
//   - 0/0 in a term or of the two sums counts as 0: the denominator is replaced by 1 where it vanishes.
//   - The weighted text is SciPy's w= for the metrics that have one there. A text that reads w says what w must hold.
//   - A symmetric formula is written so that swapping x and z leaves its text alone up to even and commutative parts.
#include "mercer/zoo.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/system/mutex.h"
#include "formula/suggest.h"

namespace mercer {
namespace {

using Values = std::map<std::string, double>;

/// A row of the table. Rows with static options write their text for the values of these.
struct Row {
  ZooEntry entry;
  std::string (*text)(const Values& options, bool weighted) = nullptr;
};

constexpr bool kMetric = true, kKernel = false;
constexpr bool kWeighted = true, kUnweighted = false;
constexpr bool kStatic = true;

// ---- norms ---------------------------------------------------------------------------------------------------------

/// sum |x - z|^p without its root, for 0 <= p < inf.
std::string power_sum(double p, bool weighted) {
  std::string term = p == 0     ? "abs(sign(x - z))"  // not x != z: a NaN must make the pair NaN
                     : p == 1   ? "abs(x - z)"
                     : p == 2   ? "square(x - z)"
                     : p == 0.5 ? "sqrt(abs(x - z))"
                                : fmt::format("abs(x - z)^{}", p);
  return fmt::format("sum({}{})", weighted ? "w*" : "", term);
}

std::string norm(double p, bool weighted) {
  // The outer maximum makes the distance of points without features 0. SciPy's weights only select, at p = inf.
  if (std::isinf(p)) return weighted ? "max(max(where(w > 0, abs(x - z), 0)), 0)" : "max(max(abs(x - z)), 0)";
  const std::string sum = power_sum(p, weighted);
  if (p == 0 || p == 1) return sum;
  if (p == 2) return "sqrt(" + sum + ")";
  if (p == 0.5) return "square(" + sum + ")";
  return fmt::format("{}^(1/{})", sum, p);
}

void require_norm(double p) { require(p >= 0, "minkowski: p must lie in [0, inf]. Received p = {}.", p); }

double norm_of(const Values& options) {
  const double p = options.at("p");
  require_norm(p);
  return p;
}

/// A norm to the power p, so without root and power where they cancel.
std::string norm_power(double p) {
  return std::isinf(p) ? norm(p, kUnweighted) : power_sum(p, kUnweighted);
}

int whole(const Values& options, const char* name, int least, int most) {
  const double value = options.at(name);
  require(value >= least && value <= most && value == std::floor(value),
          "zoo: {} must be a whole number from {} to {}. Received {}.", name, least, most, value);
  return static_cast<int>(value);
}

double finite_power(const Values& options) {
  const double p = options.at("p");
  require(p > 0 && std::isfinite(p), "zoo: p must be positive and finite. Received p = {}.", p);
  return p;
}

// ---- texts with static options -------------------------------------------------------------------------------------

std::string minkowski_text(const Values& options, bool weighted) { return norm(norm_of(options), weighted); }

std::string laplace_text(const Values& options, bool) {
  return fmt::format("exp(-{}/bandwidth)", norm(norm_of(options), kUnweighted));
}

std::string gauss_text(const Values& options, bool) {
  const double p = norm_of(options);
  return fmt::format("exp(-{}/(2*bandwidth^2))", p == 2 ? norm_power(2) : "square(" + norm(p, kUnweighted) + ")");
}

std::string product_laplace_text(const Values& options, bool) {
  const double p = finite_power(options);
  return fmt::format("exp(-{}/bandwidth{})", power_sum(p, kUnweighted), p == 1 ? "" : fmt::format("^{}", p));
}

std::string lpq_text(const Values& options, bool) {
  return fmt::format("exp(-({}/bandwidth)^q)", norm(norm_of(options), kUnweighted));
}

/// sum_k exp(-|x - z|^p/scale).
std::string exp_sum(double p, const std::string& scale) {
  const std::string sum = power_sum(p, kUnweighted);
  return fmt::format("sum(exp(-{}/{}))", sum.substr(4, sum.size() - 5), scale);
}

std::string exp_power_text(const Values& options, bool) { return exp_sum(finite_power(options), "bandwidth"); }

std::string sum_power_laplace_text(const Values& options, bool) {
  const double p = finite_power(options);
  const std::string scale = p == 1 ? "bandwidth" : fmt::format("bandwidth^{}", p);
  return fmt::format("((1 - const_mix)*{}/K + const_mix)^power", exp_sum(p, scale));
}

std::string polynomial_text(const Values& options, bool) {
  const int degree = whole(options, "degree", 1, 64);
  return degree == 1 ? "gamma*sum(x*z) + coef0" : fmt::format("(gamma*sum(x*z) + coef0)^{}", degree);
}

// The angle t between two points from the chord h of their unit vectors: cos t = 1 - 2 h^2, where acos(cos t) would
// lose half the digits of small angles. An all-zero point is at a right angle to every other.
constexpr const char* kAngle =
    "nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); "
    "q = sum(square(x/where(nx == 0, 1, nx) - z/where(nz == 0, 1, nz)))/4; "
    "h = where(nx == 0 || nz == 0, 0.5, min(q, 1)); "
    "t = 2*asin(sqrt(h)); s = 2*sqrt(h*(1 - h)); c = 1 - 2*h; ";

std::string arc_cosine_text(const Values& options, bool) {
  static constexpr const char* kTails[] = {"1 - t/pi", "nx*nz*(s + (pi - t)*c)/pi",
                                           "square(nx*nz)*(3*s*c + (pi - t)*(1 + 2*c^2))/pi"};
  return std::string(kAngle) + kTails[whole(options, "degree", 0, 2)];
}

// Let c_0 be the cosine of the points, and k0(c) = 1 - t/pi, k1(c) = c k0(c) + s/pi for the angle t, sine s of c:
//   S_0 = |x||z| c_0,  N_0 = S_0 + bias^2;   c_l = k1(c_{l-1}),  S_l = |x||z| c_l,  N_l = N_{l-1} k0 + S_l + bias^2.
// In the chord, h_l = h_{l-1} - (s - t c)/(2 pi), which does not subtract nearly equal cosines.
std::string ntk_relu_text(const Values& options, bool) {
  const int depth = whole(options, "depth", 1, 16);
  if (depth == 1) return "sum(x*z) + bias^2";
  std::string text = std::string(kAngle) + "v = nx*nz*c + bias^2; ";
  for (int layer = 1; layer < depth; ++layer) {
    if (layer > 1) text += "t = 2*asin(sqrt(h)); s = 2*sqrt(h*(1 - h)); ";
    text += "h = max(h - (s - t*c)/(2*pi), 0); c = 1 - 2*h; v = v*(1 - t/pi) + nx*nz*c + bias^2; ";
  }
  return text + "v";
}

// ---- the table -----------------------------------------------------------------------------------------------------

// Agreements and differences of points read as sets of non-zero features.
constexpr const char* kSets = "p = x != 0; q = z != 0; both = sum(p && q); one = sum(p != q); ";
constexpr const char* kWeightedSets =
    "p = x != 0; q = z != 0; both = sum(w*(p && q)); one = sum(w*(p != q)); ";

std::string sets(const char* tail) { return std::string(kSets) + tail; }
std::string weighted_sets(const char* tail) { return std::string(kWeightedSets) + tail; }

constexpr const char* kUnit = "nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); ";
constexpr const char* kWeightedUnit = "nx = sqrt(sum(w*x*x)); nz = sqrt(sum(w*z*z)); ";
// Let u = (x - z)/(x + z): log(x/z) = 2 atanh(u). Near u = 0 the first order of divergences cancels, so they are
// written with r = atanh(u) - u = u^3 (1/3 + u^2/5 + …): a polynomial through Chebyshev's nodes for u^2 <= 1/16, whose
// relative error is below 2e-15.
constexpr const char* kRatio =
    "s = x + z; u = (x - z)/where(s == 0, 1, s); v = u*u; "
    "r = u*v*fma(v, fma(v, fma(v, fma(v, fma(v, fma(v, fma(v, 0.07395269887839463, 0.06506094123632396), "
    "0.07700982152842295), 0.09090651861920544), 0.11111115233521718), 0.1428571425336631), 0.2000000000009649), "
    "0.33333333333333287); ";
// The haversine h of latitudes f and longitudes l, and 1 - h, both as sums of squares, so that the angle keeps its
// digits near 0 and near pi: with d = f - f', e = l - l' and s = f + f',
//   h = sin(d/2)^2 cos(e/2)^2 + cos(s/2)^2 sin(e/2)^2,   1 - h = cos(d/2)^2 cos(e/2)^2 + sin(s/2)^2 sin(e/2)^2.
constexpr const char* kHaversine =
    "u = abs(x - z)/2; v = (x + z)/2; a = square(sin(u)); b = square(cos(u)); sl = sum((1 - w)*a); "
    "cl = sum((1 - w)*b); h = sum(w*a)*cl + sum(w*square(cos(v)))*sl; g = sum(w*b)*cl + sum(w*square(sin(v)))*sl; "
    "2*atan2(sqrt(h), sqrt(g))";
constexpr const char* kCentred = "cx = x - mean(x); cz = z - mean(z); ";
constexpr const char* kWeightedCentred = "cx = x - sum(w*x)/sum(w); cz = z - sum(w*z)/sum(w); ";

ZooOption norm_option(double p) { return {"p", p, kStatic, "which norm: 0 to inf"}; }
ZooOption power_option(double p) { return {"p", p, kStatic, "power of the differences, positive"}; }

// name, aliases, metric?, weighted?, text, weighted text, options, source, SciPy's or scikit-learn's name, domain
std::vector<Row> make_rows() {
  const ZooOption bandwidth{"bandwidth", 1.0, false, "length at which the kernel decays"};
  const ZooOption gamma{"gamma", 1.0, false, "scale of the argument"};
  const ZooOption coef0{"coef0", 1.0, false, "constant of the argument"};
  const std::string ratio = kRatio, unit = kUnit, weighted_unit = kWeightedUnit;
  const std::string centred = kCentred, weighted_centred = kWeightedCentred;
  return {
      // Distances.
      {{"euclidean", {"l2"}, kMetric, kWeighted, "sqrt(sum(square(x - z)))", "sqrt(sum(w*square(x - z)))", {},
        "Deza & Deza, Encyclopedia of Distances", "euclidean", "real"}},
      {{"sqeuclidean", {"squared_euclidean"}, kMetric, kWeighted, "sum(square(x - z))", "sum(w*square(x - z))", {},
        "Deza & Deza, Encyclopedia of Distances", "sqeuclidean", "real"}},
      {{"seuclidean", {}, kMetric, kUnweighted, "sqrt(sum(square(x - z)*(1/w)))", "", {},
        "Deza & Deza, Encyclopedia of Distances", "seuclidean", "real", "the variance of each feature"}},
      // 0 stands for a missing feature; where all are missing, K/0 makes the pair NaN.
      {{"nan_euclidean", {}, kMetric, kUnweighted,
        "both = x == x && z == z; sqrt(sum(where(both, square(x - z), 0))*(K/sum(both)))", "", {}, "Dixon 1979",
        "nan_euclidean", "real"}},
      {{"haversine", {}, kMetric, kUnweighted, kHaversine, "", {}, "Inman 1835", "haversine", "real",
        "1 for the latitude, 0 for the longitude, in radians"}},
      {{"cityblock", {"manhattan", "l1"}, kMetric, kWeighted, "sum(abs(x - z))", "sum(w*abs(x - z))", {},
        "Deza & Deza, Encyclopedia of Distances", "cityblock", "real"}},
      {{"chebyshev", {"linf"}, kMetric, kWeighted, "max(max(abs(x - z)), 0)",
        "max(max(where(w > 0, abs(x - z), 0)), 0)", {}, "Deza & Deza, Encyclopedia of Distances", "chebyshev",
        "real"}},
      {{"minkowski", {"lp"}, kMetric, kWeighted, "sum(abs(x - z)^p)^(1/p)", "sum(w*abs(x - z)^p)^(1/p)",
        {norm_option(2)}, "Deza & Deza, Encyclopedia of Distances", "minkowski", "real"}, minkowski_text},
      {{"cosine", {}, kMetric, kWeighted, unit + "sum(square(x/nx - z/nz))/2",
        weighted_unit + "sum(w*square(x/nx - z/nz))/2", {}, "Salton & McGill 1983", "cosine", "real"}},
      {{"correlation", {"pearson"}, kMetric, kWeighted,
        centred + "nx = sqrt(sum(square(cx))); nz = sqrt(sum(square(cz))); sum(square(cx/nx - cz/nz))/2",
        weighted_centred + "nx = sqrt(sum(w*square(cx))); nz = sqrt(sum(w*square(cz))); sum(w*square(cx/nx - cz/nz))/2",
        {}, "Pearson 1895", "correlation", "real"}},
      {{"angular", {}, kMetric, kUnweighted, unit + "2*asin(min(sqrt(sum(square(x/nx - z/nz)))/2, 1))/pi", "", {},
        "Deza & Deza, Encyclopedia of Distances", "", "real"}},
      {{"canberra", {}, kMetric, kWeighted,
        "s = abs(x) + abs(z); sum(abs(x - z)/where(s == 0, 1, s))",
        "s = abs(x) + abs(z); sum(w*abs(x - z)/where(s == 0, 1, s))", {},
        "Lance & Williams 1967", "canberra", "real"}},
      {{"braycurtis", {"bray_curtis"}, kMetric, kWeighted,
        "d = sum(abs(x - z)); d/where(d == 0, 1, sum(abs(x + z)))",
        "d = sum(w*abs(x - z)); d/where(d == 0, 1, sum(w*abs(x + z)))", {}, "Bray & Curtis 1957", "braycurtis",
        "real"}},
      {{"hamming", {"matching"}, kMetric, kWeighted, "sum(x != z)/K", "sum(w*(x != z))/sum(w)", {}, "Hamming 1950",
        "hamming", "real"}},
      {{"lorentzian", {}, kMetric, kUnweighted, "sum(log1p(abs(x - z)))", "", {},
        "Deza & Deza, Encyclopedia of Distances", "", "real"}},
      {{"clark", {}, kMetric, kUnweighted,
        "s = abs(x) + abs(z); sqrt(sum(square((x - z)/where(s == 0, 1, s))))", "", {},
        "Clark 1952", "", "real"}},
      {{"soergel", {"ruzicka"}, kMetric, kUnweighted,
        "d = sum(abs(x - z)); d/where(d == 0, 1, sum(max(x, z)))", "", {},
        "Cha, Comprehensive Survey on Distance/Similarity Measures, 2007", "", "nonnegative"}},

      // Divergences of histograms and distributions.
      {{"chi2", {"chi_squared", "chisquare"}, kMetric, kUnweighted,
        "s = x + z; sum(square(x - z)/where(s == 0, 1, s))", "", {},
        "Pearson 1900; scikit-learn additive_chi2_kernel without its sign", "additive_chi2", "nonnegative"}},
      {{"hellinger", {}, kMetric, kUnweighted, "sqrt(sum(square(sqrt(x) - sqrt(z)))/2)", "", {}, "Hellinger 1909", "",
        "nonnegative"}},
      // With u = (p - q)/(p + q) a term is (p + q)/2 ((1 + u) log(1 + u) + (1 - u) log(1 - u)). Near u = 0 the first
      // order cancels, so the second form adds terms of second order only.
      {{"jensenshannon", {"js"}, kMetric, kUnweighted,
        "p = x/sum(x); q = z/sum(z); s = p + q; u = abs(p - q)/where(s == 0, 1, s); v = min(u, 0.75); "
        "sqrt(sum(s*where(u > 0.75, xlogy(1 + u, 1 + u) + xlogy(1 - u, 1 - u), "
        "log1p(-v*v) + v*(log1p(v) - log1p(-v))))/4)",
        "", {}, "Endres & Schindelin 2003", "jensenshannon", "nonnegative"}},
      // x log(x/z) - x + z: no term is negative; for distributions the last two cancel in the sum.
      {{"kl_divergence", {"kl", "kl_div"}, kMetric, kUnweighted,
        ratio + "sum(where(v > 1/16, xlogy(x, x/where(x == 0, 1, z)) - x + z, s*(v + u*r + r)))", "", {},
        "Kullback & Leibler 1951; Csiszar 1991", "kl_div", "nonnegative"}},
      {{"itakura_saito", {}, kMetric, kUnweighted,
        ratio + "sum(where(v > 1/16, x/z - log(x/z) - 1, 2*(v/(1 - u) - r)))", "", {}, "Itakura & Saito 1968", "",
        "positive"}},

      // Dissimilarities of sets: a feature is in the set when it is not 0.
      {{"jaccard", {"tanimoto"}, kMetric, kWeighted, sets("one/where(one == 0, 1, both + one)"),
        weighted_sets("one/where(one == 0, 1, both + one)"), {}, "Jaccard 1901", "jaccard", "real"}},
      {{"dice", {"sorensen"}, kMetric, kWeighted, sets("one/where(one == 0, 1, 2*both + one)"),
        weighted_sets("one/where(one == 0, 1, 2*both + one)"), {}, "Dice 1945", "dice", "real"}},
      {{"rogerstanimoto", {}, kMetric, kWeighted,
        "one = sum((x != 0) != (z != 0)); 2*one/where(one == 0, 1, K + one)",
        "one = sum(w*((x != 0) != (z != 0))); 2*one/where(one == 0, 1, sum(w) + one)", {}, "Rogers & Tanimoto 1960",
        "rogerstanimoto", "real"}},
      {{"sokalsneath", {}, kMetric, kWeighted, sets("2*one/where(one == 0, 1, both + 2*one)"),
        weighted_sets("2*one/where(one == 0, 1, both + 2*one)"), {}, "Sokal & Sneath 1963", "sokalsneath", "real"}},
      // Counts are exact, so one sum over pairs will do; weights need the four, of which r is exactly 0 where one is.
      {{"yule", {}, kMetric, kWeighted,
        "p = x != 0; q = z != 0; both = sum(p && q); a = sum(p); b = sum(q); r = (a - both)*(b - both); "
        "2*r/where(r == 0, 1, both*(K - (a + b) + both) + r)",
        "p = x != 0; q = z != 0; r = sum(w*(p && !q))*sum(w*(q && !p)); "
        "2*r/where(r == 0, 1, sum(w*(p && q))*sum(w*(!p && !q)) + r)",
        {}, "Yule 1912", "yule", "real"}},
      // As in SciPy, a point is at distance 0 of itself only where it has every feature.
      {{"russellrao", {}, kMetric, kWeighted, "1 - sum(x != 0 && z != 0)/K", "1 - sum(w*(x != 0 && z != 0))/sum(w)",
        {}, "Russell & Rao 1940", "russellrao", "real"}},

      // Similarities and kernels of the inner product.
      {{"dot", {"inner_product", "linear"}, kKernel, kWeighted, "sum(x*z)", "sum(w*x*z)", {}, "Mercer 1909", "linear",
        "real"}},
      {{"cosine_similarity", {}, kKernel, kUnweighted, unit + "sum((x/nx)*(z/nz))", "", {}, "Salton & McGill 1983",
        "cosine_similarity", "real"}},
      {{"polynomial", {"poly"}, kKernel, kUnweighted, "(gamma*sum(x*z) + coef0)^degree", "",
        {{"degree", 3, kStatic, "whole number, at least 1"}, gamma, coef0}, "Schoelkopf & Smola 2002",
        "polynomial", "real"}, polynomial_text},
      {{"sigmoid", {}, kKernel, kUnweighted, "tanh(gamma*sum(x*z) + coef0)", "", {gamma, coef0},
        "Schoelkopf & Smola 2002", "sigmoid", "real"}},
      {{"arc_cosine", {"arccosine"}, kKernel, kUnweighted, std::string(kAngle) + "nx*nz*(s + (pi - t)*c)/pi", "",
        {{"degree", 1, kStatic, "0, 1 or 2"}}, "Cho & Saul 2009", "", "real"}, arc_cosine_text},
      {{"ntk_relu", {"ntk"}, kKernel, kUnweighted, "", "",
        {{"depth", 2, kStatic, "layers of the network, at least 1"}, {"bias", 0.0, false, "bias of each layer"}},
        "Jacot, Gabriel & Hongler 2018", "", "real"}, ntk_relu_text},
      {{"intersection", {"histogram_intersection"}, kKernel, kUnweighted, "sum(min(x, z))", "", {},
        "Swain & Ballard 1991", "", "nonnegative"}},
      {{"bhattacharyya", {}, kKernel, kUnweighted, "sum(sqrt(x*z))", "", {}, "Bhattacharyya 1943", "", "nonnegative"}},

      // Kernels of a distance.
      {{"laplace", {}, kKernel, kUnweighted, "exp(-sum(abs(x - z)^p)^(1/p)/bandwidth)", "",
        {norm_option(1), bandwidth}, "Schoelkopf & Smola 2002", "", "real"}, laplace_text},
      {{"gauss", {"gaussian"}, kKernel, kUnweighted, "exp(-square(sum(abs(x - z)^p)^(1/p))/(2*bandwidth^2))", "",
        {norm_option(2), bandwidth}, "Schoelkopf & Smola 2002", "", "real"}, gauss_text},
      {{"rbf", {}, kKernel, kUnweighted, "exp(-gamma*sum(square(x - z)))", "", {gamma},
        "Broomhead & Lowe 1988", "rbf", "real"}},
      {{"matern12", {"exponential"}, kKernel, kUnweighted, "exp(-sqrt(sum(square(x - z)))/bandwidth)", "", {bandwidth},
        "Rasmussen & Williams 2006, 4.2", "", "real"}},
      {{"matern32", {}, kKernel, kUnweighted,
        "r = sqrt(3)*sqrt(sum(square(x - z)))/bandwidth; (1 + r)*exp(-r)", "", {bandwidth},
        "Rasmussen & Williams 2006, 4.2", "", "real"}},
      {{"matern52", {}, kKernel, kUnweighted,
        "r = sqrt(5)*sqrt(sum(square(x - z)))/bandwidth; (1 + r + r*r/3)*exp(-r)", "", {bandwidth},
        "Rasmussen & Williams 2006, 4.2", "", "real"}},
      {{"rational_quadratic", {"rq"}, kKernel, kUnweighted,
        "(1 + sum(square(x - z))/(2*alpha*bandwidth^2))^-alpha", "",
        {{"alpha", 1.0, false, "mixture of lengths"}, bandwidth}, "Rasmussen & Williams 2006, 4.2", "", "real"}},
      {{"periodic", {"exp_sine_squared"}, kKernel, kUnweighted,
        "exp(-2*sum(square(sin(pi*abs(x - z)/period)))/bandwidth^2)", "",
        {{"period", 1.0, false, "period of every feature"}, bandwidth}, "MacKay 1998, 5.2", "", "real"}},
      {{"cauchy", {}, kKernel, kUnweighted, "1/(1 + sum(square(x - z))/bandwidth^2)", "", {bandwidth}, "Basak 2008", "",
        "real"}},
      {{"multiquadric", {}, kKernel, kUnweighted, "sqrt(1 + sum(square(x - z))/bandwidth^2)", "", {bandwidth},
        "Hardy 1971", "", "real"}},
      {{"inverse_multiquadric", {}, kKernel, kUnweighted, "rsqrt(1 + sum(square(x - z))/bandwidth^2)", "", {bandwidth},
        "Hardy 1971; Micchelli 1986", "", "real"}},
      {{"thin_plate", {"thin_plate_spline"}, kKernel, kUnweighted, "q = sum(square(x - z)); xlogy(q, q)/2", "", {},
        "Duchon 1977", "", "real"}},
      {{"product_laplace", {}, kKernel, kUnweighted, "exp(-sum(abs(x - z)^p)/bandwidth^p)", "",
        {power_option(1), bandwidth}, "Beaglehole et al., xRFM, 2025", "", "real"}, product_laplace_text},
      {{"lpq", {"lpq_laplace"}, kKernel, kUnweighted, "exp(-(sum(abs(x - z)^p)^(1/p)/bandwidth)^q)", "",
        {norm_option(2), {"q", 1.0, false, "power of the norm"}, bandwidth}, "Beaglehole et al., xRFM, 2025", "",
        "real"}, lpq_text},
      {{"sum_power_laplace", {}, kKernel, kUnweighted,
        "((1 - const_mix)*sum(exp(-abs(x - z)^p/bandwidth^p))/K + const_mix)^power", "",
        {power_option(1), bandwidth, {"const_mix", 0.0, false, "share of the constant, in [0, 1)"},
         {"power", 2.0, false, "power of the mean"}}, "Beaglehole et al., xRFM, 2025", "", "real"},
       sum_power_laplace_text},
      {{"exp_power", {}, kKernel, kUnweighted, "sum(exp(-abs(x - z)^p/bandwidth))", "", {power_option(1), bandwidth},
        "Beaglehole et al., xRFM, 2025", "", "real"}, exp_power_text},
      {{"dispersal", {}, kKernel, kUnweighted, "exp(-sum(square(x - z))^(gamma/2)/bandwidth)", "",
        {{"gamma", 1.0, false, "power of the distance, in (0, 2]"}, bandwidth}, "Hui, Ma & Belkin 2019", "", "real"}},
      {{"chi2_kernel", {"exponential_chi2"}, kKernel, kUnweighted,
        "s = x + z; exp(-gamma*sum(square(x - z)/where(s == 0, 1, s)))", "", {gamma},
        "Zhang et al. 2007", "chi2", "nonnegative"}},
  };
}

const std::vector<Row>& rows() {
  static constinit Lazy<std::vector<Row>> table;
  return table.get([] {
    std::vector<Row> made = make_rows();
    for (Row& row : made) {
      if (!row.entry.text.empty()) continue;  // too long for a general form: shown at the default options
      Values defaults;
      for (const ZooOption& option : row.entry.options) defaults[option.name] = option.default_value;
      row.entry.text = row.text(defaults, kUnweighted);
    }
    return made;
  });
}

const Row* find_row(std::string_view name) {
  for (const Row& row : rows()) {
    const auto& aliases = row.entry.aliases;
    if (row.entry.name == name || std::find(aliases.begin(), aliases.end(), name) != aliases.end()) return &row;
  }
  return nullptr;
}

[[noreturn]] void unknown_name(std::string_view name) {
  std::vector<std::string_view> all, shown;
  for (const Row& row : rows()) {
    all.push_back(row.entry.name);
    shown.push_back(row.entry.name);
    all.insert(all.end(), row.entry.aliases.begin(), row.entry.aliases.end());
  }
  if (name == "laplacian") {
    fail(ErrorKind::invalid_argument,
         "zoo: 'laplacian' names two kernels; write laplace (p=1) or matern12 (p=2). Received '{}'.", name);
  }
  if (name == "mahalanobis") {
    fail(ErrorKind::invalid_argument,
         "zoo: a formula cannot hold the matrix of 'mahalanobis'; call cdist(x, z, metric=\"mahalanobis\", VI=...). "
         "Received '{}'.", name);
  }
  const std::string_view near = formula::nearest(name, all);
  if (!near.empty()) {
    fail(ErrorKind::invalid_argument,
         "zoo: there is no metric or kernel of this name; did you mean '{}'? Received '{}'.", near, name);
  }
  fail(ErrorKind::invalid_argument, "zoo: there is no metric or kernel of this name. Received '{}'; known are {}.",
       name, fmt::join(shown, ", "));
}

/// The given options over the defaults; a name that the entry does not have is refused.
Values complete(const ZooEntry& entry, const Values& given) {
  Values values;
  std::vector<std::string_view> names;
  for (const ZooOption& option : entry.options) {
    names.push_back(option.name);
    values[option.name] = option.default_value;
  }
  for (const auto& [name, value] : given) {
    const std::string_view near = formula::nearest(name, names);
    require(values.contains(name), "{}: its options are: {}{}. Received '{}'.", entry.name,
            names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
            near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near), name);
    values[name] = value;
  }
  return values;
}

}  // namespace

const std::vector<ZooEntry>& zoo_table() {
  static constinit Lazy<std::vector<ZooEntry>> entries;
  return entries.get([] {
    std::vector<ZooEntry> made;
    for (const Row& row : rows()) made.push_back(row.entry);
    return made;
  });
}

const ZooEntry* find_zoo_entry(std::string_view name) {
  const Row* row = find_row(name);
  return row == nullptr ? nullptr : &zoo_table()[static_cast<std::size_t>(row - rows().data())];
}

Expr zoo(std::string_view name, const std::map<std::string, double>& options, bool weighted) {
  const Row* row = find_row(name);
  if (row == nullptr) unknown_name(name);
  const ZooEntry& entry = row->entry;
  require(!weighted || entry.weighted, "{}: it has no weighted form. Received weights.", entry.name);
  const Values values = complete(entry, options);
  const Expr formula = parse(row->text ? row->text(values, weighted) : weighted ? entry.weighted_text : entry.text);
  std::map<std::string, Expr> open;
  for (const ZooOption& option : entry.options) {
    if (!option.is_static) open.emplace(option.name, param(option.name, values.at(option.name)));
  }
  return mercer::bind(formula, open);  // unqualified, std::bind would win
}

Expr minkowski(double p, bool weighted, bool root) {
  require_norm(p);
  return parse(root || std::isinf(p) ? norm(p, weighted) : power_sum(p, weighted));
}

}  // namespace mercer
