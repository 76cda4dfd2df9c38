// The image of v in pieces of 16 bits, for products over n with many columns of powers of two (wide_fold.cuh): for
// every 32 points n, in two steps of sixteen, the high and the low piece of all columns, [step][piece][half][column]
// [eight halves], and behind those a number for every column. Pieces are v times a power of two, by which the largest
// of the 32 comes to lie between 2^14 and 2^15; the number undoes it, and that of the values too. Behind the last point
// and column there are zeros. Of products that values come from (bilinear_wide.cuh) the points' norms and their scale
// and the largest of those follow, so that a tile asks for nothing else; points that there are not are infinitely far
// away.
#define LEAST_UNDONE -126  // of the powers of two: a normal number

// A thread takes the 32 points of a column.
extern "C" __global__ void __launch_bounds__(IMAGE_THREADS) write_halves(const __grid_constant__ WideArguments a) {
  if (a.expanded != nullptr && !a.expanded->stands) return;
  const i64 at = (i64)blockIdx.x * IMAGE_THREADS + threadIdx.x;
  const int column = (int)(at % a.wide);
  const i64 block = at / a.wide;
  u32 most = 0;
  if (block < a.blocks) {
    float v[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const i64 n = block * 32 + i;
      v[i] = n < a.n && column < a.columns ? a.v[n * a.v_row + column * a.v_column] : 0.0f;
      most = bits_of(fabsf(v[i])) > most ? bits_of(fabsf(v[i])) : most;
    }
    const int of_values = a.expanded != nullptr ? EXPANDED_EXPONENT : VALUE_EXPONENT;
    const int wanted = piece_exponent(float_of(most)), bound = -LEAST_UNDONE - of_values;
    const int exponent = wanted < bound ? wanted : bound;
    const float power = power_of_two(exponent);
    uint4* to = (uint4*)((u8*)a.image + block * a.block_bytes);
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {  // of eight points: step chunk / 2, half chunk % 2
      u32 high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = v + chunk * 8 + i * 2;
        split_pair(pair[0] * power, pair[1] * power, high[i], low[i]);
      }
      uint4* own = to + chunk / 2 * 4 * a.wide + chunk % 2 * a.wide + column;
      own[0] = {high[0], high[1], high[2], high[3]};
      own[2 * a.wide] = {low[0], low[1], low[2], low[3]};
    }
    float* numbers = (float*)(to + 8 * a.wide);
    numbers[column] = power_of_two(-exponent - of_values);
    if (a.norm != nullptr) write_stage_norms(a, numbers + a.wide, block, column, a.wide);
  }
  if (a.split == nullptr) return;
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) atomicMax(&a.split->most_v, most);
}
