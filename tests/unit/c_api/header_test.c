/* mercer/c/mercer.h as C99 sees it: that it compiles without a warning, and a call from C. */
#include "mercer/c/mercer.h"

/* out = x (f (x) g) for x [2, 6], f [2, 2], g [3, 3]; returns the call's status. */
mercer_status product_in_c(const double* x, const double* f, const double* g, double* out) {
  const int64_t x_shape[] = {2, 6}, f_shape[] = {2, 2}, g_shape[] = {3, 3};
  const mercer_kron_options options = MERCER_KRON_OPTIONS_INIT;
  const mercer_queue queue = MERCER_QUEUE_INIT;
  const mercer_arguments arguments = MERCER_ARGUMENTS_INIT;
  mercer_tensor points = {0}, result, factors[2];

  points.data = (double*)x;
  points.dtype = MERCER_FLOAT64;
  points.ndim = 2;
  points.shape = x_shape;
  result = factors[0] = factors[1] = points;
  result.data = out;
  factors[0].data = (double*)f;
  factors[0].shape = f_shape;
  factors[1].data = (double*)g;
  factors[1].shape = g_shape;
  if (queue.struct_size != sizeof queue || arguments.struct_size != sizeof arguments) return MERCER_INTERNAL;
  return mercer_kron_matmul(&points, factors, 2, &result, &options, NULL);
}
