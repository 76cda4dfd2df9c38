// A user's PTX: texts that are refused, and what passes make of a node that is one thing on GPUs and another elsewhere.
#include "ir/expr/ptx.h"

#include <gtest/gtest.h>

#include "ir/expr/ops.h"
#include "ir/expr/program.h"
#include "ir/passes/passes.h"
#include "ir/passes/split.h"
#include "mercer/error.h"
#include "unit/ir/pair_fixture.h"

namespace mercer::ir {
namespace {

const Expr x = points().x, z = points().z;
constexpr const char* kGap = "sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out};";

/// Not what the meaning says, so that one sees which of them a value comes from.
Expr gap() { return ptx(kGap, {x, z}, 3.0 * abs(x - z)); }

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Ptx, TextsHaveOneForm) {
  const Expr e = ptx("  sub.f32\t{out},\n {0}, {1} ", {x, z}, x - z);
  EXPECT_EQ(e->name, "sub.f32 {out}, {0}, {1};");
  EXPECT_TRUE(same(e, ptx("sub.f32 {out}, {0}, {1};", {x, z}, x - z)));
  EXPECT_FALSE(same(e, ptx("sub.f32 {out}, {1}, {0};", {x, z}, x - z)));
  EXPECT_FALSE(same(e, ptx("sub.f32 {out}, {0}, {1};", {z, x}, x - z)));
  EXPECT_FALSE(same(e, ptx("sub.f32 {out}, {0}, {1};", {x, z}, x + z)));
  EXPECT_EQ(ptx("{ .reg .f32 t; mov.f32 {out}, {0}; }", {x}, x)->name, "{ .reg .f32 t; mov.f32 {out}, {0}; }");
  EXPECT_EQ(ptx("mov.f32 {out}, {0}", {x}, x)->name, "mov.f32 {out}, {0};");
}

TEST(Ptx, MistakesAreNamed) {
  struct Row {
    const char* text;
    std::size_t inputs;
    const char* rule;
  };
  const Row rows[] = {
      {"", 1, "ptx: the text has at least one instruction. Received \"\"."},
      {".reg .f32 {out}; .reg .f32 {0};", 1, "ptx: the text has at least one instruction."},
      {"mov.f32 t, {0};", 1,
       "ptx: the text must write {out}, its result (several: {out0}, {out1}, ...). Received \"mov"},
      {"add.f32 {out}, {0}, {2};", 2, "ptx: the inputs of the text are {0} to {1}, not {2}. Received \"add.f32"},
      {"mov.f32 {out}, {99999999999999};", 1, "ptx: the inputs of the text are {0} to {0}, not {99999999999999}."},
      {"mov.f32 {out}, {0};", 2, "ptx: the text reads all of its inputs, but not {1}."},
      {"mov.f32 {out}, %0;", 1, "ptx: an input is written {0}, not %0."},
      {"mov.f32 {out}, {0}; }", 1, "ptx: every '}' of the text closes a '{' before it."},
      {"{ mov.f32 {out}, {0};", 1, "ptx: every '{' of the text is closed."},
      {"mov.f32 {out}, {0};\" : \"=f\"(y)); asm(\"", 1, "ptx: the text is printable ASCII without quotes, backslashes"},
      {"mov.f32 {out}, {0};\\", 1, "ptx: the text is printable ASCII without quotes, backslashes"},
      {"mov.f32 {out}, {0}; ?\?/", 1, "ptx: the text is printable ASCII"},
      {"mov.f32 {out}, {0}; \x01", 1, "ptx: the text is printable ASCII"},
      {"mov.f32 {out}, {0}; // copy", 1, "ptx: the text has no comments."},
      {"mov.f32 {out}, {0}; /* copy */", 1, "ptx: the text has no comments."},
      {"mov.f32 {out}, {0}; mov.f32 {out1}, {0};", 1,
       "ptx: the text writes either {out} or {out0}, {out1}, ..., not both."},
      {"mov.f32 {out1}, {0};", 1, "ptx: the text writes all of its outputs, but not {out0}."},
      {"mov.f32 {out9}, {0};", 1, "ptx: a text has at most 4 outputs, not {out9}."},
      {"mov.f32 {out}, {0};", 0, "ptx: a text without inputs reads none, but {0}."},
      {"mov.f32 {out}, {0};", 9, "ptx: a text has 0 to 8 inputs. Received 9."},
      {"mov.b64 {out:b64}, {0};", 1, "ptx: the types of values are f32, u32 and pred, not 'b64'."},
      {"not.b32 {out}, {0:u32}; mov.b32 {out}, {0:pred};", 1,
       "ptx: a value has one type in all of its places, but {0:pred} was u32 before."},
      {"@{0:pred} st.f32 [t], {1}; mov.f32 {out}, {1};", 2, "ptx: the text computes and does nothing else"},
      {"mov.f32 {out0}, {0};", 1, "ptx: a text of one meaning writes {out}"},
      {"ld.global.f32 {out}, [{0}];", 1, "ptx: the text computes and does nothing else"},
      {"{ L: bar.sync 0; mov.f32 {out}, {0}; }", 1, "ptx: the text computes and does nothing else"},
      {"mov.b32 {out}, %laneid; add.f32 {out}, {out}, {0};", 1,
       "ptx: the text reads its inputs and registers of its own, but not '%laneid'"},
      {"{ .shared .f32 t; mov.f32 {out}, {0}; }", 1, "ptx: the text declares registers (.reg) only, not '.shared'"},
  };
  for (const Row& row : rows) {
    const std::vector<Expr> inputs(row.inputs, x);
    const std::string error = error_of([&] { ptx(row.text, inputs, x); });
    EXPECT_TRUE(error.starts_with(row.rule)) << row.text << "\n" << error;
  }
}

TEST(Ptx, MeaningsReadWhatTheInputsRead) {
  const auto error = [](std::vector<Expr> inputs, const Expr& meaning) {
    return error_of([&] { ptx("mov.f32 {out}, {0};", std::move(inputs), meaning); });
  };
  const Expr s = sum(abs(x - z));
  EXPECT_EQ(error({x}, x - z), "ptx: the meaning is a function of the inputs: it reads nothing that they do not read. "
                               "Received one that reads z.");
  EXPECT_EQ(error({x}, x * param("p")), "ptx: the meaning is a function of the inputs: it reads nothing that they do "
                                        "not read. Received one that reads p.");
  EXPECT_TRUE(error({s}, exp(-sum(square(x - z)))).ends_with("Received one that reads sum(square(x - z))."));
  EXPECT_EQ(error({s}, exp(-s) + 2), "nothing was thrown");
  EXPECT_EQ(error({x - z}, abs(z - x)), "nothing was thrown");
  EXPECT_EQ(error({x}, Expr()), "ptx: a meaning is needed. Received an empty expression.");
  EXPECT_EQ(error({Expr()}, x), "ptx: every input must be an expression. Received an empty one.");
  EXPECT_TRUE(error_of([] { ptx_outputs("mov.f32 {out0}, {0};", {x}, {x, x}); })
                  .starts_with("ptx: the text has no output 1"));
  EXPECT_TRUE(error_of([] { ptx_outputs("mov.f32 {out0}, {0}; mov.f32 {out1}, {0};", {x}, {x}); })
                  .starts_with("ptx: every output of the text has a meaning. Received 1 for the 2 outputs"));
}

TEST(Ptx, InstructionsAreCountedAndPlaceholdersFound) {
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(ptx_instructions(kGap), (Names{"sub.f32", "abs.f32"}));
  EXPECT_EQ(ptx_instructions("{ .reg .f32 t; .reg .pred p; L1: setp.lt.f32 p, {0}, {1}; @p bra L1; "
                             "{ mov.f32 {out}, t; } }"),
            (Names{"setp.lt.f32", "bra", "mov.f32"}));
  const auto parts = ptx_parts("{ mov.b64 {lo, hi}, {1}; {out2} }");
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[1].kind, PtxPart::input);
  EXPECT_EQ(parts[1].index, 1);
  EXPECT_EQ(parts[3].kind, PtxPart::output);
  EXPECT_EQ(parts[3].index, 2);
}

TEST(Ptx, ValuesHaveTypes) {
  using Types = std::vector<PtxType>;
  const char* text = "@{1:pred} add.u32 {out1:u32}, {0}, {0:u32}; mov.f32 {out0}, {2};";
  const PtxTypes types = ptx_types(text, 3);
  EXPECT_EQ(types.inputs, (Types{PtxType::u32, PtxType::pred, PtxType::f32}));
  EXPECT_EQ(types.outputs, (Types{PtxType::f32, PtxType::u32}));
  EXPECT_EQ(ptx_instructions(text), (std::vector<std::string_view>{"add.u32", "mov.f32"}));
  EXPECT_TRUE(ptx_writes_one("setp.lt.f32 {out:pred}, {0}, {1};"));
  EXPECT_FALSE(ptx_writes_one("mov.u32 {out0:u32}, {0:u32};"));
}

TEST(Ptx, OracleAndDerivativeFollowTheMeaning) {
  const Expr plain = exp(-sum(3.0 * abs(x - z))), user = exp(-sum(gap()));
  const Pair pair = smooth_pair(5, 3);
  EXPECT_EQ(pair.at(user), pair.at(plain));
  EXPECT_EQ(pair.wide_at(user), pair.wide_at(plain));
  EXPECT_TRUE(same(differentiate(user, x), differentiate(plain, x)));
  const auto outputs = ptx_outputs("mov.f32 {out0}, {0}; neg.f32 {out1}, {0};", {x}, {x, -x});
  EXPECT_EQ(pair.at(sum(outputs[0] * outputs[1] * z)), pair.at(sum(x * -x * z)));
}

TEST(Ptx, SimplifyKeepsTheNode) {
  const Expr two = ptx("add.f32 {out}, {0}, {1};", {Expr(1.0), x}, 1.0 + x);
  EXPECT_EQ(simplify(two)->op, Op::ptx);
  const Expr constants = ptx("mov.f32 {out}, {0};", {Expr(1.0) + Expr(2.0)}, Expr(3.0));
  EXPECT_EQ(simplify(constants)->op, Op::ptx);
  EXPECT_TRUE(is_constant(simplify(constants)->args[0], 3.0));
  EXPECT_TRUE(is_constant(simplify(where(0.0, two, 5.0)), 5.0));  // nobody reads it
  const Expr twice = simplify(gap() + gap());
  EXPECT_TRUE(same(twice, 2.0 * simplify(gap())));
}

TEST(Ptx, SignsAndSymmetry) {
  EXPECT_TRUE(is_nonnegative(ptx(kGap, {x, z}, abs(x - z))));
  EXPECT_FALSE(is_nonnegative(ptx(kGap, {x, z}, x - z)));
  EXPECT_FALSE(is_symmetric(sum(gap())));  // the text may treat its inputs differently
  EXPECT_FALSE(is_symmetric(sum(ptx("abs.f32 {out}, {0};", {x - z}, abs(x - z)))));
  EXPECT_TRUE(is_symmetric(sum(ptx("abs.f32 {out}, {0};", {x + z}, abs(x + z)))));
  EXPECT_TRUE(is_symmetric(ptx("ex2.approx.f32 {out}, {0};", {sum(abs(x - z))}, exp2(sum(abs(x - z))))));
}

TEST(Ptx, VerifyLooksAtInputsAndMeaning) {
  EXPECT_NO_THROW(verify(sum(gap())));
  EXPECT_THROW(verify(gap()), Error);  // features outside of reductions
}

TEST(Ptx, GpusRunTheTextAndOthersTheMeaning) {
  LowerOptions options;
  const auto prims = [&](Processor processor, Dtype type) {
    options.processor = processor;
    options.type = type;
    return lower({gap()}, options).to_text();
  };
  const std::string gpu = prims(Processor::gpu, Dtype::float32);
  EXPECT_NE(gpu.find("ptx v0 v1 \"" + std::string(kGap) + "\" output 0"), std::string::npos) << gpu;
  EXPECT_EQ(gpu.find("mul"), std::string::npos) << "the meaning is not computed in addition to it";
  EXPECT_EQ(gpu, prims(Processor::gpu_terms, Dtype::float32));
  for (auto [processor, type] : {std::pair{Processor::cpu, Dtype::float32}, {Processor::cpu, Dtype::float64},
                                 {Processor::gpu, Dtype::float64}, {Processor::gpu_terms, Dtype::float64}}) {
    const std::string text = prims(processor, type);
    EXPECT_EQ(text.find("ptx"), std::string::npos) << text;
    EXPECT_NE(text.find("mul"), std::string::npos) << text;
  }
}

TEST(Ptx, OneTextForAllOutputsAndNoneThatNobodyReads) {
  const auto outputs = ptx_outputs("mov.f32 {out0}, {0}; neg.f32 {out1}, {0};", {x}, {x, -x});
  LowerOptions options;
  options.processor = Processor::gpu;
  const Program both = lower({outputs[0] + outputs[1], outputs[1]}, options);
  EXPECT_EQ(both.ptx.size(), 1u);
  const Program dead = lower({where(x < z, outputs[0], z)}, options);
  EXPECT_EQ(std::count_if(dead.code.begin(), dead.code.end(), [](const Instr& i) { return i.op == Prim::ptx; }), 1);
  const std::vector<Expr> four{x, z, row_value(), col_value()};
  const Expr sum_of_four = fma(x, z, row_value()) + col_value();
  const Program wide =
      lower({ptx("fma.rn.f32 {out}, {0}, {1}, {2}; add.f32 {out}, {out}, {3};", four, sum_of_four)}, options);
  EXPECT_EQ(operand_count(wide.code.back()), 4);
  EXPECT_EQ(operand_of(wide.code.back(), 3), 3);
}

TEST(Ptx, SplitKeepsItInTheTermAndHoistsItsInputs) {
  const Expr scaled = ptx("sub.f32 {out}, {0}, {1};", {sqrt(x) * 2.0, z}, sqrt(x) * 2.0 - z);
  const Expr one_sided = ptx("abs.f32 {out}, {0};", {x}, abs(x));
  const Split kept = split({simplify(sum(scaled * one_sided))}, {.keep_ptx = true});
  ASSERT_EQ(kept.x_streams.size(), 2u) << kept.to_text();  // the scaled root, and x; nothing for the meanings
  EXPECT_EQ(kept.z_streams.size(), 1u);
  EXPECT_TRUE(uses(kept.updates()[0]).ptx);
  const Split plain = split({simplify(sum(scaled * one_sided))});
  EXPECT_FALSE(uses(plain.updates()[0]).ptx);
  EXPECT_TRUE(same(plain.updates()[0], split({simplify(sum((sqrt(x) * 2.0 - z) * abs(x)))}).updates()[0]));
  // Per point and per call: by the meaning where it is computed once, by the text where it stands in the epilogue.
  const Expr norm = sum(ptx("mul.f32 {out}, {0}, {0};", {x}, x * x)), p = param("p");
  const Expr power = ptx("ex2.approx.f32 {out}, {0};", {2.0 * p}, exp2(2.0 * p));
  const Split stages = split({simplify(sum(x * z) * norm * power)}, {.keep_ptx = true});
  ASSERT_EQ(stages.stages.size(), 1u);
  EXPECT_FALSE(uses(stages.stages[0].update[0]).ptx);
  EXPECT_TRUE(uses(stages.epilogue[0]).ptx);
  EXPECT_EQ(stages.uniforms.size(), 1u);  // 2 p, and nothing for the meaning
}

}  // namespace
}  // namespace mercer::ir
