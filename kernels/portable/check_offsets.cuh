// Debug mode: looks at the cumulative lengths of both sides on the device and prints the first one that is wrong. The
// kernels that follow clamp them in any case; see common/sequence.cuh.
//
// Launch: grid 2, one CTA for each side, block check_offsets_threads, no dynamic shared memory.
#pragma once

#include "definition/layout.h"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
constexpr int check_offsets_threads = 256;
template <class Config>
constexpr int check_offsets_shared_bytes = 0;

/// What is wrong with number `i`: it is below 0 at the start, it falls, or it lies beyond the operand.
enum class OffsetFault { none, start, fall, beyond };

__device__ inline OffsetFault fault_of(const Sequences& side, int64_t i, int64_t rows) {
  const int64_t offset = side.begin(i);
  if (i == 0 && offset < 0) return OffsetFault::start;
  if (i > 0 && offset < side.begin(i - 1)) return OffsetFault::fall;
  return offset > rows ? OffsetFault::beyond : OffsetFault::none;
}

__device__ inline void report_offset(const char* name, const char* operand, const Sequences& side, int64_t i,
                                     int64_t rows) {
  const auto offset = static_cast<long long>(side.begin(i));
  const auto index = static_cast<long long>(i);
  switch (fault_of(side, i, rows)) {
    case OffsetFault::none:
      return;
    case OffsetFault::start:
      printf("gdpa: %s[0] = %lld, expected 0 or more\n", name, offset);
      return;
    case OffsetFault::fall:
      printf("gdpa: %s[%lld] = %lld is below %s[%lld] = %lld: offsets must not fall\n", name, index, offset, name,
             index - 1, static_cast<long long>(side.begin(i - 1)));
      return;
    case OffsetFault::beyond:
      printf("gdpa: %s[%lld] = %lld is beyond the %lld rows of %s\n", name, index, offset, static_cast<long long>(rows),
             operand);
      return;
  }
}

template <class Config>
__device__ void check_offsets(const CheckOffsetsArguments& arguments) {
  const bool is_query = blockIdx.x == 0;
  const Sequences& side = is_query ? arguments.queries : arguments.keys;
  const int64_t rows = is_query ? arguments.rows_q : arguments.rows_k;
  if (side.cumulative == nullptr) return;
  __shared__ unsigned long long first;
  const auto none = static_cast<unsigned long long>(arguments.batch + 1);
  if (threadIdx.x == 0) first = none;
  __syncthreads();
  for (int64_t i = threadIdx.x; i <= arguments.batch; i += check_offsets_threads<Config>) {
    if (fault_of(side, i, rows) == OffsetFault::none) continue;
    atomicMin(&first, static_cast<unsigned long long>(i));
    break;
  }
  __syncthreads();
  if (threadIdx.x != 0 || first == none) return;
  report_offset(is_query ? "cu_seqlens_q" : "cu_seqlens_k", is_query ? "query" : "key", side,
                static_cast<int64_t>(first), rows);
}

}  // namespace gdpa::portable
