#include "ir/expr/ptx.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "core/error.h"

namespace mercer::ir {
namespace {

constexpr std::size_t kShown = 200;  // of a text in a message

/// {out} or {out:u32}, not {out0}.
bool is_lone_output(const PtxPart& part) {
  return part.kind == PtxPart::output && (part.text.starts_with("{out}") || part.text.starts_with("{out:"));
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <class... Args>
void check(bool ok, std::string_view text, fmt::format_string<Args...> rule, Args&&... args) {
  if (ok) return;
  fail(ErrorKind::invalid_argument, "ptx: {}. Received \"{}\".", fmt::format(rule, std::forward<Args>(args)...),
       text.substr(0, kShown));
}

/// Single blanks between words, a semicolon at the end.
std::string tidied(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (!is_blank(c)) out += c;
    else if (!out.empty() && out.back() != ' ') out += ' ';
  }
  while (out.ends_with(' ')) out.pop_back();
  const bool block = out.ends_with('}') && ptx_parts(out).back().kind == PtxPart::plain;
  if (!out.empty() && out.back() != ';' && !block) out += ';';
  return out;
}

// The text becomes a part of a string in generated code, and a part of a kernel's body.
void check_characters(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool allowed = (c >= ' ' && c <= '~') || is_blank(c);
    check(allowed && c != '"' && c != '\'' && c != '\\' && c != '?', text,
          "the text is printable ASCII without quotes, backslashes and question marks");
    check(c != '/' || (next != '/' && next != '*'), text, "the text has no comments");
    check(c != '%' || !is_digit(next), text, "an input is written {{{0}}}, not %{0}", next);
  }
}

void check_braces(std::string_view text) {
  int open = 0;
  for (char c : text) {
    open += c == '{' ? 1 : c == '}' ? -1 : 0;
    check(open >= 0, text, "every '}}' of the text closes a '{{' before it");
  }
  check(open == 0, text, "every '{{' of the text is closed");
}

std::optional<PtxType> type_named(std::string_view name) {
  if (name == "f32") return PtxType::f32;
  if (name == "u32") return PtxType::u32;
  if (name == "pred") return PtxType::pred;
  return std::nullopt;
}

/// One type for each placeholder.
void check_types(std::string_view text) {
  std::map<std::pair<int, int>, std::string_view> named;
  for (const PtxPart& part : ptx_parts(text)) {
    if (part.type.empty()) continue;
    check(type_named(part.type).has_value(), text, "the types of values are f32, u32 and pred, not '{}'", part.type);
    const auto [first, fresh] = named.try_emplace({part.kind, part.index}, part.type);
    check(fresh || first->second == part.type, text, "a value has one type in all of its places, but {} was {} before",
          part.text, first->second);
  }
}

void check_placeholders(std::string_view text, std::size_t inputs) {
  std::vector<bool> reads(inputs), writes(kMostPtxOutputs);
  bool alone = false, numbered = false;
  for (const PtxPart& part : ptx_parts(text)) {
    const auto index = static_cast<std::size_t>(part.index);
    if (part.kind == PtxPart::input) {
      check(inputs > 0, text, "a text without inputs reads none, but {}", part.text);
      check(index < inputs, text, "the inputs of the text are {{0}} to {{{}}}, not {}", inputs - 1, part.text);
      reads[index] = true;
    } else if (part.kind == PtxPart::output) {
      check(index < kMostPtxOutputs, text, "a text has at most {} outputs, not {}", kMostPtxOutputs, part.text);
      (is_lone_output(part) ? alone : numbered) = true;
      writes[index] = true;
    }
  }
  check(alone || numbered, text, "the text must write {{out}}, its result (several: {{out0}}, {{out1}}, ...)");
  check(alone != numbered, text, "the text writes either {{out}} or {{out0}}, {{out1}}, ..., not both");
  for (int o = 0; o < ptx_output_count(text); ++o)
    check(writes[static_cast<std::size_t>(o)], text, "the text writes all of its outputs, but not {{out{}}}", o);
  for (std::size_t i = 0; i < inputs; ++i) check(reads[i], text, "the text reads all of its inputs, but not {{{}}}", i);
}

// What computes and nothing else, by the word before the first dot. Memory, barriers, votes and shuffles of lanes,
// jumps and calls are not among them: a text runs for each pair and feature, in any lane, wherever a kernel needs it.
constexpr std::string_view kComputing[] = {
    "abs", "add", "addc", "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "copysign", "cos", "cvt",
    "div", "dp2a", "dp4a", "ex2", "fma", "fns", "lg2", "lop3", "mad", "mad24", "madc", "max", "min", "mov", "mul",
    "mul24", "neg", "not", "or", "popc", "prmt", "rcp", "rem", "rsqrt", "sad", "selp", "set", "setp", "shf", "shl",
    "shr", "sin", "slct", "sqrt", "sub", "subc", "szext", "tanh", "testp", "vabsdiff", "vabsdiff2", "vabsdiff4",
    "vadd", "vadd2", "vadd4", "vavrg2", "vavrg4", "vmad", "vmax", "vmax2", "vmax4", "vmin", "vmin2", "vmin4", "vset",
    "vset2", "vset4", "vshl", "vshr", "vsub", "vsub2", "vsub4", "xor"};
constexpr std::string_view kDeclaring[] = {".reg",  ".v2",  ".v4",    ".pred", ".b8",     ".b16",  ".b32",
                                           ".b64",  ".b128", ".s8",    ".s16",  ".s32",    ".s64",  ".u8",
                                           ".u16",  ".u32", ".u64",   ".f16",  ".f16x2",  ".bf16", ".bf16x2",
                                           ".tf32", ".f32", ".f64"};

bool is_one_of(std::string_view word, const auto& words) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

std::vector<std::string_view> words_of(std::string_view statement) {
  std::vector<std::string_view> words;
  while (true) {
    statement.remove_prefix(std::min(statement.find_first_not_of(" ,;{}[]()|+!@:"), statement.size()));
    if (statement.empty()) return words;
    words.push_back(statement.substr(0, statement.find_first_of(" ,;{}[]()|+!@:")));
    statement.remove_prefix(words.back().size());
  }
}

/// Names of registers as declared; "%r<4>" stands for %r0 to %r3.
std::vector<std::string_view> declared_registers(std::string_view text) {
  std::vector<std::string_view> names;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(';'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    if (is_one_of(".reg", words))
      for (std::string_view word : words)
        if (!word.starts_with('.')) names.push_back(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

bool is_declared(std::string_view word, const std::vector<std::string_view>& names) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    const std::size_t several = name.find('<');
    if (several == std::string_view::npos) return name == word;
    return word == name || (word.starts_with(name.substr(0, several)) && word.size() > several &&
                            std::all_of(word.begin() + static_cast<std::ptrdiff_t>(several), word.end(), is_digit));
  });
}

void check_instructions(std::string_view text) {
  for (std::string_view name : ptx_instructions(text))
    check(is_one_of(name.substr(0, name.find('.')), kComputing), text,
          "the text computes and does nothing else (no memory, barriers, jumps, calls or exchange between lanes), but "
          "not '{}'",
          name);
  const std::vector<std::string_view> registers = declared_registers(text);
  for (std::string_view word : words_of(text)) {
    check(!word.starts_with('.') || is_one_of(word, kDeclaring), text, "the text declares registers (.reg) only, not "
          "'{}'", word);
    check(!word.starts_with('%') || is_declared(word.substr(0, word.find('.')), registers), text,
          "the text reads its inputs and registers of its own, but not '{}', which differs between threads or runs",
          word);
  }
}

/// What a value is made of: leaves outside of reductions, and whole reductions.
std::vector<Expr> sources_of(const Expr& e) {
  std::vector<Expr> found, open{e};
  ExprMap<bool> seen;
  while (!open.empty()) {
    const Expr top = open.back();
    open.pop_back();
    if (!seen.emplace(top, true).second || top->op == Op::constant) continue;
    if (is_leaf(top->op) || is_reduction(top->op)) found.push_back(top);
    else open.insert(open.end(), top->args.begin(), top->args.end());
  }
  return found;
}

void check_meaning(const std::vector<Expr>& inputs, const Expr& meaning) {
  std::vector<Expr> known;
  for (const Expr& input : inputs)
    for (const Expr& source : sources_of(input)) known.push_back(source);
  for (const Expr& source : sources_of(meaning)) {
    const bool read = std::any_of(known.begin(), known.end(), [&](const Expr& k) { return same(k, source); });
    require(read, "ptx: the meaning is a function of the inputs: it reads nothing that they do not read. Received one "
            "that reads {}.", source.to_text().substr(0, kShown));
  }
}

/// "{12}" or "{out}" or "{out1}", or such with a type as "{0:u32}", at the start of `text`.
std::optional<PtxPart> placeholder(std::string_view text) {
  const std::size_t end = text.find('}');
  if (!text.starts_with('{') || end == std::string_view::npos) return std::nullopt;
  PtxPart part{PtxPart::input, text.substr(0, end + 1), 0};
  std::string_view inside = text.substr(1, end - 1);
  if (const std::size_t colon = inside.find(':'); colon != std::string_view::npos && colon + 1 < inside.size()) {
    part.type = inside.substr(colon + 1);
    inside = inside.substr(0, colon);
  }
  if (inside == "out") return PtxPart{PtxPart::output, part.text, 0, part.type};
  if (inside.starts_with("out")) {
    part.kind = PtxPart::output;
    inside.remove_prefix(3);
  }
  if (inside.empty() || !std::all_of(inside.begin(), inside.end(), is_digit)) return std::nullopt;
  const auto [last, error] = std::from_chars(inside.data(), inside.data() + inside.size(), part.index);
  if (error != std::errc()) part.index = 1 << 30;  // out of range, as the checks will say
  return part;
}

}  // namespace

std::vector<PtxPart> ptx_parts(std::string_view text) {
  std::vector<PtxPart> parts;
  std::size_t plain = 0, at = 0;
  const auto add_plain = [&] {
    if (at > plain) parts.push_back({PtxPart::plain, text.substr(plain, at - plain)});
  };
  while (at < text.size()) {
    const auto found = placeholder(text.substr(at));
    if (!found) {
      ++at;
      continue;
    }
    add_plain();
    parts.push_back(*found);
    plain = at += found->text.size();
  }
  add_plain();
  return parts;
}

int ptx_output_count(std::string_view text) {
  int last = 0;
  for (const PtxPart& part : ptx_parts(text))
    if (part.kind == PtxPart::output) last = std::max(last, part.index);
  return last + 1;
}

bool ptx_writes_one(std::string_view text) {
  const std::vector<PtxPart> parts = ptx_parts(text);
  return std::any_of(parts.begin(), parts.end(), is_lone_output);
}

PtxTypes ptx_types(std::string_view text, std::size_t inputs) {
  PtxTypes types{std::vector<PtxType>(inputs, PtxType::f32),
                 std::vector<PtxType>(static_cast<std::size_t>(ptx_output_count(text)), PtxType::f32)};
  for (const PtxPart& part : ptx_parts(text)) {
    if (part.type.empty()) continue;
    (part.kind == PtxPart::input ? types.inputs : types.outputs)[static_cast<std::size_t>(part.index)] =
        type_named(part.type).value();
  }
  return types;
}

std::vector<std::string_view> ptx_instructions(std::string_view text) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(';'), text.size());
    std::string_view statement = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto skip_to = [&](std::size_t from) { statement.remove_prefix(std::min(from, statement.size())); };
    skip_to(statement.find_first_not_of(" {}"));
    // A label.
    if (const std::size_t colon = statement.find(':'); colon < statement.find_first_of(" @{")) skip_to(colon + 1);
    skip_to(statement.find_first_not_of(" "));
    if (statement.starts_with('@')) skip_to(statement.find_first_not_of(' ', statement.find(' ')));
    if (!statement.empty() && statement[0] != '.') found.push_back(statement.substr(0, statement.find(' ')));
  }
  return found;
}

Expr ptx_node(std::string_view given, std::vector<Expr> inputs, const Expr& meaning, int output) {
  check_characters(given);
  Node node{.op = Op::ptx};
  node.name = tidied(given);
  node.slot = output;
  check(!node.name.empty(), node.name, "the text has at least one instruction");
  require(inputs.size() <= kMostPtxInputs, "ptx: a text has 0 to {} inputs. Received {}.", kMostPtxInputs,
          inputs.size());
  for (const Expr& e : inputs) require(!e.empty(), "ptx: every input must be an expression. Received an empty one.");
  require(!meaning.empty(), "ptx: a meaning is needed. Received an empty expression.");
  check_braces(node.name);
  check_types(node.name);
  check_placeholders(node.name, inputs.size());
  check_instructions(node.name);
  check(!ptx_instructions(node.name).empty(), node.name, "the text has at least one instruction");
  check(output >= 0 && output < ptx_output_count(node.name), node.name, "the text has no output {}", output);
  check_meaning(inputs, meaning);
  node.args = std::move(inputs);
  node.args.push_back(meaning);
  return make(std::move(node));
}

Expr without_ptx(const Expr& e) {
  return rewrite(e, [](const Expr& n) { return n->op == Op::ptx ? n->args.back() : n; });
}

}  // namespace mercer::ir

namespace mercer {

Expr ptx(std::string_view text, std::vector<Expr> inputs, const Expr& meaning) {
  const Expr e = ir::ptx_node(text, std::move(inputs), meaning);
  require(ir::ptx_writes_one(e->name),
          "ptx: a text of one meaning writes {{out}}; ptx_outputs() takes the meanings of {{out0}}, {{out1}}, .... "
          "Received \"{}\".", e->name);
  return e;
}

std::vector<Expr> ptx_outputs(std::string_view text, const std::vector<Expr>& inputs,
                              const std::vector<Expr>& meanings) {
  std::vector<Expr> outputs;
  for (const Expr& meaning : meanings)
    outputs.push_back(ir::ptx_node(text, inputs, meaning, static_cast<int>(outputs.size())));
  const int written = outputs.empty() ? 0 : ir::ptx_output_count(outputs[0]->name);
  require(!outputs.empty() && outputs.size() == static_cast<std::size_t>(written),
          "ptx: every output of the text has a meaning. Received {} for the {} outputs of \"{}\".", meanings.size(),
          written, text.substr(0, ir::kShown));
  return outputs;
}

}  // namespace mercer
