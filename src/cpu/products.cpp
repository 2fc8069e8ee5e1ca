// The calls of libxsmm. Matrices of libxsmm are column-major, so libxsmm computes the transpose of each row-major
// product. The first factor of libxsmm is therefore the right factor of the product.
#include "cpu/products.h"

#include <libxsmm.h>

#include "gdpa/error.h"

namespace gdpa::cpu {
namespace {

auto dispatch(const libxsmm_blasint& m, const libxsmm_blasint& n, const libxsmm_blasint& k,
              const libxsmm_blasint* strides, float beta, int flags) {
  const float alpha = 1;
  const int prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  return libxsmm_smmdispatch(m, n, k, &strides[0], &strides[1], &strides[2], &alpha, &beta, &flags, &prefetch);
}

auto dispatch(const libxsmm_blasint& m, const libxsmm_blasint& n, const libxsmm_blasint& k,
              const libxsmm_blasint* strides, double beta, int flags) {
  const double alpha = 1;
  const int prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  return libxsmm_dmmdispatch(m, n, k, &strides[0], &strides[1], &strides[2], &alpha, &beta, &flags, &prefetch);
}

template <class Compute>
void call(Tile<const Compute> left, Tile<const Compute> right, Tile<Compute> result, std::int64_t rows,
          std::int64_t columns, std::int64_t depth, Sum sum, int flags) {
  const libxsmm_blasint strides[] = {static_cast<libxsmm_blasint>(right.stride),
                                     static_cast<libxsmm_blasint>(left.stride),
                                     static_cast<libxsmm_blasint>(result.stride)};
  const Compute beta = sum == Sum::add ? Compute{1} : Compute{0};
  const auto kernel = dispatch(static_cast<libxsmm_blasint>(columns), static_cast<libxsmm_blasint>(rows),
                               static_cast<libxsmm_blasint>(depth), strides, beta, flags);
  if (kernel == nullptr) {
    throw Error(ErrorKind::runtime,
                "the CPU backend makes its products at run time, for processors with AVX2 or AVX-512, and this system "
                "refused: allow executable memory (SELinux execmem, systemd MemoryDenyWriteExecute), or use a newer "
                "processor");
  }
  kernel(right.data, left.data, result.data);
}

}  // namespace

template <class Compute>
void multiply(Tile<const Compute> left, Tile<const Compute> right, Tile<Compute> result, std::int64_t rows,
              std::int64_t columns, std::int64_t depth, Sum sum) {
  call(left, right, result, rows, columns, depth, sum, LIBXSMM_GEMM_FLAG_NONE);
}

template <class Compute>
void multiply_transposed(Tile<const Compute> left, Tile<const Compute> right, Tile<Compute> result, std::int64_t rows,
                         std::int64_t columns, std::int64_t depth, Sum sum) {
  call(left, right, result, rows, columns, depth, sum, LIBXSMM_GEMM_FLAG_TRANS_B);
}

#define GDPA_INSTANTIATE(Compute)                                                                                      \
  template void multiply<Compute>(Tile<const Compute>, Tile<const Compute>, Tile<Compute>, std::int64_t, std::int64_t, \
                                  std::int64_t, Sum);                                                                  \
  template void multiply_transposed<Compute>(Tile<const Compute>, Tile<const Compute>, Tile<Compute>, std::int64_t,    \
                                             std::int64_t, std::int64_t, Sum);
GDPA_INSTANTIATE(float)
GDPA_INSTANTIATE(double)
#undef GDPA_INSTANTIATE

}  // namespace gdpa::cpu
