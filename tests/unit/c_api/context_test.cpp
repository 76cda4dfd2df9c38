// Contexts, names and last errors of the C interface.
#include <thread>

#include "unit/c_api/views.h"

namespace mercer {
namespace {

using namespace testing_support;

struct OwnContext {
  mercer_context* c = nullptr;
  OwnContext() { expect_ok(mercer_context_create(&c)); }
  ~OwnContext() { mercer_context_destroy(c); }
};

TEST(CContext, NamesAndVersion) {
  EXPECT_STREQ(mercer_version(), MERCER_VERSION);
  EXPECT_STREQ(mercer_status_name(MERCER_OK), "ok");
  EXPECT_STREQ(mercer_status_name(MERCER_CANCELLED), "cancelled");
  EXPECT_STREQ(mercer_status_name(MERCER_INTERNAL), "internal");
  EXPECT_STREQ(mercer_status_name(9), "unknown");
  EXPECT_STREQ(mercer_status_name(-1), "unknown");
}

TEST(CContext, ThreadsAndTargets) {
  OwnContext own;
  std::int32_t count = 0;
  expect_ok(mercer_context_set_threads(own.c, 3));
  expect_ok(mercer_context_threads(own.c, &count));
  EXPECT_EQ(count, 3);
  expect_invalid(mercer_context_set_threads(own.c, -1), "threads: must be from 1 to 4096");
  expect_invalid(mercer_context_threads(own.c, nullptr), "context_threads: count must be given.");
  expect_ok(mercer_context_set_target(own.c, "interpreter"));
  expect_ok(mercer_context_set_target(own.c, "auto"));
  expect_invalid(mercer_context_set_target(own.c, "z80"), "Received \"z80\".");
  expect_invalid(mercer_context_set_target(own.c, nullptr), "context_set_target: name must be given.");
  expect_ok(mercer_context_set_precision(own.c, "direct"));
  expect_invalid(mercer_context_set_precision(own.c, "fp8"), "Received \"fp8\".");
  expect_invalid(mercer_context_set_precision(own.c, nullptr), "context_set_precision: name must be given.");
  expect_invalid(mercer_context_create(nullptr), "context_create: context must be given. Received a null pointer.");
  mercer_context_destroy(nullptr);
}

TEST(CContext, NullIsTheSharedOne) {
  std::int32_t count = 0;
  expect_ok(mercer_context_threads(nullptr, &count));
  EXPECT_EQ(count, Context::shared().threads());
}

TEST(CContext, EachThreadHasItsOwnLastError) {
  expect_invalid(mercer_context_set_threads(nullptr, 5000), "Received 5000.");
  std::thread([] {
    EXPECT_STREQ(mercer_last_error(), "");
    expect_invalid(mercer_context_set_threads(nullptr, 6000), "Received 6000.");
  }).join();
  EXPECT_NE(std::strstr(mercer_last_error(), "Received 5000."), nullptr);
  std::int32_t count = 0;
  expect_ok(mercer_context_threads(nullptr, &count));
  EXPECT_NE(std::strstr(mercer_last_error(), "Received 5000."), nullptr) << "a success leaves it";
}

}  // namespace
}  // namespace mercer
