// `explain` of typical formulas, compared with tests/golden/*.txt, which people read in reviews: a change of the
// lowering, of a plan or of the size of the code shows there. MERCER_UPDATE_GOLDEN=1 writes the files anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "device/source_folder.h"
#include "mercer/mercer.h"

namespace mercer {
namespace {

struct GoldenCase {
  const char* name;
  const char* text;
  Dtype dtype = Dtype::float32;
};

const GoldenCase kCases[] = {
    {"l1", "sum(abs(x-z))"},
    {"l2", "sqrt(sum((x-z)^2))"},
    {"l2_float64", "sqrt(sum((x-z)^2))", Dtype::float64},
    {"linf", "max(abs(x-z))"},
    {"dot", "sum(x*z)"},
    {"power_1.3", "sum(abs(x-z)^1.3)^(1/1.3)"},
    {"power_3", "sum(abs(x-z)^3)"},
    {"power_general", "sum(abs(x-z)^p)^(1/p)"},
    {"laplace", "exp(-sum(abs(x-z))/bandwidth)"},
    {"gauss", "exp(-sum((x-z)^2)/(2*sigma^2))"},
    {"cosine", "1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))"},
    {"canberra", "sum(where(x == z, 0, abs(x-z)/(abs(x)+abs(z))))"},
    {"hellinger", "sqrt(sum((sqrt(x)-sqrt(z))^2))"},
    {"huber", "sum(w*where(abs(x-z) < delta, (x-z)^2/2, delta*(abs(x-z)-delta/2)))"},
    {"logsumexp", "where(i == j, 1 + ridge, logsumexp(x*z))"},
    {"two_states", "reduce((abs(x-z), w), (max(a0, t0), a1 + t1), (0, 0), finish=a0/a1)"},
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The first line that differs, from both texts.
std::string difference(const std::string& got, const std::string& expected) {
  std::istringstream a(got), b(expected);
  std::string p, q;
  for (int line = 1;; ++line) {
    const bool more_a = static_cast<bool>(std::getline(a, p)), more_b = static_cast<bool>(std::getline(b, q));
    if (!more_a && !more_b) return "they differ in their last line end";
    if (!more_a) p = "(end)";
    if (!more_b) q = "(end)";
    if (p != q) return "line " + std::to_string(line) + "\n  now:  " + p + "\n  file: " + q;
  }
}

class Golden : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, ExplainIsAsCommitted) {
  const GoldenCase& c = GetParam();
  std::string text;
  for (const Target target : {Target::x86_avx512, Target::x86_avx2, Target::interpreter})
    text += std::string("# ") + name_of(target) + "\n\n" +
            explain(c.text, {4096, 4096, 256}, c.dtype, std::string("zen4:") + name_of(target));
  const std::string path = (testing::source_folder() / "tests" / "golden" / (std::string(c.name) + ".txt")).string();
  if (std::getenv("MERCER_UPDATE_GOLDEN")) {
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  const std::string expected = contents(path);
  EXPECT_TRUE(text == expected) << c.name << ".txt: " << difference(text, expected)
                                << "\nIf the change is wanted, run once with MERCER_UPDATE_GOLDEN=1.";
}

INSTANTIATE_TEST_SUITE_P(Formulas, Golden, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (c == '.') c = '_';
  return name;
});

}  // namespace
}  // namespace mercer
