// Debug mode: checks the offsets of both sides and of the output, the batch map, and the table of pages on the device,
// and prints the first wrong number of each. The kernels that follow clamp these numbers in any case
// (common/packed_layout.cuh). Also prints the first sequence whose lengths are not those that a mask was prepared for.
//
// Launch: grid 2, one CTA for each side.
#pragma once

#include "definition/layout.h"
#include "definition/tile_lists.h"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using check_offsets_cta = CtaShape<256>;

/// Calls print(i) for the first number i below `count` for which is_wrong(i) holds, if there is one. By the CTA. printf
/// has no format for int64_t: numbers are printed as long long.
template <class Config, class IsWrong, class Print>
__device__ void report_first(int64_t count, IsWrong is_wrong, Print print) {
  __shared__ unsigned long long first;
  __syncthreads();
  if (threadIdx.x == 0) first = static_cast<unsigned long long>(count);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count; i += check_offsets_cta<Config>::threads) {
    if (!is_wrong(i)) continue;
    atomicMin(&first, static_cast<unsigned long long>(i));
    break;
  }
  __syncthreads();
  const auto found = static_cast<long long>(first);
  if (threadIdx.x == 0 && found < count) print(found);
}

template <class Config>
__device__ void check_prepared_lengths(const CheckOffsetsArguments& arguments) {
  const auto differs = [&](int64_t b) {
    const ListedEntry& of = arguments.prepared[b];
    return arguments.queries.size(b) != of.length_q || arguments.keys.size(b) != of.length_k;
  };
  report_first<Config>(arguments.batch, differs, [&](long long b) {
    const long long queries = arguments.queries.size(b), keys = arguments.keys.size(b);
    printf(
        "gdpa: sequence %lld has %lld queries and %lld keys, and the mask was prepared for %d and %d: all of its tiles "
        "are computed\n",
        b, queries, keys, arguments.prepared[b].length_q, arguments.prepared[b].length_k);
  });
}

/// The rows of the output of each batch entry.
template <class Config>
__device__ void check_outputs(const CheckOffsetsArguments& arguments) {
  const auto last_begin = [&](int64_t b) { return arguments.rows_o - arguments.queries.size(b); };
  const auto is_wrong = [&](int64_t b) { return arguments.outputs[b] < 0 || arguments.outputs[b] > last_begin(b); };
  report_first<Config>(arguments.batch, is_wrong, [&](long long b) {
    const long long begin = arguments.outputs[b], last = last_begin(b), rows = arguments.rows_o,
                    queries = arguments.queries.size(b);
    printf("gdpa: output_offsets[%lld] = %lld, expected 0 to %lld, for the %lld rows of the output and %lld queries\n",
           b, begin, last, rows, queries);
  });
}

/// The lengths of keys in pages, and the pages that have keys.
template <class Config>
__device__ void check_pages(const Sequences& side, int64_t batch) {
  const long long longest = side.length, each = longest / side.page_rows, pages = side.page_count;
  const auto is_wrong_length = [&](int64_t b) { return side.ends[b] < 0 || side.ends[b] > longest; };
  report_first<Config>(batch, is_wrong_length, [&](long long b) {
    const long long length = side.ends[b];
    printf("gdpa: seqused_k[%lld] = %lld, expected 0 to %lld, the keys of the pages of an entry\n", b, length, longest);
  });
  const auto page_at = [&](int64_t i) { return side.pages[i / each * side.pages_stride + i % each]; };
  const auto is_wrong_page = [&](int64_t i) {
    const bool has_keys = i % each * side.page_rows < side.ends[i / each];
    return has_keys && (page_at(i) < 0 || page_at(i) >= pages);
  };
  report_first<Config>(batch * each, is_wrong_page, [&](long long i) {
    const long long page = page_at(i);
    printf("gdpa: block_table[%lld, %lld] = %lld is not one of the %lld pages\n", i / each, i % each, page, pages);
  });
}

template <class Config>
__device__ void check_offsets(const CheckOffsetsArguments& arguments) {
  const bool is_query = blockIdx.x == 0;
  if (is_query && arguments.prepared != nullptr) check_prepared_lengths<Config>(arguments);
  if (is_query && arguments.outputs.data != nullptr) check_outputs<Config>(arguments);
  const Sequences& side = is_query ? arguments.queries : arguments.keys;
  if (!is_query && side.has_pages()) return check_pages<Config>(side, arguments.batch);
  const bool has_map = side.map.data != nullptr;
  const long long sequences = has_map ? side.sequences : arguments.batch;
  const auto is_outside = [&](int64_t b) { return side.map[b] < 0 || side.map[b] >= sequences; };
  report_first<Config>(has_map ? arguments.batch : 0, is_outside, [&](long long b) {
    const long long sequence = side.map[b];
    printf("gdpa: kv_of[%lld] = %lld is not one of the %lld entries of the keys\n", b, sequence, sequences);
  });
  if (!side.is_jagged()) return;
  const long long rows = is_query ? arguments.rows_q : arguments.rows_k;
  const char* const operand = is_query ? "query" : "key";
  if (is_query ? arguments.has_query_gaps : arguments.has_key_gaps) {
    const auto is_wrong = [&](int64_t i) {
      return side.begins[i] < 0 || side.ends[i] < side.begins[i] || side.ends[i] > rows;
    };
    report_first<Config>(sequences, is_wrong, [&](long long i) {
      const long long begin = side.begins[i], end = side.ends[i];
      printf("gdpa: %s[%lld] = [%lld, %lld], expected 0 <= begin <= end <= %lld, the rows of %s\n",
             is_query ? "seq_offsets_q" : "seq_offsets_k", i, begin, end, rows, operand);
    });
    return;
  }
  const auto least = [&](int64_t i) { return i == 0 ? 0 : side.begins[i - 1]; };
  const auto is_wrong = [&](int64_t i) { return side.begins[i] < least(i) || side.begins[i] > rows; };
  report_first<Config>(sequences + 1, is_wrong, [&](long long i) {
    const char* const name = is_query ? "cu_seqlens_q" : "cu_seqlens_k";
    const long long offset = side.begins[i], before = least(i);
    if (offset >= before) {
      printf("gdpa: %s[%lld] = %lld is beyond the %lld rows of %s\n", name, i, offset, rows, operand);
    } else if (i == 0) {
      printf("gdpa: %s[0] = %lld, expected 0 or more\n", name, offset);
    } else {
      printf("gdpa: %s[%lld] = %lld is below %s[%lld] = %lld: offsets must not fall\n", name, i, offset, name, i - 1,
             before);
    }
  });
}

}  // namespace gdpa::portable
