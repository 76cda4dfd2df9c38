// dlopen with reasons.
#include "core/devices/library.h"

#include <dlfcn.h>
#include <link.h>

#include "core/error.h"

namespace mercer {
namespace {

std::string first_missing(void* handle, const std::vector<std::string>& needed) {
  for (const std::string& symbol : needed) {
    if (::dlsym(handle, symbol.c_str()) == nullptr) return symbol;
  }
  return {};
}

}  // namespace

Library::Library(const std::vector<std::string>& names, const std::vector<std::string>& needed) {
  try_names(names, needed, RTLD_NOW | RTLD_LOCAL);
}

Library Library::already_loaded(const std::vector<std::string>& names, const std::vector<std::string>& needed) {
  Library library;
  library.try_names(names, needed, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return library;
}

void Library::try_names(const std::vector<std::string>& names, const std::vector<std::string>& needed, int flags) {
  for (const std::string& name : names) {
    void* handle = ::dlopen(name.c_str(), flags);
    if (handle == nullptr) {
      const char* error = ::dlerror();
      reason_ += fmt::format("{}: {}\n", name, error != nullptr ? error : "not loaded");
      continue;
    }
    const std::string missing = first_missing(handle, needed);
    if (missing.empty()) {
      handle_ = handle;
      name_ = name;
      reason_.clear();
      return;
    }
    reason_ += fmt::format("{}: has no symbol {}\n", name, missing);
  }
  if (names.empty()) reason_ = "no name to try\n";
}

std::string Library::path() const {
  link_map* map = nullptr;
  if (handle_ == nullptr || ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {};
  return map->l_name;
}

void* Library::find(const char* symbol) const { return handle_ == nullptr ? nullptr : ::dlsym(handle_, symbol); }

void* Library::get(const char* symbol) const {
  if (handle_ == nullptr)
    fail(ErrorKind::unsupported, "library: {} needs a library that did not load:\n{}", symbol, reason_);
  void* address = find(symbol);
  if (address == nullptr) fail(ErrorKind::unsupported, "library: {} has no symbol {}.", name_, symbol);
  return address;
}

}  // namespace mercer
