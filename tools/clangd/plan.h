// What a plan puts before files of device text, for clangd: definitions and functions as codegen/cuda/ writes them for
// one kernel or another. Each file then stands for one of the kernels that it is part of.
#pragma once

#define AFTER_HALVES 0
#define ALTERNATIVE_EIGHTHS 0
#define AMPLITUDES 1
#define BATCH 1
#define EXTRA 0
#define BEYOND 0
#define BEYOND_NORMS 1
#define BEYOND_STATES 1
#define BEYOND_VALUES 2
#define BILINEAR_THREADS 384
#define BLOCKS 1
#define BOUNDED 0
#define BRIEF 0
#define BULK 1
#define BYTES 0
#define BY_ROWS 0
#define BY_TURNS 0
#define CHAIN_ALTERNATES 0
#define CHAIN_ASKS
#define CHAIN_AXES 3
#define CHAIN_CLUSTER 1
#define CHAIN_DIRECT 0
#define CHAIN_EARLY 0
#define CHAIN_FETCHES 0
#define CHAIN_IN_ADDS 0
#define CHAIN_MEASURES
#define CHAIN_OPERANDS
#define CHAIN_OUT_ADDS 0
#define CHAIN_PHASES
#define CHAIN_RANK_STEP 0
#define CHAIN_REFILLS 1
#define CHAIN_RESIDENT 1
#define CHAIN_THREADS 256
#define CLUSTER 2
#define CODE_STAGES 94
#define COLUMNS 1
#define COLUMN_SCALES 0
#define COL_SLOTS 0
#define COL_VALUES 0
#define CONSUMER 0
#define DEEP_DOUBLES 1
#define DEPTH 32
#define DIFFERENCE 1
#define DIFFERENCES 0
#define DIGITS 0
#define DIRECT 0
#define DOUBLE_PRODUCTS 0
#define EARLY 0
#define EXACT_FEATURES 0
#define EXPANDED 2
#define EXPONENT 0.300000012f
#define EXPONENT_1 15
#define EXPONENT_2 15
#define FACTOR 1.0f
#define FACTORS 0
#define FALLBACK 0
#define FEATURES_OF_EXPANDED 3
#define FEATURE_BLOCKS 1
#define FINAL 1
#define FIRST_UPDATE 0
#define FIRST_VALUE 1
#define FOLDS 0
#define FOLD_KIND 0
#define SIDE_SUMS 0
#define PLANES_BEFORE 0
#define GROUPS_N 8
#define GROUPS_Q 17
#define GROUP_WARPS (4 * WARPGROUPS)
#define GUARD_LEAST 3.00926554e-36f
#define GUARD_MERGES 1
#define GUARD_MOST 1.329228e+36f
#define GUARD_PANELS 0
#define GUARD_POINTS 1
#define GUARD_READS_WEIGHTS 0
#define GUARD_ROWS 2
#define GUARD_SOURCE 0
#define GUARD_VALUES 3
#define GUARD_VANISHES 1
#define HALVES 0
#define HAS_ALLOWANCE 0
#define HAS_RATE 0
#define IN float
#define INPUT_STAGES 3
#define IN_IS_VALUE 1
#define IN_SIZE 32768
#define IN_WIDTH 4
#define IS_ROOT 0
#define JOINS_RANGES 0
#define KEEPS 0
#define LANE_ROWS 15
#define LARGEST_TABLE_POWER 3.0f
#define LAST_FEEDS 0
#define LEAST 0.0f
#define LONG_EPILOGUE 0
#define MANY_TILES 0
#define MARK float_of(0x7fc5a5a5u)
#define MARKED 1
#define MARKS 0
#define MARK_PLANE 0
#define MIDDLE_POWER 1.5
#define MIN_BLOCKS 2
#define MIXED 0
#define NORMS 1
#define NUMBERS 0
#define OF_CALLER 1
#define OF_PRODUCT 0
#define ONE_OUTPUT 0
#define OPERAND_BYTES 2560
#define OUT float
#define OUTPUTS 1
#define OUT_SIZE 32768
#define OUT_WIDTH 4
#define OWN_SCALES 0
#define P1 128
#define P2 1
#define PAIR 1
#define PANELS 1
#define PARAMS 0
#define PASS 16
#define PIECES 0
#define PLAIN 1
#define PLAIN_X 1
#define PLAIN_Z 1
#define PLANES 0
#define POINT float
#define POWERS 0
#define POWER_BITS 15
#define POWER_ENTRIES (256 * POWER_CELLS)
#define POWER_SHIFT (20 - POWER_BITS)
#define POWER_SLOT -1
#define POWER_TERMS 9
#define PROMOTES 1
#define Q1 128
#define Q2 1
#define QUADS 0
#define RANGES 0
#define RATE_SLOT -1
#define READS_COL 0
#define READS_PARAMS 0
#define READS_ROW 0
#define READS_WEIGHTS 0
#define READS_X 1
#define REAL float
#define RECOMPUTES 1
#define REDUCTIONS 1
#define REGIONS 0
#define REPAIRS 0
#define RESIDENT 0
#define RING_COLUMNS 512
#define RING_OPERANDS
#define RING_PHASES ring_two<Phase1>(tile, operands); ring_barrier();
#define RING_SLOTS 5
#define RING_STEP 520
#define ROWS 1
#define ROW_SLOTS 0
#define SAFE_STATES 1
#define SAFE_UNROLL (MERCER_QUICK ? 1 : 4)
#define SCALE 1.0f
#define SECOND_ROW 8
#define SIGN 1
#define SIGNS_ZEROS 0
#define SINGLE 0
#define SLOTS 0
#define SMALL_BLOCKS 8
#define SMALL_BYTES 0
#define SMALL_THREADS 128
#define SPLIT 0
#define SPREADS 0
#define SQUARES 1
#define STAGES 3
#define STATES 1
#define STEP_L 8484
#define STORES_AMPLITUDES 0
#define STREAMS_READ_SLOTS 0
#define STRIP 64
#define SUBTRACTS 0
#define SUMMED 0
#define SUMS (TILE_N / 2)
#define TABLE_EIGHTHS 2
#define TEAM 16
#define TENSOR 0
#define THREADS 256
#define THREAD_F 2
#define THREAD_M 8
#define THREAD_N 4
#define THREAD_Q 7
#define THREAD_R 2
#define TILE_A 1
#define TILE_B 64
#define TILE_F (THREADS_F * THREAD_F)
#define TILE_K 16
#define TILE_L 1
#define TILE_M 64
#define TILE_N 128
#define TILE_P 50
#define TILE_Q 64
#define TILE_R (THREADS_R * THREAD_R)
#define TILE_VALUES 8484
#define TIMES_MANY 1
#define TOTALS 0
#define TRUNCATED 0x1p-22f
#define TURNED 0
#define UNIFORMS 1
#define UNIT_DIVISION 1
#define UNROLL 4
#define UPDATE_READS_PARAMS 0
#define UPDATE_READS_POINTS 0
#define VECTORS_IN 1
#define VECTORS_OUT 1
#define V_STAGES 4
#define V_STAGE_BYTES 0
#define WARPGROUPS 2
#define WARPS_Q 2
#define WEIGHTED 0
#define WEIGHT_MATRIX 0
#define WEIGHT_UNITS 0
#define WHOLE_N 1
#define WHOLE_R 1
#define WHOLE_SLICES 0
#define WIDE 0
#define WIDE_THREADS (GROUPS * WARPGROUPS * 128)
#define WIDTH 16
#define WITH_PRODUCT 0
#define X_EXPONENT 4
#define X_STREAMS 1
#define ZERO_IDENTITY 1
#define Z_STREAMS 1

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/unguarded.cuh"

__device__ float allowance(const REAL* params);
__device__ REAL amplitude(const REAL* pair, const REAL* params, REAL features);
__device__ REAL extra_phi(REAL x, REAL z, REAL w, const REAL* row, const REAL* col, const REAL* pair,
                          const REAL* params, REAL features);
__device__ REAL extra_amplitude(const REAL* pair, const REAL* params, REAL features);
__device__ void beyond_epilogue(double* values, const double* acc, const double* pair, const REAL* params, double
    features);
__device__ void beyond_identity(double (&acc)[BEYOND_STATES]);
__device__ void beyond_largest(double* acc, const double* pair, double x, double z, double w, const REAL* params,
    double features);
__device__ void beyond_update(double* acc, const double* pair, double x, double z, double w, const REAL* params,
    double features);
__device__ int chain_from(int e);
__device__ int chain_in(int e);
__device__ int chain_out(int e);
__device__ void differences(float (&d)[64], u64 x, u64 z, int scale);
__device__ void epilogue(REAL (&outputs)[OUTPUTS], const REAL* acc, const REAL* row, const REAL* col, const REAL*
    params, REAL i, REAL j, REAL features);
__device__ REAL factor(REAL x, REAL z, REAL w, const REAL* params, REAL features);
__device__ void first_product(float (&d)[32], u64 x, u64 z, int scale);
__device__ void first_update(REAL (&acc)[STATES + (STATES == 0)], const REAL* x, const REAL* z, REAL w, const REAL*
    row, const REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ constexpr int guarded_state(int q);
__device__ void identity(REAL (&acc)[STATES + (STATES == 0)]);
__device__ bool is_mark(REAL value);
__device__ constexpr bool is_marked_output(int p);
__device__ constexpr bool is_promoted(int s);
__device__ void load_power_table();
__device__ REAL magnitude(REAL a);
__device__ void make_uniforms(double* params, double features);
__device__ REAL phi(REAL x, REAL z, REAL w, const REAL* row, const REAL* col, const REAL* pair, const REAL* params,
    REAL features);
__device__ uint2 power_entry(float a);
__device__ float power_poly(float a);
__device__ float power_scale(float a);
__device__ void product(float (&d)[64], u64 x, u64 z, int scale);
__device__ void product_low(float (&d)[16], const u32 (&x)[4], u64 z, int scale);
__device__ float rate_of_squares(const REAL* params);
__device__ void safe_epilogue(REAL (&outputs)[OUTPUTS], const REAL* acc, const REAL* pair, const REAL* row, const
    REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ void safe_identity(REAL (&acc)[SAFE_STATES]);
__device__ void safe_largest(REAL (&acc)[NORMS], const REAL* pair, const REAL* x, const REAL* z, REAL w, const REAL*
    row, const REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ void safe_merge(REAL (&acc)[SAFE_STATES], const REAL* incoming);
__device__ void safe_update(REAL (&acc)[SAFE_STATES], const REAL* pair, const REAL* x, const REAL* z, REAL w, const
    REAL* row, const REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ void second_product(float (&d)[32], const u32 (&x)[4], u64 z, int scale);
__device__ void update(REAL (&acc)[STATES + (STATES == 0)], const REAL* x, const REAL* z, REAL w, const REAL* row,
    const REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ void update_alternative(REAL (&acc)[STATES + (STATES == 0)], const REAL* x, const REAL* z, REAL w, const
    REAL* row, const REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ void update_moderate(REAL (&acc)[STATES + (STATES == 0)], const REAL* x, const REAL* z, REAL w, const REAL*
    row, const REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ void update_one(REAL (&acc)[STATES + (STATES == 0)], const REAL* x, const REAL* z, REAL w, const REAL* row,
    const REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ void update_two(REAL (&acc)[STATES + (STATES == 0)], const REAL* x, const REAL* z, REAL w, const REAL* row,
    const REAL* col, const REAL* params, REAL i, REAL j, REAL features);
__device__ void values_of(REAL (&values)[OUTPUTS], const REAL* pair, const REAL* row, const REAL* col, const REAL*
    params, REAL features);
__device__ REAL weight_of(REAL);
__device__ void wide_product(float (&d)[36], const u32 (&x)[4], u64 z, int scale);
