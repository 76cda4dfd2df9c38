// Whose costs plans follow: by name, and as the store keeps what was measured.
#include "ops/costs/cpu_costs.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "mercer/mercer.h"
#include "mercer/tune.h"
#include "ops/costs/cpu_record.h"
#include "plan/cpu/target.h"

namespace mercer {
namespace {

using plan::CpuRow;

std::string refusal_of(const std::string& target) {
  try {
    explain("sum(x*z)", {}, Dtype::float32, target);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    return error.what();
  }
  return {};
}

TEST(CpuCosts, AreThoseOfTheFamilyThatATargetNames) {
  const Formula l2 = "sum((x-z)^2)";
  const auto rate = [&](const char* target) { return floor_rate(l2, {64, 64, 1 << 20}, Dtype::float32, target, 1); };
  EXPECT_NEAR(rate("zen4"), 16, 1e-3);
  EXPECT_NEAR(rate("zen5"), 32, 1e-3);
  EXPECT_NEAR(rate("zen5:x86_avx2"), 16, 1e-3);
  EXPECT_NEAR(rate("golden_cove:x86_avx2"), 12, 1e-3);
  EXPECT_EQ(rate("zen3"), rate("zen3:x86_avx2"));  // its widest
  const std::string text = explain(l2, {}, Dtype::float32, "skylake");
  EXPECT_NE(text.find("target x86_avx512"), std::string::npos) << text;
  EXPECT_EQ(text.find("costs: "), std::string::npos) << "the caller named them";
  const std::string here = explain(l2, {}, Dtype::float32, Target::x86_avx2);
  EXPECT_NE(here.find("\ncosts: " + cpu_costs().text + "\n\n"), std::string::npos) << here;
  EXPECT_NE(refusal_of("zen9:x86_avx2").find("must be zen2, zen3"), std::string::npos);
  EXPECT_NE(refusal_of("zen3:x86_avx512").find("zen3 has no x86_avx512"), std::string::npos);
  EXPECT_NE(refusal_of("zen4:sse").find("sse"), std::string::npos);
}

TEST(CpuCosts, GivePlansAndCodeForEveryFamily) {
  for (const CpuRow* row : plan::cpu_rows())
    for (const Target target : {Target::x86_avx512, Target::x86_avx2}) {
      if (target == Target::x86_avx512 && !row->has_wide()) continue;
      const std::string name = std::string(row->name) + ":" + name_of(target);
      for (const char* text : {"sum(abs(x-z))", "max(abs(x-z))", "sum(abs(x-z)^1.3)^(1/1.3)", "sum(abs(x-z)^p)^(1/p)",
                               "sum(sin(x-z)^2)", "exp(-sqrt(sum((x-z)^2))/h)", "sum(where(x < z, x/(1+abs(z)), 1))"})
        for (const Dtype type : {Dtype::float32, Dtype::float64}) {
          const std::string explained = explain(text, {4096, 4096, 256}, type, name);
          EXPECT_NE(explained.find("## code\nupdate "), std::string::npos) << name << ' ' << text;
          const double rate = floor_rate(text, {4096, 4096, 256}, type, name, 1);
          EXPECT_GT(rate, 0.01) << name << ' ' << text;
          EXPECT_LE(rate, 32) << name << ' ' << text;  // two multiply-adds of sixteen lanes a cycle
        }
    }
}

TEST(CpuCosts, AreKeptAsText) {
  for (const CpuRow* row : plan::cpu_rows()) {
    const std::string record = ops::record_of(*row);
    const std::optional<CpuRow> read = ops::row_of_record(record);
    ASSERT_TRUE(read) << record;
    EXPECT_EQ(read->wide, row->wide);
    EXPECT_EQ(read->narrow, row->narrow);
    EXPECT_EQ(read->latency, row->latency);
    EXPECT_EQ(read->loads, row->loads);
    EXPECT_EQ(ops::differences(*read, *row), "");
  }
}

TEST(CpuCosts, DoNotComeFromADamagedRecord) {
  const std::string good = ops::record_of(plan::kReferenceRow);
  for (const std::string& bad :
       {std::string(), std::string("latency 4\n"), good.substr(0, good.size() / 2), good + "256 bake 1 1\n",
        good + "256 add 0 1\n", good + "256 add 64 1\n", good + "256 add 3 -1\n", good + "256 add 3 nan\n",
        good + "256 add 3\n", good + "128 add 3 1\n", good + "loads 0\n"})
    EXPECT_FALSE(ops::row_of_record(bad)) << bad;
}

TEST(CpuCosts, TellWhatWasMeasuredApart) {
  CpuRow measured = plan::kReferenceRow;
  measured.narrow[0].cycles *= 2;
  measured.wide[1].cycles *= 1.1;
  EXPECT_EQ(ops::differences(measured, plan::kReferenceRow), "256 bits multiply 1.00 (table 0.5)");
}

TEST(CpuCosts, AreMeasuredHere) {
  if (!plan::target_info(Target::x86_avx2).runs_here()) GTEST_SKIP() << "this machine has no AVX2";
  int asked = 0;
  try {
    tune_cpu([&](double, double) { return ++asked < 3; });
    FAIL() << "neither cancelled nor refused";
  } catch (const Cancelled&) {
    EXPECT_EQ(asked, 3);
  } catch (const Error& refused) {  // the clock of a busy machine changes while it is measured
    const std::string what = refused.what();
    EXPECT_NE(what.find("the clock must be measured alike"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace mercer
