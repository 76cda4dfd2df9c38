// Columns that conjugate gradients solve for, on the CPU or a CUDA device: all that is done with them except products
// with the operator and the preconditioner. What a column does next is decided where it lies
// (kernels/cuda/linalg/cg_state.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/system/parallel.h"
#include "kernels/cuda/linalg/cg_state.h"
#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

class CgColumns {
 public:
  struct Sizes {
    const char* op = "";
    Dtype type = Dtype::float32;
    std::int64_t length = 0, columns = 0;
    double tolerance = 0;
    bool preconditioned = false;
    bool indefinite = false;  // minimal residuals, which no preconditioner serves
  };
  /// What a round ends with; see CgTurn.
  struct Round {
    bool first = false, measures = false, last = false;
  };

  /// What is added to the operator's diagonal: a number for all columns, or [columns] of float32 or float64 where they
  /// are. A column whose own is negative or not finite ends as one of NaN.
  struct Ridges {
    double number = 0;
    const Tensor* numbers = nullptr;
  };

  virtual ~CgColumns() = default;
  // [length, columns], columns one after another.
  virtual Tensor operand() const = 0;         // what the operator is multiplied with
  virtual Tensor product() const = 0;         // and what that gives
  virtual Tensor residual() const = 0;        // what the preconditioner is multiplied with
  virtual Tensor preconditioned() const = 0;  // and what that gives

  /// b [length, columns], the same of the caller's guess or null: zeros, and the ridges.
  virtual void begin(const Tensor& b, const Tensor* guess, const Ridges& ridges) = 0;
  /// After the product: solutions and residuals.
  virtual void step() = 0;
  /// After the preconditioner: the next operand.
  virtual void turn(Round round) = 0;
  /// Whether `repeat` serves: a graph is captured, and the driver has conditional nodes.
  virtual bool repeats() const { return false; }
  /// Records rounds into the graph, each of which ends with a turn, to run while a column is live, and `most` times at
  /// most. They go into the queue that `rounds` gets, which has so many bytes to give.
  virtual void repeat(std::int64_t, std::int64_t, const std::function<void(const Queue& queue)>&) {}
  /// Whether every column has ended, by now or some rounds before; false while a graph is captured.
  virtual bool has_ended() = 0;
  /// Solutions into x; info and rounds [columns] may be null.
  virtual void end(const Tensor& x, const Tensor* info, const Tensor* rounds) = 0;
  /// How the columns ended. Waits for a device.
  virtual std::vector<CgColumn> states() = 0;

 protected:
  static CgTurn turn_of(const Sizes& sizes, Round round) {
    // Far below what anybody asks for, and far from where squares and products of such numbers vanish.
    const double least = sizes.type == Dtype::float32 ? 1e-40 : 1e-200;
    const double unit = sizes.type == Dtype::float32 ? 1e-6 : 1e-14;
    return {round.first, round.measures, round.last, sizes.tolerance * sizes.tolerance, least, unit};
  }
};

namespace cpu {
std::unique_ptr<CgColumns> cg_columns(const CgColumns::Sizes& sizes, Pool& pool);
}
namespace cuda {
/// Columns whose work is in the stream of the queue and whose memory is the queue's.
std::unique_ptr<CgColumns> cg_columns(const CgColumns::Sizes& sizes, Device device, const Queue& queue);
}  // namespace cuda

}  // namespace mercer
