// Versions, names and contexts of the C interface.
#include <memory>

#include "c_api/border.h"

using mercer::c_api::context_of;
using mercer::c_api::given;
using mercer::c_api::guarded;

const char* mercer_version(void) { return MERCER_VERSION; }

const char* mercer_status_name(int32_t status) {
  constexpr const char* kNames[] = {"ok",        "invalid_argument", "unsupported",   "compile_failed", "device_failed",
                                    "numerical", "cancelled",        "out_of_memory", "internal"};
  return status >= 0 && status < static_cast<int>(std::size(kNames)) ? kNames[status] : "unknown";
}

mercer_status mercer_context_create(mercer_context** context) {
  return guarded([&] {
    mercer_context*& made = given("context_create", "context", context);
    made = std::make_unique<mercer_context>().release();
  });
}

void mercer_context_destroy(mercer_context* context) { delete context; }

mercer_status mercer_context_set_threads(mercer_context* context, int32_t count) {
  return guarded([&] { context_of(context).set_threads(count); });
}

mercer_status mercer_context_threads(mercer_context* context, int32_t* count) {
  return guarded([&] { given("context_threads", "count", count) = context_of(context).threads(); });
}

mercer_status mercer_context_set_target(mercer_context* context, const char* name) {
  return guarded([&] {
    context_of(context).set_target(mercer::target_from_text(&given("context_set_target", "name", name)));
  });
}

mercer_status mercer_context_set_precision(mercer_context* context, const char* name) {
  return guarded([&] {
    context_of(context).set_precision(mercer::precision_from_text(&given("context_set_precision", "name", name)));
  });
}
