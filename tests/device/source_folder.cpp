// The one file of the tests that is another one in each checkout, so that a compiler cache serves the rest.
#include "device/source_folder.h"

#include <system_error>

namespace mercer::testing {

namespace fs = std::filesystem;

fs::path source_folder() { return MERCER_SOURCE_DIR; }

std::vector<fs::path> venv_packages() {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(source_folder() / ".venv" / "lib", error), end; !error && at != end;
       at.increment(error))
    found.push_back(at->path() / "site-packages");
  return found;
}

}  // namespace mercer::testing
