// Every refusal: its exact message, and the caret under the fault.
#include <gtest/gtest.h>

#include <string>

#include "ir/expr/syntax.h"
#include "mercer/error.h"
#include "mercer/formula.h"

namespace mercer {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    return e.what();
  }
  return "(no error)";
}

struct Bad {
  const char* text;
  const char* rule;
  const char* caret;  // the line of the caret, aligned with the text
};

class BadText : public ::testing::TestWithParam<Bad> {};

TEST_P(BadText, SaysTheRuleAndPointsAtTheFault) {
  const Bad& bad = GetParam();
  EXPECT_EQ(refusal(bad.text), std::string("formula: ") + bad.rule + ". Received:\n  " + bad.text + "\n  " + bad.caret);
}

INSTANTIATE_TEST_SUITE_P(
    Formula, BadText,
    ::testing::Values(
        Bad{"", "the text is empty",
            "^"},
        Bad{"\"x\"", "expected an expression, not a text in quotes",
            "^"},
        Bad{"x \"z\"", "expected an operator or the end of the text, not a text in quotes",
            "  ^"},
        Bad{"x + \"z", "a text in quotes ends with '\"'",
            "    ^"},
        Bad{"ptx + 1", "'ptx' needs its arguments: ptx(...)",
            "^"},
        Bad{"ptx(x, z; x)", "expected the PTX in quotes, not 'x'",
            "    ^"},
        Bad{"ptx(\"neg.f32 {out}, {0};\", x)", "expected ';' and the meaning after the inputs, not ')'",
            "                            ^"},
        Bad{"ptx(\"neg.f32 {out}, {0};\", x; y=x)", "an output of PTX is out0, out1, ..., not 'y'",
            "                              ^"},
        Bad{"ptx(\"neg.f32 {out}, {1};\", x; -x)",
            "ptx: the inputs of the text are {0} to {0}, not {1}. Received \"neg.f32 {out}, {1};\"",
            "^"},
        Bad{"ptx(\"neg.f32 {out}, {0};\", x; -z)",
            "ptx: the meaning is a function of the inputs: it reads nothing that they do not read. Received one that "
            "reads z",
            "^"},
        Bad{"x +", "expected an expression, but the text ends",
            "   ^"},
        Bad{"sum(x*z", "expected ')' or ',' after an argument, but the text ends",
            "       ^"},
        Bad{"(x + z", "expected ')' to close the parenthesis, but the text ends",
            "      ^"},
        Bad{"x + z)", "expected an operator or the end of the text, not ')'",
            "     ^"},
        Bad{"2x", "expected an operator or the end of the text, not 'x'; a product is written '*'",
            " ^"},
        Bad{"x z", "expected an operator or the end of the text, not 'z'; a product is written '*'",
            "  ^"},
        Bad{"x**2", "a power is written '^'",
            " ^"},
        Bad{"x // 2", "a division is written '/'; round down with floor(...)",
            "  ^"},
        Bad{"a & b", "'and' is written '&&'",
            "  ^"},
        Bad{"|x|", "'or' is written '||'; an absolute value is written abs(...)",
            "^"},
        Bad{"a and b", "'and' is written '&&'",
            "  ^"},
        Bad{"not a", "'not' is written '!'",
            "^"},
        Bad{"a = 2", "expected ';' after a binding, but the text ends",
            "     ^"},
        Bad{"where(a = 2, 1, 0)", "a comparison is written '=='; a binding 'name = ...;' stands at the start",
            "        ^"},
        Bad{"x = 2; x", "'x' has a meaning of its own and cannot be bound",
            "^"},
        Bad{"s = x - z;", "expected an expression, but the text ends",
            "          ^"},
        Bad{"a < b < c", "comparisons do not chain; write a < b && b < c",
            "      ^"},
        Bad{"1 + sqr(x)", "there is no function 'sqr' (did you mean 'sqrt'?)",
            "    ^"},
        Bad{"lgosumexp(x)", "there is no function 'lgosumexp' (did you mean 'logsumexp'?)",
            "^"},
        Bad{"ln(x)", "there is no function 'ln' (did you mean 'log'?)",
            "^"},
        Bad{"pow(x, 2)", "there is no function 'pow' (a power is written a^b)",
            "^"},
        Bad{"frobnicate(x)", "there is no function 'frobnicate'",
            "^"},
        Bad{"2*x(z + 1)", "'x' is not a function; a product is written x*(...)",
            "  ^"},
        Bad{"1 + sqrt", "'sqrt' needs its arguments: sqrt(...)",
            "    ^"},
        Bad{"sqrt(x, z)", "'sqrt' takes 1 argument, not 2",
            "^"},
        Bad{"1 + where(x, z)", "'where' takes 3 arguments, not 2",
            "    ^"},
        Bad{"max()", "'max' takes 2 arguments, not 0",
            "^"},
        Bad{"sum(x, z)", "'sum' takes 1 argument, not 2",
            "^"},
        Bad{"sum(,x)", "expected an expression, not ','",
            "    ^"},
        Bad{"x[m]", "'x' is written x or x[k]",
            "  ^"},
        Bad{"i[k]", "'i' has no index",
            " ^"},
        Bad{"p[k]", "'p' is a parameter and has no index",
            " ^"},
        Bad{"1e999", "'1e999' is outside the range of a double",
            "^"},
        Bad{"param(p, q)", "expected a number, the default, not 'q'",
            "         ^"},
        Bad{"param(2, p)", "the name of the parameter comes first: param(bandwidth, 2)",
            "      ^"},
        Bad{"$foo1", "'$' starts an internal value: $row0, $col0, $acc0, $pair0, $a0 or $t0",
            "^"},
        Bad{"x @ z", "unexpected character '@'",
            "  ^"},
        Bad{"reduce(x, a + t)", "expected ',' and the identity after the combine, not ')'",
            "               ^"},
        Bad{"reduce((x, z), (a0, a2), (0, 0), finish=a0)", "this reduce has a0 to a1, not 'a2'",
            "                    ^"},
        Bad{"reduce((x, z), (a0, t), (0, 0), finish=a0)", "this reduce has t0 to t1, not 't'",
            "                    ^"},
        Bad{"reduce(x, a1, 0)", "this reduce has a, not 'a1'",
            "          ^"},
        Bad{"reduce(x, a + t, 0, finish=t)", "`finish` reads the state a alone; t belongs to combine and merge",
            "                           ^"},
        Bad{"reduce(x, a + t, 0, first=1)", "reduce has merge=, finish= and associative=, not 'first='",
            "                    ^"},
        Bad{"reduce(x, a, 0, finish=a, finish=a)", "'finish' is given twice",
            "                          ^"},
        Bad{"reduce(x, a, 0, associative=1)", "expected true or false, not '1'",
            "                            ^"},
        Bad{"1 + reduce(x, a + t, 0, associative=true)",
            "reduce: an associative reduction needs `merge`. Received none",
            "    ^"},
        Bad{"reduce((x, z), (a0, a1), (0, 0))", "reduce: a state of 2 components needs `finish`. Received none",
            "^"}));

TEST(BadText, CaretOfALaterLine) {
  EXPECT_EQ(refusal("d = x - z;\nsum(d*d +)\n"),
            "formula: expected an expression, not ')'. Received:\n  sum(d*d +)\n           ^");
}

TEST(BadText, CaretPastTrailingSpaceStandsAfterTheLastWord) {
  EXPECT_EQ(refusal("x +  \n\n "), "formula: expected an expression, but the text ends. Received:\n  x +  \n     ^");
}

TEST(BadText, TabsStayTabs) {
  EXPECT_EQ(refusal("\tx\t@"), "formula: unexpected character '@'. Received:\n  \tx\t@\n  \t \t^");
}

TEST(BadText, CountsCodePoints) {
  EXPECT_EQ(refusal("σ + 1"), "formula: unexpected character 'σ'. Received:\n  σ + 1\n  ^");
  EXPECT_EQ(refusal("sum(x − z) + σ"), "formula: a minus is written '-'. Received:\n  sum(x − z) + σ\n        ^");
}

TEST(BadText, ShowsNoControlCharactersOrBrokenUtf8) {
  EXPECT_EQ(refusal(std::string("x\0y", 3)), "formula: unexpected character '?'. Received:\n  x?y\n   ^");
  EXPECT_EQ(refusal("x + \xff\x1b"), "formula: unexpected character '?'. Received:\n  x + ??\n      ^");
  EXPECT_EQ(refusal("\xe2\x88"), "formula: unexpected character '?'. Received:\n  ??\n  ^");
}

TEST(BadText, LongLinesAreCut) {
  const std::string text = std::string(500, ' ') + "@" + std::string(500, ' ');
  const std::string space(48, ' ');
  EXPECT_EQ(refusal(text), "formula: unexpected character '@'. Received:\n  ..." + space + "@" + space.substr(1) +
                               "...\n     " + space + "^");
}

TEST(BadText, NestingIsBounded) {
  for (const char* open : {"(", "-", "!", "sin(", "2^", "reduce(", "reduce(((", "1 + (1 + "}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += open;
    EXPECT_NE(refusal(text).find("at most 256 levels may be nested"), std::string::npos) << open;
  }
}

TEST(BadText, DepthIsBounded) {
  std::string text = "x";
  for (int i = 0; i < 2000; ++i) text += " + 1";
  EXPECT_NE(refusal(text).find("at most 1000 operations deep"), std::string::npos);
}

TEST(BadText, SizeIsBounded) {
  EXPECT_EQ(refusal(std::string(ir::kMaxText + 1, 'x')),
            "formula: a text has at most 1048576 bytes. Received 1048577 bytes.");
}

}  // namespace
}  // namespace mercer
