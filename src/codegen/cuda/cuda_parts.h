// Parts that the sources of several kernels share.
#pragma once

#include <cstdint>
#include <string>

#include "plan/gpu/plan.h"

namespace mercer::codegen {

std::string define(const char* name, std::int64_t value);
std::string define(const char* name, const char* value);
/// What all texts stand on, and REAL, the computing type.
std::string prelude(Dtype type);

/// Inputs as the functions of a skeleton name them: x[0], row[1], params[2] …
std::string site_name(const ir::Input& input);
/// The statements of a function whose results are output[0] …
std::string statements(const ir::Program& program, const char* output);

std::string identity_function(const plan::GpuPairPlan& plan);
std::string update_function(const plan::GpuPairPlan& plan, const char* name, const ir::Program& program);
/// The table of a fixed power, in shared memory, and its two halves (ir/lower/fit_power.h).
std::string power_functions(double p, int mantissa_bits);
/// A parameter's power: its table is made by the block that reads it.
std::string power_functions_of_param(int mantissa_bits);
std::string epilogue_function(const std::string& body);
std::string epilogue_function(const plan::GpuPairPlan& plan);
/// Where a guard finds the points of a pair (kernels/cuda/pairs/safe_norms.cuh).
enum class GuardSource : std::uint8_t { panels, points, rows, values };
/// What replaces values whose sums leave the range; of a plan without a guard, nothing (pairs/unguarded.cuh). Its
/// kernel knows all else. `unroll`: how often a loop over the features of such a pair is unrolled.
std::string guard_text(const plan::GpuPairPlan& plan, GuardSource source,
                       const char* unroll = "(MERCER_QUICK ? 1 : 4)");
/// What a marked value is (plan::GpuPairProblem): a NaN that no operation makes.
std::string mark_text(Dtype type);
/// What an epilogue outside of pair_tile.cuh is told.
std::string epilogue_text(const plan::GpuPairPlan& plan, const std::string& function);
std::string streams_defines(const plan::GpuPairPlan& plan);
/// v of products with many columns, and what they multiply it with: in pieces of 16 bits, or of tf32.
std::string wide_text(const plan::BilinearTile& tile, bool halves);
/// The definitions for tiles with such products.
std::string wide_defines(const plan::BilinearTile& tile, plan::VPieces pieces);

}  // namespace mercer::codegen
