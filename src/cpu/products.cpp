// The calls of libxsmm. Matrices of libxsmm are column-major, so libxsmm computes the transpose of each row-major
// product. The first factor of libxsmm is therefore the right factor of the product.
#include "cpu/products.h"

#include <libxsmm.h>

#include "gdpa/error.h"

namespace gdpa::cpu {

void refuse_system() {
  throw Error(ErrorKind::runtime,
              "the CPU backend makes its products at run time, for processors with AVX2 or AVX-512, and this system "
              "refused: allow executable memory (SELinux execmem, systemd MemoryDenyWriteExecute), or use a newer "
              "processor");
}

template <class Compute>
void multiply(Tile<const Compute> left, Tile<const Compute> right, Tile<Compute> result, std::int64_t rows,
              std::int64_t columns, std::int64_t depth, Sum sum, Left form) {
  const auto dispatch = [] {
    if constexpr (std::is_same_v<Compute, float>) return &libxsmm_smmdispatch;
    if constexpr (std::is_same_v<Compute, double>) return &libxsmm_dmmdispatch;
  }();
  const auto size = [](std::int64_t number) { return static_cast<libxsmm_blasint>(number); };
  const libxsmm_blasint right_stride = size(right.stride), left_stride = size(left.stride);
  const libxsmm_blasint result_stride = size(result.stride);
  const Compute alpha = 1, beta = sum == Sum::add ? Compute{1} : Compute{0};
  const int flags = form == Left::transposed ? LIBXSMM_GEMM_FLAG_TRANS_B : LIBXSMM_GEMM_FLAG_NONE;
  const int prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  const auto kernel = dispatch(size(columns), size(rows), size(depth), &right_stride, &left_stride, &result_stride,
                               &alpha, &beta, &flags, &prefetch);
  if (kernel == nullptr) refuse_system();
  kernel(right.data, left.data, result.data);
}

template void multiply(Tile<const float>, Tile<const float>, Tile<float>, std::int64_t, std::int64_t, std::int64_t, Sum,
                       Left);
template void multiply(Tile<const double>, Tile<const double>, Tile<double>, std::int64_t, std::int64_t, std::int64_t,
                       Sum, Left);

}  // namespace gdpa::cpu
