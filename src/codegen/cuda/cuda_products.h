// Products of matrices by a warpgroup of compute capability 9.0, as functions of device text.
#pragma once

#include <string>

namespace mercer::codegen {

/// wgmma of 64 rows on the left and `columns` on the right, added to the first of the `sums` that a thread has.
struct Product {
  const char* name;
  int columns, sums;
  const char* types;  // k and the operands' types
  bool of_registers;  // the left operand; else a descriptor
  const char* rest;   // signs of the operands and transposes, of floats
  bool of_integers = false;
};
std::string product_function(const Product& product);

}  // namespace mercer::codegen
