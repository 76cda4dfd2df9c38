#include "core/nvrtc_process.h"

#include <charconv>
#include <cstdlib>
#include <exception>

#include "core/error.h"
#include "core/log.h"
#include "core/process.h"

namespace mercer {
namespace {

constexpr const char* kProgram = "mercer-nvrtc";
constexpr const char* kCompiled = "compiled";

/// Each part behind its length.
std::string pack(const std::vector<std::string_view>& parts) {
  std::string message = fmt::format("{}:", parts.size());
  for (const std::string_view part : parts) message += fmt::format("{}:{}", part.size(), part);
  return message;
}

/// Absent where the message is not whole.
std::optional<std::vector<std::string>> unpack(std::string_view message) {
  const auto number = [&message]() -> std::optional<std::size_t> {
    std::size_t value = 0;
    const char* const end = message.data() + message.size();
    const auto [stop, error] = std::from_chars(message.data(), end, value);
    if (error != std::errc() || stop == end || *stop != ':') return std::nullopt;
    message.remove_prefix(static_cast<std::size_t>(stop - message.data()) + 1);
    return value;
  };
  std::vector<std::string> parts;
  const auto count = number();
  if (!count) return std::nullopt;
  for (std::size_t part = 0; part < *count; ++part) {
    const auto size = number();
    if (!size || *size > message.size()) return std::nullopt;
    parts.emplace_back(message.substr(0, *size));
    message.remove_prefix(*size);
  }
  if (!message.empty()) return std::nullopt;
  return parts;
}

/// name, text, the number of options, options, name and text of each header.
std::string request_of(const std::string& name, const std::string& text, const std::vector<std::string>& options,
                       const std::vector<NvrtcHeader>& headers) {
  const std::string count = std::to_string(options.size());
  std::vector<std::string_view> parts = {name, text, count};
  parts.insert(parts.end(), options.begin(), options.end());
  for (const NvrtcHeader& header : headers) parts.insert(parts.end(), {header.name, header.text});
  return pack(parts);
}

NvrtcResult compile_request(const Nvrtc& compiler, const std::vector<std::string>& parts) {
  const std::size_t options = std::stoul(parts.at(2));
  require(options <= parts.size() - 3 && (parts.size() - options) % 2 == 1,
          "NVRTC: a request must be whole. Received {} parts, {} of them options.", parts.size(), options);
  const auto first = parts.begin() + 3, last = first + static_cast<std::ptrdiff_t>(options);
  std::vector<NvrtcHeader> headers;
  for (auto header = last; header != parts.end(); header += 2) headers.push_back({header[0], header[1]});
  return compiler.compile(parts[0], parts[1], {first, last}, headers);
}

}  // namespace

std::optional<NvrtcResult> compile_apart(const Nvrtc& compiler, const std::string& name, const std::string& text,
                                         const std::vector<std::string>& options,
                                         const std::vector<NvrtcHeader>& headers) {
  const auto program = program_beside(kProgram);
  if (!program) {
    log_once(LogLevel::info, "NVRTC: the program {} is not there", kProgram);
    return std::nullopt;
  }
  const ProcessResult process = run_process(*program, {compiler.file()}, request_of(name, text, options, headers));
  const auto parts = process.output ? unpack(*process.output) : std::nullopt;
  if (!parts || parts->size() != 3) {
    log_once(LogLevel::warning, "NVRTC: {} did not compile {}; {}", kProgram, name,
             process.output ? "its answer is not whole" : process.why_not);
    return std::nullopt;
  }
  return NvrtcResult{parts->at(0) == kCompiled, parts->at(1), parts->at(2)};
}

int serve_nvrtc(const char* file, int input, int output) try {
  ::setenv("MERCER_NVRTC", file, 1);
  ::setenv("MERCER_LOG", "off", 1);  // what there is to say the caller has said
  const auto request = read_to_end(input);
  const auto parts = request ? unpack(*request) : std::nullopt;
  const Nvrtc* compiler = nvrtc();
  if (!parts || compiler == nullptr) return EXIT_FAILURE;
  const NvrtcResult result = compile_request(*compiler, *parts);
  const std::string answer = pack({result.ok ? kCompiled : "", result.cubin, result.log});
  return write_whole(output, answer) ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception&) {
  return EXIT_FAILURE;
}

}  // namespace mercer
