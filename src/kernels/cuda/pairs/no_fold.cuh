// STORE, NEAREST: nothing is kept from tile to tile (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_slices.cuh"

#define TILES_OF_SUM 0x7fffffff
struct FoldColumns {};
struct Fold {};
MERCER_INLINE void start(Fold&) {}
MERCER_INLINE void promote(Fold&) {}
MERCER_INLINE void load_columns(FoldColumns&, const PairArguments&, const REAL*, i64, const Position&) {}
MERCER_INLINE void finish(Fold&, const PairArguments&, REAL*, i64, i64, i64, const Position&) {}
