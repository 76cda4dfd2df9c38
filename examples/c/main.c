/* A kernel on a grid of points, in C. The grid has ROWS x COLUMNS points (a_i, b_j), and the kernel is the product
 *
 *   k((a, b), (a', b')) = exp(-|a - a'| / 3) exp(-|b - b'| / 3)
 *
 * so its matrix is the Kronecker product of two small ones. It is multiplied by the values v of the grid and never
 * stored; the result is checked against the plain loop over all pairs of points.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "mercer/c/mercer.h"

#define ROWS 40
#define COLUMNS 30

static void check(mercer_status status) {
  if (status == MERCER_OK) return;
  fprintf(stderr, "%s: %s\n", mercer_status_name(status), mercer_last_error());
  exit(1);
}

/* A contiguous array of doubles on the CPU; the shape stays the caller's. */
static mercer_tensor array(double* data, int32_t ndim, const int64_t* shape) {
  mercer_tensor tensor = {0};
  tensor.data = data;
  tensor.dtype = MERCER_FLOAT64;
  tensor.ndim = ndim;
  tensor.shape = shape;
  return tensor;
}

/* matrix[i, j] = exp(-|i - j| / 3), by a formula with a parameter. */
static void axis_kernel(const mercer_formula* formula, int64_t n, double* matrix) {
  const int64_t points_shape[] = {n, 1}, matrix_shape[] = {n, n};
  const mercer_param params[] = {{"bandwidth", 3.0, NULL}};
  mercer_arguments arguments = MERCER_ARGUMENTS_INIT;
  double* points = malloc((size_t)n * sizeof *points);
  mercer_tensor x, out;
  int64_t i;

  if (points == NULL) exit(1);
  for (i = 0; i < n; ++i) points[i] = (double)i;
  x = array(points, 2, points_shape);
  out = array(matrix, 2, matrix_shape);
  arguments.params = params;
  arguments.param_count = 1;
  check(mercer_pairwise(formula, &x, NULL, &out, &arguments, NULL));
  free(points);
}

static double by_definition(const double* v, int row, int column) {
  double sum = 0;
  int i, j;
  for (i = 0; i < ROWS; ++i)
    for (j = 0; j < COLUMNS; ++j) sum += exp(-abs(row - i) / 3.0) * exp(-abs(column - j) / 3.0) * v[i * COLUMNS + j];
  return sum;
}

int main(void) {
  static double rows[ROWS * ROWS], columns[COLUMNS * COLUMNS], v[ROWS * COLUMNS], product[ROWS * COLUMNS];
  const int64_t rows_shape[] = {ROWS, ROWS}, columns_shape[] = {COLUMNS, COLUMNS}, grid_shape[] = {ROWS * COLUMNS};
  mercer_tensor factors[2], x, out;
  mercer_formula* formula = NULL;
  double worst = 0;
  int i, j;

  check(mercer_formula_create("exp(-sum(abs(x-z))/bandwidth)", &formula));
  axis_kernel(formula, ROWS, rows);
  axis_kernel(formula, COLUMNS, columns);
  mercer_formula_destroy(formula);

  for (i = 0; i < ROWS * COLUMNS; ++i) v[i] = sin(0.1 * i) + 2;
  factors[0] = array(rows, 2, rows_shape);
  factors[1] = array(columns, 2, columns_shape);
  x = array(v, 1, grid_shape);
  out = array(product, 1, grid_shape);
  check(mercer_kron_kron_matmul(factors, 2, &x, &out, NULL, NULL));

  for (i = 0; i < ROWS; ++i)
    for (j = 0; j < COLUMNS; ++j) {
      const double expected = by_definition(v, i, j);
      worst = fmax(worst, fabs(product[i * COLUMNS + j] - expected) / expected);
    }
  printf("Mercer %s: a kernel of %d points, multiplied without its matrix\n", mercer_version(), ROWS * COLUMNS);
  printf("largest relative error against the plain loop: %.2g\n", worst);
  return worst < 1e-12 ? 0 : 1;
}
