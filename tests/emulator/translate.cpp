#include "translate.h"

#include <cctype>
#include <regex>
#include <stdexcept>

namespace emulator {
namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The end of what starts at `at`: a literal, a comment, or one character.
std::size_t skip(const std::string& text, std::size_t at) {
  if (text[at] == '"' || text[at] == '\'') {
    std::size_t end = at + 1;
    while (text.at(end) != text[at]) end += text[end] == '\\' ? 2 : 1;
    return end + 1;
  }
  if (text.compare(at, 2, "//") == 0) return std::min(text.find('\n', at), text.size());
  return at + 1;
}

/// The position after the bracket that closes the one at `at`.
std::size_t closing(const std::string& text, std::size_t at) {
  int depth = 0;
  do {
    if (text.at(at) == '(' || text[at] == '[' || text[at] == '{') ++depth;
    if (text[at] == ')' || text[at] == ']' || text[at] == '}') --depth;
    at = skip(text, at);
  } while (depth > 0);
  return at;
}

/// Parts between separators outside of brackets and literals.
std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> all(1);
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const std::size_t end = c == '(' || c == '[' || c == '{' ? closing(text, at) : skip(text, at);
    if (c == separator)
      all.emplace_back();
    else
      all.back() += text.substr(at, end - at);
    at = end;
  }
  return all;
}

/// `asm("text" : "=r"(a) : "r"(b) : "memory")` as a call of ptx<"text">(a, b).
std::string statement_of(const std::string& inside) {
  const std::vector<std::string> sections = parts(inside, ':');
  std::string call = "emulator::ptx<" + sections[0] + ">(", comma;
  for (std::size_t s = 1; s < sections.size() && s < 3; ++s) {
    for (const std::string& operand : parts(sections[s], ',')) {
      const auto open = operand.find('(');
      if (open == std::string::npos) continue;
      call += comma + operand.substr(open, closing(operand, open) - open);
      comma = ", ";
    }
  }
  return call + ")";
}

std::string without_asm(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const bool starts =
        text.compare(at, 3, "asm") == 0 && (at == 0 || !is_name(text[at - 1])) && !is_name(text[at + 3]);
    if (!starts) {
      const std::size_t end = skip(text, at);
      out += text.substr(at, end - at);
      at = end;
      continue;
    }
    const std::size_t open = text.find('(', at), end = closing(text, open);
    out += statement_of(text.substr(open + 1, end - open - 2));
    at = end;
  }
  return out;
}

/// Arrays in shared memory become references into the block's memory.
std::string without_shared(const std::string& text) {
  static const std::regex pattern(
      R"(( *)(extern )?__shared__\s+(?:__align__\(\d+\)\s+)?((?:unsigned (?:long long|char|int))|\w+)\s+([^;=]*);)");
  std::string out;
  int site = 0;
  std::size_t last = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    out += text.substr(last, static_cast<std::size_t>(at->position()) - last);
    last = static_cast<std::size_t>(at->position() + at->length());
    const std::string indent = (*at)[1], type = (*at)[3];
    for (const std::string& declarator : parts((*at)[4], ',')) {
      const auto begin = declarator.find_first_not_of(" \n");
      const auto bracket = std::min(declarator.find('['), declarator.size());
      const std::string name = declarator.substr(begin, bracket - begin), array = type + declarator.substr(bracket);
      const std::string place = "emulator::shared<" + array + ">(" + std::to_string(site++) + ")";
      if ((*at)[2].matched)
        out += indent + type + "* " + name + " = (" + type + "*)emulator::self->block->shared;";
      else if (indent.empty())
        out += "#define " + name + " (" + place + ")\n";
      else
        out += indent + "auto& " + name + " = " + place + ";";
    }
  }
  return out + text.substr(last);
}

/// Events that a profiler would count (driver.cpp), of a text that has some.
const char* events_of(const std::string& text) {
  if (text.find("\"pmevent 0;\"") == std::string::npos) return "";
  return "extern \"C\" __attribute__((visibility(\"default\"))) unsigned long long* emulated_events = nullptr;\n"
         "namespace emulator {\n"
         "EMULATOR_PTX(\"pmevent 0;\", ()) { __atomic_fetch_add(emulated_events, 1, __ATOMIC_RELAXED); }\n"
         "}\n";
}

struct KernelText {
  std::string name, cluster;
};

std::vector<KernelText> kernels_of(const std::string& text) {
  static const std::regex pattern(R"(extern "C" __global__ void\s+(?:__cluster_dims__\((\w+), 1, 1\)\s*)?)"
                                  R"((?:__launch_bounds__\([^)]*\)\s*)?(\w+)\()");
  std::vector<KernelText> all;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at)
    all.push_back({(*at)[2], (*at)[1].matched ? (*at)[1].str() : "1"});
  return all;
}

}  // namespace

std::string translate(const std::string& text, const std::vector<std::string>& options) {
  // The first line: a compiler takes a precompiled header only there.
  std::string out = "#include \"device_text.h\"\n#define __cluster_dims__(...)\n";
  for (const std::string& option : options) {
    if (!option.starts_with("-D")) continue;
    const auto equals = option.find('=');
    out += "#define " + option.substr(2, equals == std::string::npos ? equals : equals - 2) + " " +
           (equals == std::string::npos ? "1" : option.substr(equals + 1)) + "\n";
  }
  out += events_of(text);
  out += "#line 1 \"kernel.cu\"\n" + without_shared(without_asm(text)) + "\n";
  const std::vector<KernelText> kernels = kernels_of(text);
  if (kernels.empty()) throw std::runtime_error("no kernel in the text");
  out +=
      "static emulator::Thread** emulated_self() { return &emulator::self; }\n"
      "#define EMULATOR_EXPORT extern \"C\" __attribute__((visibility(\"default\")))\n"
      "EMULATOR_EXPORT void emulated_start(const emulator::Host* host) { emulator::host = host; }\n"
      "EMULATOR_EXPORT const emulator::Kernel emulated_kernels[] = {\n";
  for (const KernelText& kernel : kernels)
    out += "  {\"" + kernel.name + "\", [](void** args) { emulator::call(" + kernel.name + ", args); },\n   " +
           "[](void** args) { return emulator::clone(" + kernel.name + ", args); }, emulated_self, " + kernel.cluster +
           "},\n";
  return out + "  {}};\n";
}

}  // namespace emulator
