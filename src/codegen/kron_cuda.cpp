#include "codegen/kron_cuda.h"

#include <fmt/format.h>

#include "codegen/cuda_products.h"
#include "codegen/cuda_text.h"
#include "core/error.h"
#include "core/integers.h"

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

std::string cuda_kron_source(const plan::KronWide& wide) {
  std::string text = opening(wide.types);
  text += fmt::format("#define PAIR {}\n#define P1 {}\n#define Q1 {}\n#define P2 {}\n#define Q2 {}\n", int{wide.pair},
                      wide.p1, wide.q1, wide.p2, wide.q2);
  text += fmt::format("#define TILE_N {}\n#define GROUPS {}\n#define WARPGROUPS {}\n", wide.tile_n, wide.groups,
                      wide.warpgroups);
  text += fmt::format("#define STRIP {}\n#define IN_WIDTH {}\n#define OUT_WIDTH {}\n",
                      plan::KronWide::kStrip, wide.in_width, wide.out_width);
  text += fmt::format("#define X_EXPONENT {}\n#define EXPONENT_1 {}\n#define EXPONENT_2 {}\n", wide.x_exponent(),
                      wide.first_exponent(), plan::KronWide::kExponent);
  text += "#define CLUSTER 1\n" + text_of("warpgroups.cuh") + text_of("split_pieces.cuh");
  const auto product = [&](const char* name, std::int64_t columns, bool of_registers) {
    text += product_function({name, static_cast<int>(columns), static_cast<int>(columns / 2), "k16.f32.f16.f16",
                              of_registers, of_registers ? ", 1, 1, 0" : ", 1, 1, 0, 0"});
  };
  product("first_product", wide.tile_n, false);
  const std::int64_t outputs = round_up(wide.q2, 16), rest = outputs % plan::KronWide::kStrip;
  if (wide.pair && outputs >= plan::KronWide::kStrip) product("second_product", plan::KronWide::kStrip, true);
  if (wide.pair && rest != 0) product("second_product", rest, true);
  return text + text_of("kron_wide.cuh");
}

std::string cuda_kron_finish_source(Dtype type, Dtype out) {
  return opening(type, type, out) + text_of("kron_finish.cuh");
}

}  // namespace mercer::codegen
