// Mutated texts: parse() throws mercer::Error or gives an expression whose text parses back to it. Seeded, so that a
// failure repeats; a failing text is printed.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "mercer/error.h"
#include "mercer/zoo.h"

namespace mercer {
namespace {

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> made{
        "exp(-sum(abs(x-z)^p)/param(bandwidth, 2))",
        "s = sum(abs(x - z)); s = where(s < epsilon, 0, s); where(i == j, 1 + r, exp(-s/bandwidth))",
        "reduce((x*z, z), (a0 + t0, max(a1, t1)), (0, -inf), merge=(a0 + t0, max(a1, t1)), finish=a0/a1, "
        "associative=true)",
        "reduce(x, a*t + param(a), 0, finish=-a^2)",
        "-2^-1 + --x*!(a < b && c >= d || e != nan) - $row0/$a1",
        "x[k]*w[k] + row[m] - col[n] + max(x, z, 1e-3) + logsumexp(x) + mean(z)",
    };
    for (const ZooEntry& entry : zoo_table()) made.push_back(entry.text);
    return made;
  }();
  return texts;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string next() {
    std::string text = seeds()[below(seeds().size())];
    for (std::size_t i = 0, count = 1 + below(3); i < count; ++i) mutate(text);
    return text;
  }

 private:
  std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_); }

  void mutate(std::string& text) {
    static const std::vector<std::string> kPieces{
        "(", ")", ",", ";", "^", "-", "!", "<", "==", "&&", "=", "[k]", "$a0", "$acc99999999999", "a", "t0", "x", "1e9",
        "inf", "nan", "param(", "reduce(", "max(", "sum(", "merge=", "finish=", "\xe2\x88\x92", "\xff", "\n", "\t",
        "2"};
    const std::size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0: text.insert(at, kPieces[below(kPieces.size())]); break;
      case 1: text.erase(at, 1 + below(4)); break;
      case 2: text.insert(at, 1, static_cast<char>(below(256))); break;
      case 3: {  // a part of another text
        const std::string& other = seeds()[below(seeds().size())];
        text.insert(at, other.substr(below(other.size()), below(24)));
        break;
      }
      case 4: text.insert(at, text.substr(below(text.size() + 1), below(24))); break;
      default: {  // swap two parts
        const std::size_t other = below(text.size() + 1);
        const std::size_t low = std::min(at, other), high = std::max(at, other);
        text = text.substr(high) + text.substr(low, high - low) + text.substr(0, low);
      }
    }
  }

  std::mt19937_64 random_;
};

TEST(ParserFuzz, ThrowsOrRoundTrips) {
  Mutator mutator(7);
  int accepted = 0;
  for (int i = 0; i < 30'000; ++i) {
    const std::string text = mutator.next();
    Expr e;
    try {
      e = parse(text);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::invalid_argument) << text;
      ASSERT_TRUE(std::string(error.what()).ends_with("^")) << text << "\n" << error.what();
      continue;
    }
    ++accepted;
    const std::string printed = e.to_text();
    try {
      ASSERT_TRUE(same(parse(printed), e)) << text << "\n" << printed;
    } catch (const Error& error) {
      FAIL() << text << "\n" << printed << "\n" << error.what();
    }
  }
  EXPECT_GT(accepted, 1000);  // the mutations are mild enough to reach the printer
}

}  // namespace
}  // namespace mercer
