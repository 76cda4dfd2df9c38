// What a report of a measurement must say, whatever was measured.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "mercer/tune.h"

namespace mercer::testing_support {

/// Two candidates or more, the fastest first, among them the one that was chosen and the model's own.
inline void expect_measured(const TuneReport& report) {
  ASSERT_GE(report.tiles.size(), 2u);
  const auto has = [&](const std::string& text) {
    return std::any_of(report.tiles.begin(), report.tiles.end(), [&](const auto& tile) { return tile.text == text; });
  };
  EXPECT_TRUE(has(report.chosen));
  EXPECT_TRUE(has(report.model));
  for (std::size_t i = 1; i < report.tiles.size(); ++i)
    EXPECT_LE(report.tiles[i - 1].milliseconds, report.tiles[i].milliseconds);
  EXPECT_GT(report.tiles[0].milliseconds, 0);
}

}  // namespace mercer::testing_support
