/// \file
/// Compilation ahead of time: what calls of certain shapes will need is made now, so that the first of them is as fast
/// as the next, and so that none compiles while a CUDA graph is being captured.
///
/// \code
/// mercer::CompileRequest request;
/// request.verbs = {"pairwise", "kernel_gradient"};
/// request.shapes = {{.m = 10000, .n = 10000, .k = 64}};
/// request.devices = {{.device = {mercer::DeviceKind::cuda, 0}}, {.architecture = "sm_90a"}};  // here; into the cache
/// mercer::compile(f, request);
/// \endcode
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mercer/device.h"
#include "mercer/formula.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

/// The order of a matrix in memory: `row` has its last axis contiguous, `column` the one before.
enum class Layout : std::uint8_t { row, column };
const char* name_of(Layout layout);  ///< "row"
Layout layout_from_text(const std::string& name);  ///< throws invalid_argument for any other than "row" and "column"

/// The calls to prepare: every combination of one entry of each list.
struct CompileRequest {
  /// Sizes of a call: x [batch, m, k], z [batch, n, k].
  struct Sizes {
    std::int64_t batch = 1;  ///< items of the batch
    std::int64_t m = 0;  ///< points of x
    std::int64_t n = 0;  ///< points of z
    std::int64_t k = 0;  ///< features of a point
  };
  /// Orders in memory of a call's matrices.
  struct Layouts {
    Layout x = Layout::row;  ///< of x
    Layout z = Layout::row;  ///< of z
    Layout out = Layout::row;  ///< of the result
  };
  /// The CPU; a CUDA device of this machine, where the kernels are loaded too; or, with an architecture, CUDA code for
  /// the cache on disk alone, as a device of that generation will look for it ("sm_90" and "sm_90a" are the same).
  struct Where {
    Device device = {};  ///< of this machine
    std::string architecture = {};  ///< "sm_90a"; "": code of `device`
  };

  /// Any of pairwise, kernel_matrix, cdist, kernel_product, kernel_reduce, knn, kernel_gradient and kernel_agop; or
  /// gradient_field, of a formula made by Formula::field or fold.
  std::vector<std::string> verbs = {"pairwise"};
  std::vector<Sizes> shapes;  ///< of the calls
  std::vector<Dtype> dtypes = {Dtype::float32};  ///< of x and z
  std::vector<Layouts> layouts = {{}};  ///< of the calls
  std::vector<Where> devices = {{}};  ///< that the calls will run on
  /// Parameters that the calls will give as numbers. Only those in exponents matter: their values become part of the
  /// code. An exponent that is not here, and has no default, is taken for an array. On CUDA numbers and arrays have
  /// code of their own: other parameters that are not here get both.
  std::map<std::string, double> params = {};
  /// E of kernel_product's v [..., N, E], O of a gradient's or a field's coef [..., O, N].
  std::int64_t columns = 1;
};

/// Compiles what the calls need into the context's cache and, for CUDA, into the cache on disk. A call that differs
/// from a prepared one in its sizes usually finds its code too. On CUDA x and z of equal shapes are prepared as one
/// array and as two. Throws invalid_argument for a broken rule, before anything is compiled, and unsupported for a
/// device or an architecture that is not offered.
void compile(const Formula& f, const CompileRequest& request, Context& context = Context::shared());

}  // namespace mercer
