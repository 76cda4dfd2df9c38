/* mercer/compat/fastkron.h and fastkronMg.h as C99 sees them: they compile without a warning, and C calls them. */
#include "mercer/compat/fastkron.h"
#include "mercer/compat/fastkronMg.h"

/* z = x (f (x) g) for x [2, 2], f [1, 2], g [2, 1]. */
fastKronError fastkron_product_in_c(const double* x, const double* f, const double* g, double* z) {
  fastKronHandle handle = NULL;
  fastKronError answer;
  uint32_t ps[] = {1, 2}, qs[] = {2, 1};
  const double* fs[2];

  fs[0] = f;
  fs[1] = g;
  FastKronCHECK(fastKronInit(&handle, fastKronBackend_X86));
  if (fastKronMgInitCUDA(handle, NULL, 2, 1, 2, 1) != fastKronBackendNotAvailable) return fastKronOtherError;
  answer = dgemkm(handle, fastKronBackend_X86, 2, 2, ps, qs, x, fastKronOp_N, fs, fastKronOp_N, z, 1, 0, NULL, NULL,
                  NULL);
  fastKronDestroy(handle);
  return answer;
}
