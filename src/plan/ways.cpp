#include "plan/ways.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace mercer::plan {
namespace {

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t from = 0, to = 0; from <= text.size(); from = to + 1) {
    to = std::min(text.find(separator, from), text.size());
    if (to > from) parts.push_back(text.substr(from, to - from));
  }
  return parts;
}

}  // namespace

const char* name_of(Verb verb) {
  constexpr const char* kNames[] = {"pairwise", "kernel_product", "kernel_reduce", "knn", "kernel_gradient"};
  return kNames[static_cast<int>(verb)];
}

std::string Refusal::to_text() const {
  return least ? fmt::format("{}: at least {:.4g} must be there, {:.4g} are", reason, *least, received) : reason;
}

ForcedWays::ForcedWays(const std::string& text, const char* what, NamesOfWays names_of) : text_(text) {
  for (const std::string& part : parts_of(text, ',')) {
    const std::size_t colon = part.find(':');
    const Name name = colon == std::string::npos ? Name{{}, part} : Name{part.substr(0, colon), part.substr(colon + 1)};
    const bool is_known = std::ranges::any_of(kVerbs, [&](Verb verb) {
      const std::vector<std::string> names = names_of(verb);
      return (name.verb.empty() || name.verb == name_of(verb)) && std::ranges::find(names, name.way) != names.end();
    });
    if (!is_known) {
      std::string known;
      for (Verb verb : kVerbs)
        known += fmt::format("{}{}: {}", known.empty() ? "" : "; ", name_of(verb), fmt::join(names_of(verb), ", "));
      fail(ErrorKind::invalid_argument, "{}: ways must be some of {}. Received \"{}\".", what, known, part);
    }
    names_.push_back(name);
  }
}

bool ForcedWays::names(Verb verb, const char* way) const {
  return std::ranges::any_of(names_, [&](const Name& name) {
    return name.way == way && (name.verb.empty() || name.verb == name_of(verb));
  });
}

void fail_forced(Verb verb, const ForcedWays& forced, const std::string& refusals) {
  fail(ErrorKind::unsupported, "{}: a way that is forced must serve the call. Received \"{}\".{}", name_of(verb),
       forced.text(), refusals);
}

}  // namespace mercer::plan
