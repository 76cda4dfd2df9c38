// Costs of GPUs: the table of docs/design/costs.md is what the header says, every number has its name, and records read
// as they were written. MERCER_UPDATE_GOLDEN=1 writes the table anew.
#include "plan/gpu/costs/costs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "device/source_folder.h"
#include "plan/gpu/costs/costs_fields.h"
#include "plan/gpu/costs/costs_record.h"
#include "plan/gpu/floor.h"

namespace mercer::plan {
namespace {

struct Field {
  std::string type, name, meaning;
};
struct Struct {
  std::string meaning;
  std::vector<Field> fields;
};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The structs of plan/gpu/costs/costs.h with their comments.
std::map<std::string, Struct> structs_of_header() {
  static const std::regex kOpening(R"(struct (\w+) \{)"), kField(R"(  ([\w:]+) (\w+)(?: = 0)?;(?: *// (.*))?)");
  std::map<std::string, Struct> structs;
  Struct* open = nullptr;
  std::string comment;
  std::istringstream header(text_of(testing::source_folder() / "src" / "plan" / "gpu" / "costs" / "costs.h"));
  for (std::string line; std::getline(header, line);) {
    std::smatch found;
    if (line.starts_with("/// ")) {
      comment = line.substr(4);
    } else if (std::regex_match(line, found, kOpening)) {
      open = &structs[found[1]];
      open->meaning = comment;
    } else if (line == "};") {
      open = nullptr, comment.clear();
    } else if (open != nullptr && std::regex_match(line, found, kField)) {
      open->fields.push_back({found[1], found[2], found[3]});
    }
  }
  return structs;
}

struct Number {
  double value = 0;
  Limit limit = Limit::none;
};
struct Numbers {
  std::vector<std::string> names;
  std::map<std::string, Number> by_name;
};

Numbers numbers_of(const Costs& costs) {
  Numbers numbers;
  const auto add = [&](const char* name, auto value, Limit limit = Limit::none) {
    numbers.names.emplace_back(name);
    numbers.by_name[name] = {static_cast<double>(value), limit};
  };
  each_cost(costs, add);
  return numbers;
}

std::string text_of(double value) {
  int exponent = 0;
  if (value >= 0x1p14 && std::frexp(value, &exponent) == 0.5) return fmt::format("2^{}", exponent - 1);
  return fmt::format("{:.4g}", value);
}

const char* text_of(Limit limit) {
  constexpr const char* kNames[] = {"",         "lanes of float32",   "lanes of float64", "bytes a second",
                                    "products", "products of float64"};
  return kNames[static_cast<int>(limit)];
}

/// Tables of a struct and of those in it, and the names of its numbers.
class Table {
 public:
  Table() { add(structs_.at("Costs"), "", "", ""); }
  std::string text;
  std::vector<std::string> names;

 private:
  void add(const Struct& of, const std::string& path, const std::string& title, const std::string& own) {
    if (!path.empty()) text += fmt::format("\n### `{}`\n\n{}{}\n", title, of.meaning, own.empty() ? "" : " " + own);
    std::string rows;
    for (const Field& field : of.fields) {
      if (structs_.contains(field.type)) continue;
      EXPECT_FALSE(field.meaning.empty()) << path << field.name << " has no comment";
      const Number number = numbers_.by_name[path + field.name];
      names.push_back(path + field.name);
      rows += fmt::format("| `{}` | {} | {} | {} |\n", path + field.name, text_of(number.value), field.meaning,
                          text_of(number.limit));
    }
    if (!rows.empty()) text += "\n| number | H200 | meaning | scales with |\n|---|---|---|---|\n" + rows;
    for (const Field& field : of.fields)
      if (structs_.contains(field.type))
        add(structs_.at(field.type), path + field.name + ".", path + field.name,
            field.meaning.empty() ? "" : "Here: " + field.meaning + ".");
  }

  std::map<std::string, Struct> structs_ = structs_of_header();
  Numbers numbers_ = numbers_of(costs_of(90));
};

TEST(Costs, EveryNumberHasItsNameAndItsRowOfTheTable) {
  const Table table;
  std::vector<std::string> in_header = table.names, visited = numbers_of(costs_of(90)).names;
  EXPECT_EQ(visited.size() * sizeof(double), sizeof(Costs));
  std::sort(in_header.begin(), in_header.end());
  std::sort(visited.begin(), visited.end());
  EXPECT_EQ(visited, in_header);
  const auto path = testing::source_folder() / "docs" / "design" / "costs.md";
  const std::string page = text_of(path), mark = "<!-- tests/unit/plan/gpu/costs_test.cpp writes what follows -->\n";
  const std::size_t at = page.find(mark);
  ASSERT_NE(at, std::string::npos);
  if (std::getenv("MERCER_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << page.substr(0, at) + mark + table.text;
    return;
  }
  EXPECT_EQ(page.substr(at + mark.size()), table.text) << "MERCER_UPDATE_GOLDEN=1 writes the table anew";
}

TEST(Costs, OtherGenerationsScaleWithTheirDataSheets) {
  const Costs& h200 = costs_of(90);
  for (const GpuInfo& gpu : gpu_infos()) {
    const Costs& own = costs_of(gpu.capability);
    EXPECT_DOUBLE_EQ(own.stored.store, h200.stored.store * gpu_info(90).bytes_per_second / gpu.bytes_per_second);
    EXPECT_EQ(own.tensor_cores_from, h200.tensor_cores_from);
    EXPECT_EQ(own.kron.chain.bytes, h200.kron.chain.bytes) << "estimates that only rank kernels";
  }
}

TEST(Costs, EverywhereNoSizeIsTooSmall) {
  const Costs all = costs_of(90).everywhere();
  EXPECT_EQ(all.tensor_cores_from + all.wide_from + all.expanded_from + all.much_mixed_work + all.stored_call, 0);
  EXPECT_EQ(all.differences.busy + all.differences.symmetric_rounds, 0);
  EXPECT_EQ(all.candidates_from + all.stored_least_points + all.differences.features, 0);
  EXPECT_EQ(all.tensor_cores.wide_tile, costs_of(90).tensor_cores.wide_tile) << "times are what they are";
}

TEST(Costs, RecordsReadAsTheyWereWritten) {
  const Costs& base = costs_of(80);
  EXPECT_EQ(costs_record(base, base), "1\n");
  Costs own = base;
  own.stored.pass = 0.1 + 0.2;
  own.candidates_from = 12345;
  own.kron.doubles.image_bytes = 7.5e10;
  const std::string record = costs_record(own, base);
  EXPECT_EQ(std::count(record.begin(), record.end(), '\n'), 4) << record;
  const auto read = costs_from_record(record, base);
  ASSERT_TRUE(read);
  EXPECT_EQ(costs_record(*read, own), "1\n");
}

TEST(Costs, NoOtherTextReads) {
  const Costs& base = costs_of(90);
  for (const char* text : {"", "1", "2\n", "1\nstored.pass 1", "1\nstored.past 1\n", "1\nstored.pass -1\n",
                           "1\nstored.pass nan\n", "1\nstored.pass inf\n", "1\nstored.pass 1 2\n", "1\nstored.pass\n",
                           "1\ncandidates_from 1.5\n", "1\nstored.pass 1\nstored.pass 2\n", "1\n\n"})
    EXPECT_FALSE(costs_from_record(text, base)) << text;
  EXPECT_TRUE(costs_from_record("1\n", base));
}

}  // namespace
}  // namespace mercer::plan
