// The product of a warpgroup, C (64 x n) += A (64 x 16) B (16 x n) with fp32 sums: A from registers or from shared
// memory, B from shared memory, as it lies there or transposed. The product runs beside what follows it: between
// begin_products() and wait_for_products() neither its sums nor its A registers may be touched, or the compiler makes
// the products wait for each other (its warnings C7508 to C7519).
#pragma once

#include "common/types.cuh"

namespace gdpa::hopper {

/// Orders what registers hold before the products that follow.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Makes the products since the last call one group.
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `pending` of the latest groups are under way.
template <int pending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Keeps what reads the sums behind the wait before it: the compiler orders no arithmetic by that, nor a change of
/// type. No instruction.
template <int count>
__device__ __forceinline__ void read_behind_wait(float (&sums)[count]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum));
}

/// Where the tensor cores find an operand: rows of 128 bytes, swizzled, eight rows 1024 bytes apart. All in units of 16
/// bytes, below 2^14 since shared memory is, so that a step through the operand is one addition and nothing is masked.
struct OperandDescriptor {
  unsigned low;  ///< the address, and above it the way from one block of 64 columns to the next (where transposed)

  __device__ __forceinline__ OperandDescriptor(unsigned address, unsigned block_stride)
      : low(address + (block_stride << 16)) {}

  __device__ __forceinline__ unsigned long long at(unsigned offset) const {
    constexpr unsigned eight_rows = 1024 / 16, swizzle_128_bytes = 1u << 30;
    unsigned long long descriptor;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low + offset), "n"(eight_rows | swizzle_128_bytes));
    return descriptor;
  }
};

/// The product for one element type and number of columns; lane l of warp w of the warpgroup holds, with g = l / 4 and
/// t = l % 4, of C: rows 16 w + g and 16 w + g + 8 at columns 8 j + 2 t and + 1, in sums[4 j] to sums[4 j + 3].
/// `add` false takes the sums as 0. `transposed`: row k of B is row k of the tile, else column n of B is row n of it.
/// `a_transposed`: column k of A is row k of its tile, else row m of A is row m of it.
template <class Element, int columns>
struct WarpgroupProduct;

// One instruction has a name of its own for every n, and its operands are numbered: half of n sums, then the others.
#define GDPA_PRODUCT(ELEMENT, TYPE, COLUMNS, NAMES, SUMS, A0, A1, A2, A3, B, ADD, T, ADD_SS, T_SS, T_A)         \
  template <>                                                                                                   \
  struct WarpgroupProduct<ELEMENT, COLUMNS> {                                                                   \
    template <bool transposed>                                                                                  \
    static __device__ __forceinline__ void multiply_add(float (&sums)[COLUMNS / 2], const unsigned (&a)[4],     \
                                                        unsigned long long b, bool add) {                       \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD                                                \
                   ", 0;\n"                                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES "}, {%" #A0 \
                   ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, %" #T ";\n}"                           \
                   : SUMS(0)                                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}), "n"(int{transposed}));  \
    }                                                                                                           \
    template <bool transposed, bool a_transposed = false>                                                       \
    static __device__ __forceinline__ void multiply_add(float (&sums)[COLUMNS / 2], unsigned long long a,       \
                                                        unsigned long long b, bool add) {                       \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD_SS                                             \
                   ", 0;\n"                                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES "}, %" #A0  \
                   ", %" #A1 ", add, 1, 1, %" #T_A ", %" #T_SS ";\n}"                                           \
                   : SUMS(0)                                                                                    \
                   : "l"(a), "l"(b), "r"(int{add}), "n"(int{transposed}), "n"(int{a_transposed}));              \
    }                                                                                                           \
  };
#define GDPA_PRODUCTS(...)                    \
  GDPA_PRODUCT(BFloat16, "bf16", __VA_ARGS__) \
  GDPA_PRODUCT(Float16, "f16", __VA_ARGS__)

#define GDPA_SUMS_8(i)                                                                                          \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define GDPA_SUMS_16(i) GDPA_SUMS_8(i), GDPA_SUMS_8(i + 8)
#define GDPA_SUMS_32(i) GDPA_SUMS_16(i), GDPA_SUMS_16(i + 16)
#define GDPA_NAMES_16                \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define GDPA_NAMES_32                        \
  GDPA_NAMES_16                              \
  ", "                                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define GDPA_NAMES_40 GDPA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define GDPA_NAMES_48 GDPA_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define GDPA_NAMES_56 GDPA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define GDPA_NAMES_64 GDPA_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define GDPA_NAMES_80                          \
  GDPA_NAMES_64                                \
  ", %64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79"
#define GDPA_NAMES_96                          \
  GDPA_NAMES_80                                \
  ", %80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define GDPA_NAMES_128                               \
  GDPA_NAMES_96                                      \
  ", %96, %97, %98, %99, %100, %101, %102, %103, "   \
  "%104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"

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

}  // namespace gdpa::hopper
