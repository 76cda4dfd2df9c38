// NVRTC's interface over the host's compiler: the "cubin" is a shared library that driver.cpp loads. A text that was
// compiled before in this process is not compiled again: tests ask for the same kernels over and over.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "translate.h"

namespace {

namespace fs = std::filesystem;

struct Program {
  std::string text, log, code;
};

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// One that is gone with the scope.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "emulator-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path = name;
  }
  ~Folder() {
    std::error_code error;
    if (!path.empty()) fs::remove_all(path, error);
  }
};

/// Code by the text it was compiled from.
struct Compiled {
  std::mutex mutex;
  std::map<std::string, std::string> code;
};
Compiled& compiled() {
  static Compiled* const kept = new Compiled;
  return *kept;
}

void compile(Program& program, const std::string& text) {
  const Folder folder;
  const fs::path source = folder.path / "kernel.cpp", library = folder.path / "kernel.so", log = folder.path / "log";
  std::ofstream(source) << text;
  if (const char* keep = std::getenv("EMULATOR_KEEP")) fs::copy(source, keep, fs::copy_options::overwrite_existing);
  // Under names that are the same every time and in every checkout, so that a compiler cache knows the text again.
  fs::create_directory_symlink(EMULATOR_PRECOMPILED, folder.path / "precompiled");
  fs::create_directory_symlink(EMULATOR_FOLDER, folder.path / "emulator");
  // The cache does not look into a precompiled header. Libraries are those of the process, which are there already.
  const std::string headers = EMULATOR_FOLDER "/device_text.h:" EMULATOR_FOLDER "/device_builtins.h:" EMULATOR_FOLDER
                                              "/machine.h";
  const std::string command =
      "cd " + folder.path.string() + " && CCACHE_EXTRAFILES=" + headers +
      " " EMULATOR_LAUNCHER " " EMULATOR_COMPILER " " EMULATOR_OPTIONS
      " -c -Iprecompiled -Iemulator -o kernel.o kernel.cpp 2> log && "
      EMULATOR_COMPILER " -shared -nostdlib -o kernel.so kernel.o -lgcc 2>> log";
  const int status = std::system(command.c_str());
  program.log = read(log);
  if (status == 0) program.code = read(library);
}

void build(Program& program, const std::vector<std::string>& options) {
  if (program.text.empty()) {  // compiled for its options alone
    program.code = "nothing";
    return;
  }
  const std::string text = emulator::translate(program.text, options);
  Compiled& all = compiled();
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.code.find(text); found != all.code.end()) {
      program.code = found->second;
      return;
    }
  }
  compile(program, text);
  const std::lock_guard lock(all.mutex);
  if (!program.code.empty()) all.code.emplace(text, program.code);
}

int copy(const std::string& from, std::size_t extra, char* to) {
  std::memcpy(to, from.c_str(), from.size() + extra);
  return 0;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 6;
  return 0;
}
int nvrtcGetSupportedArchs(int* list) {
  for (const int architecture : {80, 86, 89, 90, 100, 120}) *list++ = architecture;
  return 0;
}
const char* nvrtcGetErrorString(int result) { return result == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION"; }
int nvrtcCreateProgram(void** program, const char* text, const char*, int, const char* const*, const char* const*) {
  *program = new Program{text, {}, {}};
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  *program = nullptr;
  return 0;
}
int nvrtcCompileProgram(void* handle, int count, const char* const* options) {
  Program& program = *static_cast<Program*>(handle);
  try {
    build(program, {options, options + count});
  } catch (const std::exception& e) {
    program.log = e.what();
  }
  return program.code.empty() ? 6 : 0;
}
int nvrtcGetProgramLogSize(void* program, std::size_t* size) {
  *size = static_cast<Program*>(program)->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(void* program, char* text) { return copy(static_cast<Program*>(program)->log, 1, text); }
int nvrtcGetCUBINSize(void* program, std::size_t* size) {
  *size = static_cast<Program*>(program)->code.size();
  return 0;
}
int nvrtcGetCUBIN(void* program, char* bytes) { return copy(static_cast<Program*>(program)->code, 0, bytes); }
int nvrtcGetPTXSize(void*, std::size_t* size) {
  *size = 0;
  return 0;
}
int nvrtcGetPTX(void*, char*) { return 1; }
}
