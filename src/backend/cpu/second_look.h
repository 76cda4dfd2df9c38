// A second look at a float32 tile: pairs whose sums left the range, or are so small beside their points that they lost
// digits (plan/guard.h), are computed again in float64.
#pragma once

#include <vector>

#include "backend/cpu/pair_engine.h"

namespace mercer::cpu {

/// The float64 panels of one side, shared by the tiles and threads of a call.
class SharedPanels {
 public:
  explicit SharedPanels(const Packer<double>& packer);
  /// Where all of them would take too much memory, panels are packed into `own` each time.
  PanelView<double> view(std::int64_t p, PackedSide<double>& own) const;

 private:
  const Packer<double>& packer_;
  std::vector<MadeOnce<PackedSide<double>>> panels_;  // empty: they would
};

/// What the second looks of one float32 engine share.
struct SecondPass {
  SecondPass(const PairProgram& program, const PairItem& item, const ParamBlock<float>& params);
  PairEngine<double> engine;
  SharedPanels x, z;
};

/// A tile whose sums are known. Its values are replaced where that is needed.
struct SummedTile {
  const float* acc;
  const PanelView<float>&x, &z;
  float* out;
  std::int64_t out_stride;
};

/// A run of tiles whose outputs show their sums.
struct TileRun {
  const PanelView<float>&x, &z;  // x: the first panel, whose slots the next one's follow
  std::int64_t slots_size;
  const float* out;
  std::int64_t out_stride, tiles;
};

/// The first tile from number `from` on whose outputs leave it open that a pair needs a second look, or their count.
std::int64_t next_to_look_at(const PairProgram& program, const TileRun& run, std::int64_t from);

/// The sums are made with the parameters `own`, the values with `params`.
void second_look(const PairProgram& program, const PairItem& item, const MadeOnce<SecondPass>& pass,
                 const ParamBlock<float>& own, const ParamBlock<float>& params, const SummedTile& tile);

}  // namespace mercer::cpu
