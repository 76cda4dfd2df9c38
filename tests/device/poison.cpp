// Linked into every test program: memory that a test reads before something was written there is NaN.
#include <cstdlib>

namespace {

const int is_set = ::setenv("MERCER_POISON", "1", 0);

}  // namespace
