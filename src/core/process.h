// Programs that come with the library and run as processes of their own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mercer {

struct ProcessResult {
  std::optional<std::string> output;  ///< of a program that ended with status 0
  std::string why_not;                ///< otherwise: one line
};

/// Runs the program to its end, with `input` as its standard input; both ways through memory, so that neither side
/// waits for the other. Safe from many threads; other open files of this process are not handed on.
ProcessResult run_process(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                          std::string_view input);

/// The program of this name beside the file that this code was loaded from, or in its folder `mercer`.
std::optional<std::filesystem::path> program_beside(const std::string& name);

/// Everything that can be read from a file descriptor on from where it stands; absent after an error.
std::optional<std::string> read_to_end(int descriptor);
/// False after an error.
bool write_whole(int descriptor, std::string_view bytes);

}  // namespace mercer
