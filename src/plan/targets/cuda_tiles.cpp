// Measured on an H200 (docs/kernels/pairwise-cuda.md); other generations have the same tiles.
#include "plan/gpu/pair_tiles.h"

namespace mercer::plan {
namespace {

// Pairs of a block and features of a slice, threads' share, stages, unroll, blocks, copies by the copy engine.
constexpr PairTiles kH200{
    .two_slots = {64, 64, 32, 8, 4, 2, 16, 4, true},
    .deep = {64, 64, 32, 8, 4, 3, 4, 4, true},
    .maxima = {64, 128, 32, 8, 8, 2, 16, 3, true},
    .several_outputs = {64, 64, 16, 4, 8, 3, 16, 4, true},
    .three_slots = {64, 64, 32, 8, 4, 2, 8, 4, true},
    .more_slots = {64, 128, 16, 8, 8, 3, 4, 3, true},
    .bytes = {128, 128, 32, 8, 8, 3, 4, 2, true},
    .mixed_sixteen = {64, 128, 16, 8, 8, 2, 8, 3, true},
    .fold_few = {64, 128, 8, 8, 8, 4, 4, 4, true},
    .fold_rows = {128, 128, 4, 8, 16, 3, 4, 4, true},
    .two_units = {64, 64, 16, 4, 4, 4, 4, 4, true},
    .one_unit = {64, 128, 16, 4, 8, 4, 4, 2, true},
    .few_features = {32, 128, 8, 4, 8, 4, 8, 4, false},
    .some_features = {128, 64, 32, 8, 4, 2, 8, 4, true},
    .sixteen_features = {128, 64, 16, 8, 8, 3, 4, 4, true},
    .small = {64, 64, 16, 4, 4, 3, 8, 2, true},
    .tiny = {32, 32, 16, 4, 4, 3, 8, 4, false},
    .tall = {128, 32, 16, 8, 4, 3, 8, 2, false},
    .flat = {32, 128, 16, 4, 8, 3, 8, 2, false},
    .doubles = {128, 128, 16, 8, 8, 4, 16, 1, true},
    .small_doubles = {64, 64, 16, 8, 4, 4, 16, 2, true},
    .double_folds = {128, 64, 16, 8, 4, 3, 16, 2, true},
    .differences = {128, 128, 32, 2, 32, 2, 5, 1, true},  // with five pairs the loop stays in the instruction cache
    .blocks_by_rows = {4, 4, 4, 2, 3},
};

}  // namespace

const PairTiles& pair_tiles(int) { return kH200; }

}  // namespace mercer::plan
