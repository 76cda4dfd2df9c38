// Register pressure: which tile of accumulators fits next to what a program needs.
#pragma once

#include <array>
#include <vector>

#include "ir/expr/program.h"
#include "plan/cpu/kernel.h"
#include "plan/cpu/target.h"

namespace mercer::plan {

/// a op b = b op a, bit for bit (but for the payload of a NaN).
bool commutes(ir::Prim op);
/// Leaves that some instruction can only take from a register: an x86 instruction reads memory as its last operand.
std::vector<bool> leaves_in_registers(const ir::Program& program, bool embedded_broadcast);
/// Whether three bits of an index choose the entry of a table: AVX2 then permutes once instead of twice and a choice.
bool repeats_after_eight(const std::array<double, 16>& table);
/// How many of a row's `vectors` instances are emitted side by side: all of them or one. A long chain needs neighbours
/// to fill its latencies; a short one leaves that to the processor's own reordering, and sixteen registers then hold a
/// larger tile.
int side_by_side(const ir::Program& program, int vectors, const TargetInfo& target);
/// Features of one turn of the update's loop. A core that runs four vector instructions a cycle takes two more at most:
/// with 256-bit vectors the loop's own would cost a short program up to a tenth of its rate.
int unrolled_features(const ir::Program& program, const TargetInfo& target);
/// Registers that temporaries need for `vectors` instances side by side; more are useful for constants.
int temporaries(const ir::Program& program, int vectors, bool embedded_broadcast);

/// Whether the masks alive at once in `vectors` instances fit the target's mask registers.
bool masks_fit(const ir::Program& program, int vectors, const TargetInfo& target);
/// Vectors of an epilogue that fit side by side next to a tile's accumulators: all of them, one, or 0 for none.
int fused_group(const ir::Program& epilogue, const TileShape& tile, int states, const TargetInfo& target);

/// The largest register tile whose accumulators, vectors of z and temporaries fit the target.
TileShape choose_tile(const ir::Program& update, int z_streams, Target target);

/// Vectors of features, outputs and rows of one field kernel: few passes over φ, accumulators in registers, and where
/// there is room x and the coefficients of a point too (`holds`).
struct FieldShape {
  int vectors, outputs, rows;
  bool holds;
};
inline constexpr int kMostFieldOutputs = 16, kMostFieldRows = 4;
FieldShape choose_field(const ir::Program& field, int outputs, std::int64_t features, const TargetInfo& target);
/// Vectors of a fold whose program has the states of some outputs, or 0 where they do not fit the registers.
int fold_vectors(const ir::Program& program, std::int64_t features, Target target);

}  // namespace mercer::plan
