// WGMMA: C (64 x n) += A (64 x 16) B (16 x n) with fp32 accumulators, by one warpgroup. A is in registers or in shared
// memory; B is in shared memory, as stored or transposed. The product is asynchronous: between warpgroup_arrive() and
// warpgroup_wait(), code must not touch its accumulators or its A registers. Otherwise the compiler serialises all
// WGMMA (its warnings C7508 to C7519).
#pragma once

#include "common/types.cuh"

namespace gdpa::hopper {

/// Orders earlier accesses to registers before the products that follow.
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Ends a group of products.
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most the `pending` latest groups are incomplete.
template <int pending>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Issues the products of `products()` as one group.
template <class Products>
__device__ __forceinline__ void issue_group(Products products) {
  warpgroup_arrive();
  products();
  warpgroup_commit();
}

/// Keeps reads of the accumulators after the previous warpgroup_wait(). The compiler would otherwise move arithmetic
/// and conversions before it. No instruction.
template <int count>
__device__ __forceinline__ void warpgroup_fence_operand(float (&accumulators)[count]) {
#pragma unroll
  for (float& sum : accumulators) asm volatile("" : "+f"(sum));
}

/// The shared memory descriptor of an operand with 128-byte swizzle: rows of 128 bytes, groups of eight rows 1024 bytes
/// apart. Addresses are in units of 16 bytes, below 2^14, so that a step through the operand is one addition without a
/// mask.
struct OperandDescriptor {
  unsigned low;  ///< the address; above it the distance between blocks of 64 columns (transposed operands)

  __device__ __forceinline__ OperandDescriptor(unsigned address, unsigned block_stride)
      : low(address + (block_stride << 16)) {}

  /// The descriptor `offset` further.
  __device__ __forceinline__ unsigned long long at(unsigned offset) const {
    constexpr unsigned eight_rows = 1024 / 16, swizzle_128_bytes = 1u << 30;
    unsigned long long descriptor;
    asm("mov.b64 %0, {%1, %2};"
        : "=l"(descriptor)
        : "r"(low + offset), "n"(eight_rows | swizzle_128_bytes));
    return descriptor;
  }
};

/// The product for one element type and number of columns. Lane l of warp w of the warpgroup has, with g = l / 4 and
/// t = l % 4, rows 16 w + g and 16 w + g + 8 of C at columns 8 j + 2 t and + 1, in accumulators[4 j] to [4 j + 3]. With
/// `add` false, the product replaces the accumulators. `transposed`: row k of B is row k of the tile; otherwise column
/// n of B is row n of the tile. `a_transposed`: column k of A is row k of its tile; otherwise row m of A is row m of
/// it.
template <class Element, int columns>
struct WarpgroupMma;

// Each n has its own instruction. Its operands are numbered: n / 2 accumulators, then the others.
#define GDPA_PRODUCT(ELEMENT, TYPE, COLUMNS, NAMES, SUMS, A0, A1, A2, A3, B, ADD, T, ADD_SS, T_SS, T_A)             \
  template <>                                                                                                       \
  struct WarpgroupMma<ELEMENT, COLUMNS> {                                                                           \
    template <bool transposed>                                                                                      \
    static __device__ __forceinline__ void multiply_add(float (&accumulators)[COLUMNS / 2], const unsigned (&a)[4], \
                                                        unsigned long long b, bool add) {                           \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD                                                    \
                   ", 0;\n"                                                                                         \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES "}, {%" #A0     \
                   ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, %" #T ";\n}"                               \
                   : SUMS(0)                                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}), "n"(int{transposed}));      \
    }                                                                                                               \
    template <bool transposed, bool a_transposed = false>                                                           \
    static __device__ __forceinline__ void multiply_add(float (&accumulators)[COLUMNS / 2], unsigned long long a,   \
                                                        unsigned long long b, bool add) {                           \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD_SS                                                 \
                   ", 0;\n"                                                                                         \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES "}, %" #A0      \
                   ", %" #A1 ", add, 1, 1, %" #T_A ", %" #T_SS ";\n}"                                               \
                   : SUMS(0)                                                                                        \
                   : "l"(a), "l"(b), "r"(int{add}), "n"(int{transposed}), "n"(int{a_transposed}));                  \
    }                                                                                                               \
  };
#define GDPA_PRODUCTS(...)                    \
  GDPA_PRODUCT(BFloat16, "bf16", __VA_ARGS__) \
  GDPA_PRODUCT(Float16, "f16", __VA_ARGS__)

#define GDPA_SUMS_8(i)                                                                                    \
  "+f"(accumulators[i]), "+f"(accumulators[i + 1]), "+f"(accumulators[i + 2]), "+f"(accumulators[i + 3]), \
      "+f"(accumulators[i + 4]), "+f"(accumulators[i + 5]), "+f"(accumulators[i + 6]), "+f"(accumulators[i + 7])
#define GDPA_SUMS_16(i) GDPA_SUMS_8(i), GDPA_SUMS_8(i + 8)
#define GDPA_SUMS_32(i) GDPA_SUMS_16(i), GDPA_SUMS_16(i + 16)
#define GDPA_TEN(t) \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define GDPA_NAMES_16 GDPA_TEN() ", %10, %11, %12, %13, %14, %15"
#define GDPA_NAMES_30 GDPA_TEN() ", " GDPA_TEN(1) ", " GDPA_TEN(2)
#define GDPA_NAMES_32 GDPA_NAMES_30 ", %30, %31"
#define GDPA_NAMES_40 GDPA_NAMES_30 ", " GDPA_TEN(3)
#define GDPA_NAMES_48 GDPA_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define GDPA_NAMES_50 GDPA_NAMES_40 ", " GDPA_TEN(4)
#define GDPA_NAMES_56 GDPA_NAMES_50 ", %50, %51, %52, %53, %54, %55"
#define GDPA_NAMES_60 GDPA_NAMES_50 ", " GDPA_TEN(5)
#define GDPA_NAMES_64 GDPA_NAMES_60 ", %60, %61, %62, %63"
#define GDPA_NAMES_80 GDPA_NAMES_60 ", " GDPA_TEN(6) ", " GDPA_TEN(7)
#define GDPA_NAMES_90 GDPA_NAMES_80 ", " GDPA_TEN(8)
#define GDPA_NAMES_96 GDPA_NAMES_90 ", %90, %91, %92, %93, %94, %95"
#define GDPA_NAMES_120 GDPA_NAMES_90 ", " GDPA_TEN(9) ", " GDPA_TEN(10) ", " GDPA_TEN(11)
#define GDPA_NAMES_128 GDPA_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define GDPA_SUMS_40(i) GDPA_SUMS_32(i), GDPA_SUMS_8(i + 32)
#define GDPA_SUMS_48(i) GDPA_SUMS_32(i), GDPA_SUMS_16(i + 32)
#define GDPA_SUMS_56(i) GDPA_SUMS_48(i), GDPA_SUMS_8(i + 48)
#define GDPA_SUMS_64(i) GDPA_SUMS_32(i), GDPA_SUMS_32(i + 32)
#define GDPA_SUMS_80(i) GDPA_SUMS_64(i), GDPA_SUMS_16(i + 64)
#define GDPA_SUMS_96(i) GDPA_SUMS_64(i), GDPA_SUMS_32(i + 64)
#define GDPA_SUMS_128(i) GDPA_SUMS_96(i), GDPA_SUMS_32(i + 96)

GDPA_PRODUCTS(32, GDPA_NAMES_16, GDPA_SUMS_16, 16, 17, 18, 19, 20, 21, 22, 18, 19, 20)
GDPA_PRODUCTS(64, GDPA_NAMES_32, GDPA_SUMS_32, 32, 33, 34, 35, 36, 37, 38, 34, 35, 36)
GDPA_PRODUCTS(80, GDPA_NAMES_40, GDPA_SUMS_40, 40, 41, 42, 43, 44, 45, 46, 42, 43, 44)
GDPA_PRODUCTS(96, GDPA_NAMES_48, GDPA_SUMS_48, 48, 49, 50, 51, 52, 53, 54, 50, 51, 52)
GDPA_PRODUCTS(112, GDPA_NAMES_56, GDPA_SUMS_56, 56, 57, 58, 59, 60, 61, 62, 58, 59, 60)
GDPA_PRODUCTS(128, GDPA_NAMES_64, GDPA_SUMS_64, 64, 65, 66, 67, 68, 69, 70, 66, 67, 68)
GDPA_PRODUCTS(160, GDPA_NAMES_80, GDPA_SUMS_80, 80, 81, 82, 83, 84, 85, 86, 82, 83, 84)
GDPA_PRODUCTS(192, GDPA_NAMES_96, GDPA_SUMS_96, 96, 97, 98, 99, 100, 101, 102, 98, 99, 100)
GDPA_PRODUCTS(256, GDPA_NAMES_128, GDPA_SUMS_128, 128, 129, 130, 131, 132, 133, 134, 130, 131, 132)

/// accumulators = A B^T over the first `columns` columns of both tiles.
template <class Element, int columns, int count, class TileA, class TileB>
__device__ __forceinline__ void multiply_columns(float (&accumulators)[count], const TileA& a_tile,
                                                 const TileB& b_tile) {
  const OperandDescriptor a = a_tile.by_columns(), b = b_tile.by_columns();
#pragma unroll
  for (int k = 0; k < (columns + 15) / 16; ++k) {
    WarpgroupMma<Element, count * 2>::template multiply_add<false>(accumulators, a.at(TileA::column_step(k)),
                                                                   b.at(TileB::column_step(k)), k > 0);
  }
}

/// The same for A in registers.
template <class Element, int steps, int count, class Tile>
__device__ __forceinline__ void multiply_columns(float (&accumulators)[count], const unsigned (&a)[steps][4],
                                                 const Tile& b_tile) {
  const OperandDescriptor b = b_tile.by_columns();
#pragma unroll
  for (int k = 0; k < steps; ++k) {
    WarpgroupMma<Element, count * 2>::template multiply_add<false>(accumulators, a[k], b.at(Tile::column_step(k)),
                                                                   k > 0);
  }
}

/// accumulators += A B over the rows of the tile. With `add` false, the accumulators begin here.
template <class Element, int steps, int count, class Tile>
__device__ __forceinline__ void multiply_rows(float (&accumulators)[count], const unsigned (&a)[steps][4],
                                              const Tile& b_tile, bool add) {
  const OperandDescriptor b = b_tile.by_rows();
#pragma unroll
  for (int k = 0; k < steps; ++k) {
    WarpgroupMma<Element, count * 2>::template multiply_add<true>(accumulators, a[k], b.at(Tile::row_step(k)),
                                                                  add || k > 0);
  }
}

/// accumulators = A^T B over the rows of both tiles, for columns that begin `a_offset` and `b_offset` further, in units
/// of 16 bytes.
template <class Element, int count, class TileA, class TileB>
__device__ __forceinline__ void multiply_rows(float (&accumulators)[count], const TileA& a_tile, unsigned a_offset,
                                              const TileB& b_tile, unsigned b_offset) {
  const OperandDescriptor a = a_tile.by_rows(), b = b_tile.by_rows();
#pragma unroll
  for (int k = 0; k < TileA::rows / 16; ++k) {
    WarpgroupMma<Element, count * 2>::template multiply_add<true, true>(
        accumulators, a.at(TileA::row_step(k) + a_offset), b.at(TileB::row_step(k) + b_offset), k > 0);
  }
}

}  // namespace gdpa::hopper
