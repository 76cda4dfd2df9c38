// Loads foreign shared libraries at run time, so that one build runs with and without them.
#pragma once

#include <string>
#include <vector>

namespace mercer {

/// A loaded library, or the reason why there is none. Never closed: OpenBLAS and CUDA leave threads and exit handlers
/// after. Copies refer to the same library.
class Library {
 public:
  Library() = default;
  /// Tries the names in order and keeps the first that loads and has every symbol of `needed`.
  Library(const std::vector<std::string>& names, const std::vector<std::string>& needed = {});

  /// The first of the names that this process has loaded already; loads nothing.
  static Library already_loaded(const std::vector<std::string>& names, const std::vector<std::string>& needed = {});

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }       ///< the name that loaded
  std::string path() const;                               ///< the file that it is, if the loader tells
  const std::string& why_not() const { return reason_; }  ///< one line a name tried; empty when loaded
  /// The address of a symbol, nullptr when absent.
  void* find(const char* symbol) const;
  /// As `find`, throwing unsupported when the library or the symbol is absent.
  void* get(const char* symbol) const;
  template <class Function>
  Function* function(const char* symbol) const {
    return reinterpret_cast<Function*>(get(symbol));
  }

 private:
  void try_names(const std::vector<std::string>& names, const std::vector<std::string>& needed, int flags);

  void* handle_ = nullptr;
  std::string name_, reason_;
};

}  // namespace mercer
