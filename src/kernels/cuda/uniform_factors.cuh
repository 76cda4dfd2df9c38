// What scales the operands of products because all terms of their sums are multiplied with it. Where it cannot (zero,
// infinite, NaN; of squares negative), all pairs are left to direct differences: as if a sample cancelled.
#define NO_SCALE 0xffffffffu  // sampled pairs

template <class T>
MERCER_INLINE void write_scale(SplitState* state, const UniformFactors& uniforms) {
  double factor = 1;
  for (int i = 0; i < uniforms.count; ++i) {
    const double value = uniforms.params ? (double)((const T*)uniforms.params)[uniforms.slot[i]] : uniforms.numbers[i];
    factor = uniforms.divides[i] ? factor / value : factor * value;
  }
  const bool scales = fabs(factor) >= 0x1p-100 && fabs(factor) <= 0x1p100 && (!SQUARES || factor > 0);
  state->wide_scale = !scales ? 1.0 : SQUARES ? sqrt(factor) : factor;
  state->scale = (float)state->wide_scale;
  if (!scales) state->sampled = NO_SCALE;
}
