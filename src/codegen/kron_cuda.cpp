#include "codegen/kron_cuda.h"

#include <fmt/format.h>

#include "codegen/cuda_text.h"
#include "core/error.h"

namespace mercer::codegen {
namespace {

/// Whole numbers are computed without signs, so that they wrap around.
const char* element_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float16: return "half_bits";
    case Dtype::bfloat16: return "bfloat_bits";
    case Dtype::float32: return "float";
    case Dtype::float64: return "double";
    case Dtype::int32: return "u32";
    case Dtype::int64: return "u64";
    default: fail(ErrorKind::compile, "kron: no elements of {}.", name_of(dtype));
  }
}

std::string text_of(std::string_view file) { return std::string(cuda_text(file)); }

std::string opening(Dtype type, Dtype in, Dtype out) {
  return text_of("arguments.h") + text_of("prelude.cuh") +
         fmt::format("#define REAL {}\n#define IN {}\n#define OUT {}\n", element_type(type), element_type(in),
                     element_type(out)) +
         text_of("kron_values.cuh");
}

std::string opening(const plan::KronGpuTypes& types) {
  return opening(types.type, types.in, types.out) +
         fmt::format("#define FACTOR {}\n#define FINAL {}\n#define VECTORS_IN {}\n#define VECTORS_OUT {}\n",
                     element_type(types.factor), int{types.final}, int{types.vectors_in}, int{types.vectors_out});
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
