/* A program written for FastKron, on Mercer: Z = X (F1 (x) F2 (x) F3), checked against the plain loop.
 *
 * Nothing here is Mercer's own; the library is the target mercer::fastkron in place of FastKron's.
 */
#include <fastkron.h>
#include <math.h>

#define ROWS 4
#define FACTORS 3
#define SIDE 5
#define COLUMNS (SIDE * SIDE * SIDE)

static float random_value(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

static double entry(const float* x, const float* const* fs, int row, int column) {
  double sum = 0;
  for (int k = 0; k < COLUMNS; ++k) {
    double term = x[row * COLUMNS + k];
    int of_k = k, of_column = column;
    for (int i = FACTORS; i-- > 0; of_k /= SIDE, of_column /= SIDE)
      term *= fs[i][of_k % SIDE * SIDE + of_column % SIDE];
    sum += term;
  }
  return sum;
}

int main(void) {
  static float x[ROWS * COLUMNS], z[ROWS * COLUMNS], factors[FACTORS][SIDE * SIDE];
  const float* fs[FACTORS];
  uint32_t ps[FACTORS], qs[FACTORS];
  size_t result = 0, temporary = 0;
  double error = 0;
  fastKronHandle handle;

  for (int i = 0; i < ROWS * COLUMNS; ++i) x[i] = random_value();
  for (int i = 0; i < FACTORS; ++i) {
    for (int j = 0; j < SIDE * SIDE; ++j) factors[i][j] = random_value();
    fs[i] = factors[i];
    ps[i] = qs[i] = SIDE;
  }

  FastKronCHECK(fastKronInitAllBackends(&handle));
  FastKronCHECK(gekmmSizes(handle, ROWS, FACTORS, ps, qs, &result, &temporary));
  float* const temp = malloc(temporary * sizeof(float));
  FastKronCHECK(sgemkm(handle, fastKronBackend_X86, ROWS, FACTORS, ps, qs, x, fastKronOp_N, fs, fastKronOp_N, z, 1, 0,
                       NULL, temp, NULL));
  free(temp);
  fastKronDestroy(handle);

  for (int row = 0; row < ROWS; ++row)
    for (int column = 0; column < COLUMNS; ++column)
      error = fmax(error, fabs(z[row * COLUMNS + column] - entry(x, fs, row, column)));
  printf("%s: %d values, largest error %.1e\n", fastKronVersion(), (int)result, error);
  return result == ROWS * COLUMNS && error < 1e-6 ? 0 : 1;
}
