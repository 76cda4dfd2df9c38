// NVRTC's interface for the thread sanitizer, which knows neither NVRTC nor the emulator: compiling takes two
// milliseconds, and the code is the text after its options.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace {

struct Program {
  std::string text, code;
};

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int* list) {
  *list = 90;
  return 0;
}
const char* nvrtcGetErrorString(int) { return "none"; }
int nvrtcCreateProgram(void** program, const char* text, const char*, int, const char* const*, const char* const*) {
  *program = new Program{text, {}};
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  return 0;
}
int nvrtcCompileProgram(void* handle, int count, const char* const* options) {
  Program& program = *static_cast<Program*>(handle);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  for (int i = 0; i < count; ++i) program.code += std::string(options[i]) + " ";
  program.code += program.text;
  return 0;
}
int nvrtcGetProgramLogSize(void*, std::size_t* size) {
  *size = 1;
  return 0;
}
int nvrtcGetProgramLog(void*, char* text) {
  *text = 0;
  return 0;
}
int nvrtcGetCUBINSize(void* program, std::size_t* size) {
  *size = static_cast<Program*>(program)->code.size();
  return 0;
}
int nvrtcGetCUBIN(void* program, char* bytes) {
  const std::string& code = static_cast<Program*>(program)->code;
  std::memcpy(bytes, code.data(), code.size());
  return 0;
}
int nvrtcGetPTXSize(void*, std::size_t* size) {
  *size = 0;
  return 0;
}
int nvrtcGetPTX(void*, char*) { return 1; }
}
