// The rate of a matrix product through cuBLAS, next to the rates of gdpa. cuBLAS is opened at run time.
#pragma once

#include <string>

#include "gdpa/tensor.h"

namespace gdpa::tool {

struct ProductRate {
  double flops = 0;     ///< FLOP/s; 0 if the product did not run
  std::string version;  ///< of cuBLAS
  std::string problem;  ///< why the product did not run, with a remedy; otherwise empty
};

/// Measures a square product of this type on a GPU for about `seconds`. A missing cuBLAS or too little memory is not an
/// error.
ProductRate cublas_rate(Device device, DType dtype, double seconds);

}  // namespace gdpa::tool
