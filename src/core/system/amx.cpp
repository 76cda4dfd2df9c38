#include "core/system/amx.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/error.h"
#include "core/system/cpu_features.h"
#include "core/system/env.h"
#include "core/system/mutex.h"

namespace mercer {
namespace {

bool ask_for_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA
  return cpu_features().amx_int8 && ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool has_amx() {
  if (const auto asked = env_text("MERCER_AMX")) {
    require(*asked == "auto" || *asked == "off", "MERCER_AMX must be auto or off. Received '{}'.", *asked);
    if (*asked == "off") return false;
  }
  static constinit Lazy<bool> granted;
  return granted.get(ask_for_tiles);
}

}  // namespace mercer
