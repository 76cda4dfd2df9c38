#include "plan/cpu/registers.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::plan {

using ir::Instr;
using ir::Prim;

namespace {

/// Programs of at most so many steps, and of more than so many, leaves not counted.
constexpr int kShortChain = 4, kLongProgram = 9;  // steps
/// Longer programs hide the instructions of the loop itself.
constexpr int kMostUnrolled = 5;
/// No instruction takes more registers at once, for operands, result and temporaries, with some to spare for masks and
/// constants that stay in registers.
constexpr int kMostOfOneStep = 12;
/// A program of five steps with more accumulators than this falls into a rhythm 10 % off its floor (Zen 4).
constexpr int kMostForLongerChains = 18;

int steps_of(const ir::Program& program) {
  return static_cast<int>(
      std::count_if(program.code.begin(), program.code.end(), [](const Instr& i) { return !is_leaf(i.op); }));
}

}  // namespace

bool commutes(Prim op) {
  switch (op) {
    case Prim::add:
    case Prim::mul:
    case Prim::bit_and:
    case Prim::bit_or:
    case Prim::bit_xor:
    case Prim::int_add:
    case Prim::int_max:
    case Prim::abs_max: return true;
    default: return false;
  }
}

std::vector<bool> leaves_in_registers(const ir::Program& program, bool embedded_broadcast) {
  std::vector<bool> needed(program.code.size(), false);
  auto in_memory = [&](std::int32_t o) {
    const Instr& leaf = program.code[o];
    if (leaf.op == Prim::constant) return true;
    if (leaf.op != Prim::input) return false;
    const ir::Site site = program.inputs[leaf.index].site;
    return site != ir::Site::z && site != ir::Site::accumulator;
  };
  for (const Instr& instr : program.code) {
    switch (ir::operand_count(instr.op)) {
      case 2:
        if (in_memory(instr.a) && (!commutes(instr.op) || in_memory(instr.b))) needed[instr.a] = true;
        break;
      case 3:
        if (instr.op == Prim::select) {
          if (in_memory(instr.c)) needed[instr.c] = true;
        } else if (in_memory(instr.a) && in_memory(instr.b)) {
          needed[program.code[instr.a].op == Prim::constant ? instr.a : instr.b] = true;
        }
        break;
      default: break;
    }
    if (embedded_broadcast) continue;
    for (std::int32_t o : operands(instr))
      if (o >= 0 && in_memory(o) && program.code[o].op != Prim::constant) needed[o] = true;
  }
  return needed;
}

bool repeats_after_eight(const std::array<double, 16>& table) {
  return std::equal(table.begin(), table.begin() + 8, table.begin() + 8);
}

int side_by_side(const ir::Program& program, int vectors, const TargetInfo& target) {
  if (target.registers <= 16 && steps_of(program) <= kShortChain) return 1;
  return masks_fit(program, vectors, target) ? vectors : 1;
}

int unrolled_features(const ir::Program& program, const TargetInfo& target) {
  return target.registers <= 16 && steps_of(program) <= kMostUnrolled ? 2 : 1;
}

int temporaries(const ir::Program& program, int vectors, bool embedded_broadcast) {
  const std::size_t n = program.code.size();
  std::vector<int> last(n, -1), output(n, -1), state_read(program.outputs.size(), -1);
  for (std::size_t i = 0; i < n; ++i)
    for (std::int32_t o : operands(program.code[i]))
      if (o >= 0) last[o] = static_cast<int>(i);
  for (std::size_t s = 0; s < program.outputs.size(); ++s) output[program.outputs[s]] = static_cast<int>(s);
  auto state_of = [&](std::size_t i) {  // of an accumulator, -1 for other values
    const Instr& leaf = program.code[i];
    const bool state = leaf.op == Prim::input && program.inputs[leaf.index].site == ir::Site::accumulator;
    return state ? program.inputs[leaf.index].slot : -1;
  };
  int live = 0, peak = 0, scratch = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const int s = state_of(i);
    if (s < 0 || s >= static_cast<int>(state_read.size())) continue;
    state_read[s] = std::max(state_read[s], last[i]);
    live += output[i] >= 0 && output[i] != s;  // a state that moves to another one needs a copy
  }
  for (std::size_t i = 0; i < n; ++i) {
    const Instr& instr = program.code[i];
    if (is_leaf(instr.op)) continue;
    std::int32_t previous = -1;
    for (std::int32_t o : operands(instr)) {
      if (o < 0 || o == previous || is_leaf(program.code[o].op)) continue;
      if (last[o] != static_cast<int>(i) || output[o] >= 0) continue;
      live -= !(ir::makes_mask(program.code[o].op) && embedded_broadcast);
      previous = o;
    }
    // A new state takes the register of the old one when that has been read for the last time.
    const bool in_place = output[i] >= 0 && last[i] < 0 && state_read[output[i]] <= static_cast<int>(i);
    if (!in_place && !(ir::makes_mask(instr.op) && embedded_broadcast)) ++live;
    peak = std::max(peak, live);
    const bool permuted = !embedded_broadcast && instr.op == Prim::table16 && program.type == Dtype::float32 &&
                          repeats_after_eight(program.tables[instr.index]);
    const bool table = instr.op == Prim::table16 && !permuted;
    // Instructions that write their result before they release their operands.
    const bool steps = instr.op == Prim::select || (instr.op == Prim::bit_or && embedded_broadcast) || table ||
                       instr.op == Prim::large_sine;
    const bool emulated = !embedded_broadcast && (instr.op == Prim::abs_max || table);
    scratch = std::max(scratch, emulated ? 3 : steps ? 1 : 0);
  }
  const std::vector<bool> needed = leaves_in_registers(program, embedded_broadcast);
  return peak * vectors + scratch + static_cast<int>(std::count(needed.begin(), needed.end(), true));
}

bool masks_fit(const ir::Program& program, int vectors, const TargetInfo& target) {
  if (target.mask_registers == 0) return true;  // masks are ordinary values
  const auto& code = program.code;
  std::vector<int> ends(code.size(), 0);
  std::vector<std::size_t> last(code.size(), 0);
  for (std::size_t i = 0; i < code.size(); ++i)
    for (std::int32_t o : operands(code[i]))
      if (o >= 0) last[o] = i;
  for (std::size_t i = 0; i < code.size(); ++i)
    if (ir::makes_mask(code[i].op)) ++ends[std::max(i, last[i])];
  int live = 0, peak = 0;
  for (std::size_t i = 0; i < code.size(); ++i) {
    const bool combines = code[i].op >= Prim::mask_and && code[i].op <= Prim::mask_not;  // into an operand's register
    if (combines) live -= ends[i];
    live += ir::makes_mask(code[i].op);
    peak = std::max(peak, live);
    if (!combines) live -= ends[i];
  }
  return peak * vectors <= target.mask_registers;
}

int fused_group(const ir::Program& epilogue, const TileShape& tile, int states, const TargetInfo& target) {
  const int free = target.registers - states * tile.rows * tile.vectors;
  for (int group : {tile.vectors, 1}) {
    const int needed = temporaries(epilogue, group, target.embedded_broadcast) + 1;
    if (needed <= free && masks_fit(epilogue, group, target)) return group;
    // A tile of one row ends with few epilogues: rather some of their values on the stack than a call for each.
    if (group == 1 && tile.rows == 1 && free >= kMostOfOneStep && masks_fit(epilogue, 1, target)) return 1;
  }
  return 0;
}

TileShape choose_tile(const ir::Program& update, int z_streams, Target target) {
  const TargetInfo& info = target_info(target);
  const int states = static_cast<int>(update.outputs.size());
  // Shapes in order of preference: few loads per accumulator first. The last one always fits or the interpreter serves.
  struct Shape {
    int rows, vectors;
  };
  static constexpr Shape kWide[] = {{8, 3}, {6, 3}, {8, 2}, {4, 3}, {6, 2}, {4, 2},
                                    {8, 1}, {6, 1}, {2, 2}, {4, 1}, {2, 1}, {1, 1}};
  // Shapes for five steps and more, whose chains are two or four side by side, not three (4 to 5 % on Zen 4).
  static constexpr Shape kMediumWide[] = {{4, 4}, {8, 2}, {6, 2}, {4, 2}, {8, 1},
                                          {6, 1}, {2, 2}, {4, 1}, {2, 1}, {1, 1}};
  static constexpr Shape kNarrow[] = {{6, 2}, {5, 2}, {4, 2}, {3, 2}, {2, 2}, {8, 1}, {6, 1}, {4, 1}, {2, 1}, {1, 1}};
  // A long program hides its loads; what it wants is its constants in registers.
  static constexpr Shape kLongWide[] = {{6, 2}, {4, 2}, {2, 2}, {4, 1}, {2, 1}, {1, 1}};
  static constexpr Shape kConstantsFirst[] = {{6, 2}, {4, 2}, {2, 2}};
  static constexpr Shape kLongNarrow[] = {{2, 2}, {4, 1}, {2, 1}, {1, 1}};
  // A program of sixteen registers wants three chains side by side, one row, and values on the stack rather: on Zen 4
  // exp runs 1.14, log 1.18, a general power 1.34 times as fast as with the largest tile that fits.
  static constexpr int kChains = 3;
  // A constant read from memory costs a load slot per vector: without embedded broadcasts a few deserve registers, and
  // a long program of wide vectors would rather have few rows than more than two of its constants or tables in memory
  // (a power with nine: 5 % faster in four rows than in six).
  constexpr int kMostInMemory = 2;
  int constants = 0;
  const std::vector<bool> counted = leaves_in_registers(update, info.embedded_broadcast);
  for (std::size_t i = 0; i < update.code.size(); ++i) constants += update.code[i].op == Prim::constant && !counted[i];
  const int tables = update.type == Dtype::float32 ? static_cast<int>(update.tables.size()) : 0;
  const int most_wanted = std::max(0, constants + tables - kMostInMemory);
  constants = info.embedded_broadcast ? 0 : std::min(constants, 4);
  const bool short_chain = steps_of(update) <= kShortChain;
  auto fits = [&](Shape s, int pinned) {
    if (!short_chain && s.rows * s.vectors > kMostForLongerChains) return false;
    const int needed = temporaries(update, side_by_side(update, s.vectors, info), info.embedded_broadcast);
    return states * s.rows * s.vectors + z_streams * s.vectors + needed + pinned <= info.registers;
  };
  TileShape tile{1, 1, info.lanes(update.type)};
  auto choose = [&](auto& shapes, int pinned) {
    for (Shape s : shapes) {
      if (!fits(s, pinned)) continue;
      tile.rows = s.rows;
      tile.vectors = s.vectors;
      return true;
    }
    return false;
  };
  const bool is_long = steps_of(update) > kLongProgram, wide = info.registers > 16;
  if (target == Target::interpreter) tile = {8, 16, info.lanes(update.type)};
  else if (wide && !is_long) short_chain ? choose(kWide, 0) : choose(kMediumWide, 0);
  else if (wide) choose(kConstantsFirst, most_wanted) || choose(kLongWide, 0);
  else if (is_long && states == 1) tile.vectors = kChains;
  else is_long ? choose(kLongNarrow, constants) : choose(kNarrow, constants);
  return tile;
}

int fold_vectors(const ir::Program& program, std::int64_t features, Target target) {
  constexpr int kMostVectors = 4;
  const TargetInfo& info = target_info(target);
  const int states = static_cast<int>(program.outputs.size()), lanes = info.lanes(program.type);
  const std::int64_t needed = std::clamp<std::int64_t>(ceil_div(features, lanes), 1, kMostVectors);
  for (int vectors = static_cast<int>(needed); vectors >= 1; --vectors) {
    const int taken = states * vectors + temporaries(program, vectors, info.embedded_broadcast) + vectors;
    if (taken <= info.registers && masks_fit(program, vectors, info)) return vectors;
  }
  return 0;
}

FieldShape choose_field(const ir::Program& field, int outputs, std::int64_t features, const TargetInfo& info) {
  constexpr int kMostVectors = 4;
  constexpr double kLoop = 1;  // cycles that a turn of the loop adds
  const int lanes = info.lanes(field.type);
  if (info.target == Target::interpreter) return {16, std::clamp(outputs, 1, kMostFieldOutputs), 1, false};
  const std::int64_t needed = std::max<std::int64_t>(1, ceil_div(features, lanes));
  const double phi = count_pipes(field, info).cycles(), multiply = pace(info);
  FieldShape best{1, 1, 1, false};
  double best_cost = 0;
  const auto consider = [&](const FieldShape& wanted) {
    const int vectors = wanted.vectors, rows = wanted.rows;
    if (vectors > 1 && !masks_fit(field, vectors, info)) return;
    // Several rows share a register for every vector of z.
    const int held = !wanted.holds ? 0 : vectors * (rows + (rows > 1));
    const int free = info.registers - temporaries(field, vectors, info.embedded_broadcast) - vectors - held;
    const int most = std::min({outputs, free / (rows * vectors + wanted.holds), kMostFieldOutputs});
    if (most < 1) return;
    // φ is computed once per tile of outputs, a multiply-add per output; few accumulators leave latency uncovered.
    const int tiles = ceil_div(outputs, most), height = ceil_div(outputs, tiles), sums = rows * vectors;
    const double padding =
        static_cast<double>(round_up(needed, std::int64_t{vectors})) / static_cast<double>(needed);
    const double loads = wanted.holds ? vectors * (rows > 1 ? 1 : rows) + rows * height : vectors * (2 + height);
    const double turn = std::max({sums * (phi + height * multiply), loads / info.loads, info.latency}) + kLoop;
    const double cost = tiles * turn / sums * padding;
    if (best_cost > 0 && cost >= best_cost) return;
    best_cost = cost;
    best = {vectors, height, rows, wanted.holds};
  };
  for (int vectors = 1; vectors <= kMostVectors; ++vectors) {
    consider({vectors, 1, 1, false});
    for (int rows = 1; rows <= kMostFieldRows; rows *= 2) consider({vectors, 1, rows, true});
  }
  return best;
}

}  // namespace mercer::plan
