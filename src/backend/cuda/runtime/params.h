// Parameters of a call, and what its formula makes of them alone, where kernels read them: numbers by value; arrays
// gathered into a table, one row a batch item, without a look at them from the host.
#pragma once

#include "backend/cuda/runtime/batch.h"
#include "backend/cuda/runtime/job.h"
#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/workspace.h"

namespace mercer::cuda {

/// Parameter leaves and the float64 program of their uniforms.
struct ParamPlan {
  const std::vector<Expr>* leaves;
  const ir::Program* uniforms;
  std::size_t uniform_count;
};

/// The numbers and uniforms of a call without arrays among its parameters; empty when there are some.
std::vector<double> number_values(const ParamPlan& plan, const PairJob& job);

class ParamTable {
 public:
  ParamTable(const ParamPlan& plan, const PairJob& job, Workspace& workspace);
  /// Fills the table, if there is one.
  void run(const Kernel& uniforms, const Workspace& workspace) const;

  bool in_table() const { return in_table_; }
  int count() const { return count_; }
  /// Rows of the table per step of each batch axis.
  const std::vector<std::int64_t>& item_steps() const { return item_steps_; }
  /// Whether one of these parameters is an array that differs along this batch axis.
  bool differs(const std::vector<Expr>& leaves, std::size_t axis) const;
  const std::vector<Expr>& leaves() const { return *plan_.leaves; }

  /// For kernels that read doubles, and for those that read the computing type.
  void write_wide(const void*& table, double (&numbers)[MERCER_MAX_NUMBERS], const Workspace& workspace) const;
  void write_narrow(const void*& table, double (&numbers)[MERCER_MAX_NUMBERS], const Workspace& workspace) const;

 private:
  void gather(UniformArguments& a, BatchWalk& walk, const Workspace& workspace) const;

  ParamPlan plan_;
  const PairJob& job_;
  std::vector<double> values_;
  bool in_table_ = false;
  int count_ = 0;
  std::vector<std::int64_t> item_steps_;
  std::int64_t wide_ = 0, narrow_ = 0, numbers_ = 0;
};

}  // namespace mercer::cuda
