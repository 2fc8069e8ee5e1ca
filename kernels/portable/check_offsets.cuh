// Debug mode: checks the offsets of both sides and of the output, the batch map, and the table of pages on the device,
// and prints the first wrong number of each. The kernels that follow clamp these numbers in any case
// (common/packed_layout.cuh). Also prints the first sequence whose lengths are not those that a mask was prepared for.
//
// Launch: grid 2, one CTA for each side, block check_offsets_threads, no dynamic shared memory.
#pragma once

#include "definition/layout.h"
#include "definition/tile_lists.h"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
constexpr int check_offsets_threads = 256;
template <class Config>
constexpr int check_offsets_shared_bytes = 0;

/// The fault of a number: it is below 0 at the start, it falls, or it lies beyond the operand.
enum class OffsetFault { none, start, fall, beyond };

__device__ inline OffsetFault fault_of(const Sequences& side, int64_t i, int64_t rows) {
  const int64_t offset = side.begins[i];
  if (i == 0 && offset < 0) return OffsetFault::start;
  if (i > 0 && offset < side.begins[i - 1]) return OffsetFault::fall;
  return offset > rows ? OffsetFault::beyond : OffsetFault::none;
}

__device__ inline void report_offset(const char* name, const char* operand, const Sequences& side, int64_t i,
                                     int64_t rows) {
  const auto offset = static_cast<long long>(side.begins[i]);
  const auto index = static_cast<long long>(i);
  switch (fault_of(side, i, rows)) {
    case OffsetFault::none:
      return;
    case OffsetFault::start:
      printf("gdpa: %s[0] = %lld, expected 0 or more\n", name, offset);
      return;
    case OffsetFault::fall:
      printf("gdpa: %s[%lld] = %lld is below %s[%lld] = %lld: offsets must not fall\n", name, index, offset, name,
             index - 1, static_cast<long long>(side.begins[i - 1]));
      return;
    case OffsetFault::beyond:
      printf("gdpa: %s[%lld] = %lld is beyond the %lld rows of %s\n", name, index, offset, static_cast<long long>(rows),
             operand);
      return;
  }
}

/// The first number below `count` for which `is_wrong` holds, otherwise `count`. By the CTA.
template <class Config, class IsWrong>
__device__ int64_t first_wrong(int64_t count, IsWrong is_wrong) {
  __shared__ unsigned long long first;
  __syncthreads();
  if (threadIdx.x == 0) first = static_cast<unsigned long long>(count);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count; i += check_offsets_threads<Config>) {
    if (!is_wrong(i)) continue;
    atomicMin(&first, static_cast<unsigned long long>(i));
    break;
  }
  __syncthreads();
  return static_cast<int64_t>(first);
}

template <class Config>
__device__ void check_prepared_lengths(const CheckOffsetsArguments& arguments) {
  const auto differs = [&](int64_t b) {
    const ListedEntry& of = arguments.prepared[b];
    return arguments.queries.size(b) != of.length_q || arguments.keys.size(b) != of.length_k;
  };
  const int64_t b = first_wrong<Config>(arguments.batch, differs);
  if (threadIdx.x != 0 || b == arguments.batch) return;
  printf(
      "gdpa: sequence %lld has %lld queries and %lld keys, and the mask was prepared for %d and %d: all of its tiles "
      "are computed\n",
      static_cast<long long>(b), static_cast<long long>(arguments.queries.size(b)),
      static_cast<long long>(arguments.keys.size(b)), arguments.prepared[b].length_q, arguments.prepared[b].length_k);
}

/// The rows of the output of each batch entry.
template <class Config>
__device__ void check_outputs(const CheckOffsetsArguments& arguments) {
  const auto last_begin = [&](int64_t b) { return arguments.rows_o - arguments.queries.size(b); };
  const auto is_wrong = [&](int64_t b) { return arguments.outputs[b] < 0 || arguments.outputs[b] > last_begin(b); };
  const int64_t b = first_wrong<Config>(arguments.batch, is_wrong);
  if (threadIdx.x != 0 || b == arguments.batch) return;
  printf("gdpa: output_offsets[%lld] = %lld, expected 0 to %lld, for the %lld rows of the output and %lld queries\n",
         static_cast<long long>(b), static_cast<long long>(arguments.outputs[b]), static_cast<long long>(last_begin(b)),
         static_cast<long long>(arguments.rows_o), static_cast<long long>(arguments.queries.size(b)));
}

/// The lengths of keys in pages, and the pages that have keys.
template <class Config>
__device__ void check_pages(const Sequences& side, int64_t batch) {
  const bool is_first = threadIdx.x == 0;
  const int64_t longest = side.length;
  const int64_t b = first_wrong<Config>(batch, [&](int64_t i) { return side.ends[i] < 0 || side.ends[i] > longest; });
  if (is_first && b < batch) {
    printf("gdpa: seqused_k[%lld] = %lld, expected 0 to %lld, the keys of the pages of an entry\n",
           static_cast<long long>(b), static_cast<long long>(side.ends[b]), static_cast<long long>(longest));
  }
  const int64_t each = longest / side.page_rows;
  const auto page_at = [&](int64_t i) { return side.pages[i / each * side.pages_stride + i % each]; };
  const auto is_wrong = [&](int64_t i) {
    const bool has_keys = i % each * side.page_rows < side.ends[i / each];
    return has_keys && (page_at(i) < 0 || page_at(i) >= side.page_count);
  };
  const int64_t i = first_wrong<Config>(batch * each, is_wrong);
  if (!is_first || i == batch * each) return;
  printf("gdpa: block_table[%lld, %lld] = %lld is not one of the %lld pages\n", static_cast<long long>(i / each),
         static_cast<long long>(i % each), static_cast<long long>(page_at(i)), static_cast<long long>(side.page_count));
}

template <class Config>
__device__ void check_offsets(const CheckOffsetsArguments& arguments) {
  const bool is_query = blockIdx.x == 0;
  if (is_query && arguments.prepared != nullptr) check_prepared_lengths<Config>(arguments);
  if (is_query && arguments.outputs.data != nullptr) check_outputs<Config>(arguments);
  if (!is_query && arguments.keys.has_pages()) {
    check_pages<Config>(arguments.keys, arguments.batch);
    return;
  }
  const Sequences& side = is_query ? arguments.queries : arguments.keys;
  const int64_t rows = is_query ? arguments.rows_q : arguments.rows_k;
  const int64_t sequences = side.map.data == nullptr ? arguments.batch : side.sequences;
  const bool is_first = threadIdx.x == 0;
  if (side.map.data != nullptr) {
    const auto is_outside = [&](int64_t b) { return side.map[b] < 0 || side.map[b] >= sequences; };
    const int64_t b = first_wrong<Config>(arguments.batch, is_outside);
    if (is_first && b < arguments.batch) {
      printf("gdpa: kv_of[%lld] = %lld is not one of the %lld entries of the keys\n", static_cast<long long>(b),
             static_cast<long long>(side.map[b]), static_cast<long long>(sequences));
    }
  }
  if (!side.is_jagged()) return;
  if (is_query ? arguments.has_query_gaps : arguments.has_key_gaps) {
    const auto is_wrong = [&](int64_t i) {
      return side.begins[i] < 0 || side.ends[i] < side.begins[i] || side.ends[i] > rows;
    };
    const int64_t i = first_wrong<Config>(sequences, is_wrong);
    if (!is_first || i == sequences) return;
    printf("gdpa: %s[%lld] = [%lld, %lld], expected 0 <= begin <= end <= %lld, the rows of %s\n",
           is_query ? "seq_offsets_q" : "seq_offsets_k", static_cast<long long>(i),
           static_cast<long long>(side.begins[i]), static_cast<long long>(side.ends[i]), static_cast<long long>(rows),
           is_query ? "query" : "key");
    return;
  }
  const int64_t i = first_wrong<Config>(
      sequences + 1, [&](int64_t number) { return fault_of(side, number, rows) != OffsetFault::none; });
  if (!is_first || i == sequences + 1) return;
  report_offset(is_query ? "cu_seqlens_q" : "cu_seqlens_k", is_query ? "query" : "key", side, i, rows);
}

}  // namespace gdpa::portable
