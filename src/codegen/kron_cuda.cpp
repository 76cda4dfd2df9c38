#include "codegen/kron_cuda.h"

#include <fmt/format.h>

#include "codegen/cuda_program.h"
#include "codegen/cuda_text.h"

namespace mercer::codegen {
namespace {

/// Whole numbers are computed without signs, so that they wrap around.
const char* kron_type(Dtype dtype) {
  return dtype == Dtype::int32 ? "u32" : dtype == Dtype::int64 ? "u64" : element_type(dtype);
}

std::string text_of(std::string_view file) { return std::string(cuda_text(file)); }

std::string opening(Dtype type, Dtype in, Dtype out) {
  return text_of("arguments.h") + text_of("prelude.cuh") +
         fmt::format("#define REAL {}\n#define IN {}\n#define OUT {}\n", kron_type(type), kron_type(in),
                     kron_type(out)) +
         text_of("kron_values.cuh");
}

std::string opening(const plan::KronGpuTypes& types) {
  return opening(types.type, types.in, types.out) +
         fmt::format("#define FACTOR {}\n#define FINAL {}\n#define VECTORS_IN {}\n#define VECTORS_OUT {}\n",
                     kron_type(types.factor), int{types.final}, int{types.vectors_in}, int{types.vectors_out});
}

}  // namespace

std::string cuda_kron_source(const plan::KronGpuTile& tile) {
  std::string text = opening(tile.types);
  text += fmt::format("#define P {}ll\n#define Q {}ll\n", tile.p, tile.q);
  text += fmt::format("#define TILE_A {}\n#define TILE_B {}\n#define TILE_P {}\n#define TILE_Q {}\n", tile.tile_a,
                      tile.tile_b, tile.tile_p, tile.tile_q);
  text += fmt::format("#define THREAD_N {}\n#define THREAD_Q {}\n#define GROUPS_N {}\n#define GROUPS_Q {}\n",
                      tile.thread_n, tile.thread_q, tile.groups_n, tile.groups_q);
  return text + text_of("kron_step.cuh");
}

std::string cuda_kron_finish_source(Dtype type, Dtype out) {
  return opening(type, type, out) + text_of("kron_finish.cuh");
}

}  // namespace mercer::codegen
