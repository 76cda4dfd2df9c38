// Gradient fields whose formula has a mask, strip by strip (backend/cuda/pairs/mask_strips.h): pairs whose values are 0
// add nothing, as long as all that these are multiplied with is finite.
#pragma once

#include <vector>

#include "backend/cuda/pairs/mask_strips.h"
#include "backend/cuda/pairs/operations.h"
#include "plan/forms/rank_field.h"

namespace mercer::cuda {

/// What a strip has of the operands and results of a field.
FieldJob part_of(const FieldJob& operands, const PairJob& job, const MaskStrip& strip);

class MaskedField {
 public:
  /// One item of a batch. `field` is null where `pairs` do all.
  MaskedField(const PairKernels* pairs, const FieldKernels* field, const PairJob& job, const FieldJob& operands);
  /// None where all pairs are computed.
  const std::vector<MaskStrip>& strips() const { return strips_; }
  /// The size of the flags.
  std::int64_t bytes() const;
  /// Looks for what is not finite.
  void find(char* flags);
  /// Writes NaN to results of a strip, which it has computed before: 0 times what it left out.
  void mark(const MaskStrip& strip) const;

 private:
  /// Flags of an array: of some of its rows each, for every column.
  struct Flags {
    BatchedArray array;  // data is null where nothing is multiplied with it
    std::int64_t rows = 0, columns = 0, row_stride = 0, col_stride = 0;
    std::int64_t points = 1;  // rows of a flag
    unsigned char* at = nullptr;
    std::int64_t blocks() const;
    std::int64_t bytes() const { return array.data == nullptr ? 0 : blocks() * columns; }
  };
  struct Result {
    void* out;
    std::int64_t outputs, features, output_stride, row_stride, feature_stride;
    bool by_output, by_feature, by_rows;  // which flags an element has
  };
  void mark(const MaskStrip& strip, const Result& result) const;

  const PairJob& job_;
  const FieldJob& operands_;
  std::vector<MaskStrip> strips_;
  Flags coef_, z_, rows_, x_;
  std::int64_t sums_ = 0;
};

}  // namespace mercer::cuda
