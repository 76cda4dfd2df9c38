/// \file
/// The named metrics and kernels. Each is a row of text in src/formula/zoo.cpp; nothing else in Mercer knows their
/// names. They are ordinary formulas:
///
/// \code
/// mercer::pairwise(mercer::zoo("cityblock"), x, &z, out);
/// mercer::pairwise(mercer::zoo("laplace"), x, &z, out, {.params = {{"bandwidth", 2.0}}});
/// for (const mercer::ZooEntry& entry : mercer::zoo_table()) std::puts(entry.name.c_str());
/// \endcode
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mercer/formula.h"

namespace mercer {

/// One number that a zoo entry takes. Static options (a norm's p) choose the text; the others stay parameters of the
/// formula with this default, so that a call may give a number or an array.
struct ZooOption {
  std::string name;  ///< "bandwidth"
  double default_value = 1.0;  ///< where a call says nothing
  bool is_static = false;  ///< whether it chooses the text, as a norm's p
  std::string doc;  ///< one line
};

/// A row of the table.
struct ZooEntry {
  std::string name;  ///< "cityblock", "matern52"
  std::vector<std::string> aliases;  ///< "manhattan", "l1"
  bool is_metric = false;  ///< a distance or divergence (usable as cdist's metric=), else a kernel
  bool weighted = false;  ///< has a weighted form (SciPy's w=)
  std::string text;  ///< the formula, as shown in the documentation
  std::string weighted_text;  ///< empty when not weighted
  std::vector<ZooOption> options;  ///< the numbers that it takes
  std::string source;  ///< paper or textbook
  std::string scipy_name;  ///< the name under which SciPy (or scikit-learn) has it, empty if none
  std::string domain;  ///< values for which it is defined: "real", "nonnegative", "positive"
  std::string w_meaning{};  ///< what w must hold, for an entry whose text reads w; else empty
};

/// All entries, metrics first.
const std::vector<ZooEntry>& zoo_table();
/// The entry of a name or alias; nullptr when there is none.
const ZooEntry* find_zoo_entry(std::string_view name);
/// The formula of an entry. `weighted` asks for the form that reads w[k]. Options not given take their defaults. Throws
/// invalid_argument for a name or an option that there is not (with the known ones), a value out of its range, and a
/// weighted form that the entry does not have.
Expr zoo(std::string_view name, const std::map<std::string, double>& options = {}, bool weighted = false);
/// (sum_k |x - z|^p)^(1/p) for p in (0, inf], the number of differing features for p = 0; weighted: w[k] times each
/// term. root = false leaves the sum. Throws invalid_argument for a negative p or NaN.
Expr minkowski(double p, bool weighted = false, bool root = true);

}  // namespace mercer
