// Arrays of the tests as C sees them.
#pragma once

#include <cstring>
#include <vector>

#include "mercer/c/mercer.h"
#include "ops/testing.h"

namespace mercer::testing_support {

/// The mercer_tensor of an array, which must outlive it.
class View {
 public:
  explicit View(const Tensor& t) : shape_(t.shape), strides_(t.strides) {
    static constexpr mercer_dtype kDtypes[] = {MERCER_FLOAT16, MERCER_BFLOAT16, MERCER_FLOAT32, MERCER_FLOAT64,
                                               MERCER_UINT8,   MERCER_INT64,    MERCER_BOOLEAN, MERCER_INT32};
    c.data = t.data;
    c.dtype = kDtypes[static_cast<int>(t.dtype)];
    c.ndim = t.ndim();
    c.device_kind = t.device.kind == DeviceKind::cuda ? MERCER_CUDA : MERCER_CPU;
    c.device_index = t.device.index;
    c.shape = shape_.data();
    c.strides = strides_.data();
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  operator const mercer_tensor*() const { return &c; }  // NOLINT(google-explicit-constructor)

  mercer_tensor c = {};

 private:
  Shape shape_, strides_;
};

inline void expect_ok(mercer_status status) { ASSERT_EQ(status, MERCER_OK) << mercer_last_error(); }

/// The call failed in this way, and said so.
inline void expect_failure(mercer_status status, mercer_status expected, const std::string& words) {
  EXPECT_EQ(status, expected) << mercer_status_name(status);
  EXPECT_NE(std::string(mercer_last_error()).find(words), std::string::npos)
      << "received \"" << mercer_last_error() << "\" without \"" << words << "\"";
}
inline void expect_invalid(mercer_status status, const std::string& words) {
  expect_failure(status, MERCER_INVALID_ARGUMENT, words);
}

/// A call, of a type that knows how it is refused, with one thing changed.
template <class Call, class Change>
void expect_refused_with(const std::string& words, const Change& change) {
  SCOPED_TRACE(words);
  Call c;
  change(c);
  c.expect_refused(words);
}

}  // namespace mercer::testing_support
