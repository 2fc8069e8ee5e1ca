// The checks of where the sequences of a call are: lengths, begins and ends, the batch map, pages, and the rows of the
// output.
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "api/check_parts.h"
#include "api/message.h"

namespace gdpa::api {
namespace {

/// The numbers of a tensor, `step` elements apart. An empty tensor has an address too, because null data means that
/// there is no tensor.
Integers integers_of(const TensorView& view, int64_t step) {
  static constexpr int64_t none = 0;
  return {view.data == nullptr ? &none : view.data, step, view.dtype == DType::int64};
}

/// Checks a tensor of numbers that say where sequences are.
void check_integers(std::string_view who, const TensorView& numbers, const Common& common) {
  if (numbers.dtype != DType::int32 && numbers.dtype != DType::int64) {
    refuse_type(who, "dtype int32 or int64", name(numbers.dtype), "convert it");
  }
  check_memory(who, numbers, common);
  if (numbers.data == nullptr && has_elements(numbers)) {
    refuse(who, "a pointer to its numbers", "null", "pass the numbers; a plan depends on them too");
  }
}

/// The numbers of a vector with one number for each batch entry.
Integers batch_integers_of(std::string_view who, const TensorView& numbers, const Common& common) {
  check_integers(who, numbers, common);
  if (size(numbers, 0) > 0 && stride(numbers, 0) < 0) {
    refuse(who, "a stride of 0 or more", stride(numbers, 0), "make it contiguous");
  }
  return integers_of(numbers, stride(numbers, 0));
}

/// Checks the number at an index, or at a pair of indices.
template <class Index>
void check_range(std::string_view who, int64_t number, int64_t most, std::string_view of, Index index) {
  if (number >= 0 && number <= most) return;
  refuse(who, fmt::format("numbers from 0 to {}, {}", most, of), fmt::format("{} at index {}", number, index),
         "correct the number");
}

/// Refuses a row that two batch entries have. Batch entry b has the rows of its sequence, which begin at begins[b]. The
/// row and the two entries are put into `came`.
void check_apart(int64_t batch, const Integers& begins, const Sequences& sequences, std::string_view who,
                 std::string_view expected, std::string_view came, std::string_view remedy) {
  std::vector<int64_t> order;
  for (int64_t b = 0; b < batch; ++b) {
    if (sequences.size(b) > 0) order.push_back(b);
  }
  std::ranges::sort(order, {}, [&](int64_t b) { return begins[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const int64_t before = order[i - 1], row = begins[order[i]];
    if (row < begins[before] + sequences.size(before)) {
      refuse(who, expected, fmt::format(fmt::runtime(came), row, before, order[i]), remedy);
    }
  }
}

Sequences cumulative_of(std::string_view who, const TensorView& numbers, const Common& common) {
  if (numbers.rank != 1 || size(numbers, 0) < 1) {
    refuse(who, "rank 1 and batch + 1 numbers", rank_and_shape(numbers),
           "pass cumulative lengths: 0, then the running sum");
  }
  check_integers(who, numbers, common);
  if (size(numbers, 0) > 1 && stride(numbers, 0) != 1) {
    refuse(who, "stride 1", fmt::format("stride {}", stride(numbers, 0)), "make it contiguous");
  }
  return Sequences::cumulative(numbers.data, numbers.dtype == DType::int64);
}

Sequences gapped_of(std::string_view who, const TensorView& numbers, const Common& common) {
  if (numbers.rank != 2 || size(numbers, 1) != 2) {
    refuse(who, "shape (batch, 2), the begin and the end of each sequence", rank_and_shape(numbers),
           "correct the shape");
  }
  check_integers(who, numbers, common);
  if (stride(numbers, 0) < 0 || stride(numbers, 1) < 0) {
    refuse(who, "strides of 0 or more", fmt::format("{} and {}", stride(numbers, 0), stride(numbers, 1)),
           "make it contiguous");
  }
  Sequences side;
  side.begins = side.ends = integers_of(numbers, stride(numbers, 0));
  side.ends.data = static_cast<const std::byte*>(side.begins.data) + stride(numbers, 1) * size_in_bytes(numbers.dtype);
  return side;
}

/// The tensors that say where the sequences of a side are, of which a call has at most one.
struct Offsets {
  std::string_view cumulative_name;
  const std::optional<TensorView>& cumulative;
  std::string_view gapped_name;
  const std::optional<TensorView>& gapped;
};

Side side_of(std::string_view operand, const TensorView& view, const Offsets& offsets, const Common& common) {
  if (offsets.cumulative && offsets.gapped) {
    refuse(offsets.gapped_name, fmt::format("no {} with it", offsets.cumulative_name), "both", "leave one of them out");
  }
  const bool has_gaps = offsets.gapped.has_value();
  const std::string_view who = has_gaps ? offsets.gapped_name : offsets.cumulative_name;
  Side side{.operand = operand, .offsets_name = who, .rows = size(view, 0), .has_gaps = has_gaps};
  if (const std::optional<TensorView>& numbers = has_gaps ? offsets.gapped : offsets.cumulative) {
    if (view.rank != 3) {
      refuse(operand, fmt::format("rank 3, (tokens, heads, head_dim), with {}", who), rank_and_shape(view),
             fmt::format("flatten batch and length into tokens, or leave {} out", who));
    }
    side.form = Form::jagged;
    side.sequences = has_gaps ? gapped_of(who, *numbers, common) : cumulative_of(who, *numbers, common);
    side.batch = size(*numbers, 0) - (has_gaps ? 0 : 1);
  } else if (view.rank == 4) {
    side.form = Form::dense;
    side.batch = size(view, 0);
    side.rows = size(view, 0) * size(view, 1);
    side.sequences.length = side.sequences.token_stride = size(view, 1);
  } else {
    side.sequences.length = size(view, 0);
  }
  return side;
}

/// Returns the side of keys in pages.
Side paged_side_of(const Attention& attention, const Common& common, Direction direction) {
  const TensorView& key = attention.key;
  const TensorView& table = *attention.block_table;
  if (direction == Direction::backward) {
    refuse("block_table", "forward", "backward", "gather the pages for a gradient");
  }
  if (attention.cu_seqlens_k || attention.seq_offsets_k || attention.kv_of) {
    refuse("block_table", "no other description of the keys with it", attention.kv_of ? "kv_of" : "offsets of keys",
           "leave one of them out");
  }
  if (key.rank != 4 || size(key, 1) < 1 || size(key, 1) % least_page_rows != 0) {
    refuse("key",
           fmt::format("shape (pages, rows of a page, heads, head_dim) with a multiple of {} rows", least_page_rows),
           shape_of(key), "use larger pages, or gather them");
  }
  if (table.rank != 2) {
    refuse("block_table", "rank 2, (batch, pages of an entry)", rank_and_shape(table), "reshape it");
  }
  check_integers("block_table", table, common);
  const int64_t batch = size(table, 0);
  if (has_elements(table) && ((size(table, 1) > 1 && stride(table, 1) != 1) || stride(table, 0) < 0)) {
    refuse("block_table", "a last dimension of stride 1", fmt::format("stride {}", stride(table, 1)),
           "make it contiguous");
  }
  if (has_elements(table) && size(key, 0) == 0) refuse("key", "at least one page", "0", "pass the pages");
  const std::optional<TensorView>& lengths = attention.seqused_k;
  if (!lengths || lengths->rank != 1 || size(*lengths, 0) != batch) {
    refuse("seqused_k", fmt::format("rank 1 and {} lengths, with block_table", batch),
           lengths ? fmt::format("shape {}", shape_of(*lengths)) : "nothing", "pass the number of keys of each entry");
  }
  check_integers("seqused_k", *lengths, common);
  Side side{.operand = "key", .offsets_name = "block_table", .form = Form::dense, .batch = batch};
  Sequences& sequences = side.sequences;
  sequences.pages = integers_of(table, 1);
  sequences.pages_stride = stride(table, 0);
  sequences.page_rows = size(key, 1);
  sequences.page_count = size(key, 0);
  sequences.ends = integers_of(*lengths, stride(*lengths, 0));
  sequences.length = size(table, 1) * sequences.page_rows;
  side.rows = batch * sequences.length;
  if (!common.is_on_cpu()) return side;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = sequences.size(b);
    check_range("seqused_k", length, sequences.length, "the rows of the pages", b);
    for (int64_t page = 0; page * sequences.page_rows < length; ++page) {
      const int64_t number = sequences.pages[b * sequences.pages_stride + page];
      check_range("block_table", number, sequences.page_count - 1, "the pages", std::pair(b, page));
    }
  }
  return side;
}

void check_length_fits_gpu(const Side& side) {
  // Backward may have tiles of the rows of keys whose sequences have gaps, as if they were one sequence.
  if (side.has_gaps && side.rows > most_gpu_rows) {
    refuse(side.operand, fmt::format("at most {} rows with {} on a GPU", most_gpu_rows, side.offsets_name), side.rows,
           "split the call, or move the tensors to the CPU");
  }
  if (side.sequences.length > most_gpu_rows) {
    refuse(side.operand, fmt::format("at most {} rows in a sequence on a GPU", most_gpu_rows), side.sequences.length,
           "split the sequence, or move the tensors to the CPU");
  }
}

/// Checks the begins and ends of sequences on the CPU.
void check_gapped(const Side& side) {
  const Sequences& sequences = side.sequences;
  for (int64_t b = 0; b < side.batch; ++b) {
    const int64_t begin = sequences.begins[b], end = sequences.ends[b];
    if (begin < 0 || end < begin || end > side.rows) {
      refuse(side.offsets_name, fmt::format("0 <= begin <= end <= {}, the tokens of {}", side.rows, side.operand),
             fmt::format("begin {} and end {} at index {}", begin, end, b), "correct the numbers");
    }
  }
}

/// Checks the lengths on the CPU. On a GPU the host does not read them, and kernels clamp them.
void check_offsets(const Side& side) {
  if (side.form != Form::jagged) return;
  if (side.has_gaps) return check_gapped(side);
  const Sequences& sequences = side.sequences;
  if (sequences.begin(0) < 0) {
    refuse(side.offsets_name, "0 or more as the first number", sequences.begin(0),
           "pass cumulative lengths, which count rows");
  }
  for (int64_t b = 0; b < side.batch; ++b) {
    if (sequences.size(b) < 0) {
      refuse(side.offsets_name, "numbers that never fall",
             fmt::format("{} after {} at index {}", sequences.end(b), sequences.begin(b), b + 1),
             "pass cumulative lengths, not lengths");
    }
  }
  if (sequences.begins[side.batch] > side.rows) {
    refuse(side.offsets_name, fmt::format("numbers up to {}, the tokens of {}", side.rows, side.operand),
           fmt::format("{} at the end", sequences.begins[side.batch]), "make the lengths add up to the tokens at most");
  }
}

int64_t common_batch(const Side& queries, const Side& keys) {
  if (!queries.has_batch()) return keys.has_batch() ? keys.batch : 1;
  if (keys.has_batch() && keys.batch != queries.batch) {
    refuse(keys.form == Form::jagged ? keys.offsets_name : keys.operand,
           fmt::format("{} batch entries, as the query side has", queries.batch), keys.batch,
           "describe the same batch on both sides");
  }
  return queries.batch;
}

/// Checks the batch map and adds it to the keys, whose sequences it selects. Returns the batch of the call.
int64_t map_batch(const std::optional<TensorView>& map, const Side& queries, Side& keys, const Common& common) {
  if (!map) return common_batch(queries, keys);
  constexpr std::string_view who = "kv_of";
  if (queries.has_batch()) check_one_for_each(who, *map, queries.batch, "query entry");
  if (map->rank != 1) refuse(who, "rank 1", rank_and_shape(*map), "correct the shape");
  const Integers entries = batch_integers_of(who, *map, common);
  if (!keys.has_batch()) {
    refuse(who, "keys with batch entries", "keys that the whole batch shares",
           "leave kv_of out, or pass keys of rank 4 or with lengths");
  }
  const int64_t batch = size(*map, 0);
  if (batch > 0 && keys.batch == 0) refuse(who, "at least one entry of keys", "0", "pass keys for the queries");
  keys.sequences.map = entries;
  keys.sequences.sequences = keys.batch;
  for (int64_t b = 0; common.is_on_cpu() && b < batch; ++b) {
    check_range(who, entries[b], keys.batch - 1, "the entries of the keys", b);
  }
  return batch;
}

/// Checks the shape of output_offsets, and returns the side of the output.
Sequences output_side_of(const Attention& attention, const Side& queries, int64_t batch, const Common& common) {
  constexpr std::string_view who = "output_offsets";
  if (!attention.output_offsets) {
    if (!attention.zeroes_output && !queries.has_gaps) {
      refuse("zeroes_output", "seq_offsets_q or output_offsets if it is false", "neither",
             "pass one of them, or set it to true");
    }
    return {};
  }
  if (queries.form == Form::dense) {
    refuse("query", fmt::format("rank 3 with {}", who), fmt::format("shape {}", shape_of(attention.query)),
           "flatten batch and length into tokens, and pass cu_seqlens_q");
  }
  check_one_for_each(who, *attention.output_offsets, batch, "batch entry");
  Sequences side;
  side.begins = batch_integers_of(who, *attention.output_offsets, common);
  return side;
}

}  // namespace

Sides check_sides(const Attention& attention, const Common& common, Direction direction) {
  const Offsets of_queries{"cu_seqlens_q", attention.cu_seqlens_q, "seq_offsets_q", attention.seq_offsets_q};
  const Offsets of_keys{"cu_seqlens_k", attention.cu_seqlens_k, "seq_offsets_k", attention.seq_offsets_k};
  Sides sides{side_of("query", attention.query, of_queries, common),
              attention.block_table ? paged_side_of(attention, common, direction)
                                    : side_of("key", attention.key, of_keys, common)};
  if (attention.seqused_k && !attention.block_table) {
    refuse("seqused_k", "a block_table with it", "none", "pass seq_offsets_k for keys without pages");
  }
  for (const Side* side : {&sides.queries, &sides.keys}) {
    if (common.is_on_gpu) check_length_fits_gpu(*side);
    if (common.is_on_cpu()) check_offsets(*side);
  }
  const Side& queries = sides.queries;
  if (queries.has_gaps && common.is_on_cpu()) {  // both sequences would write the output of a common query
    check_apart(queries.batch, queries.sequences.begins, queries.sequences, queries.offsets_name,
                "sequences without common queries", "row {} in sequences {} and {}",
                "copy the queries that two sequences have");
  }
  sides.batch = map_batch(attention.kv_of, queries, sides.keys, common);
  sides.outputs = output_side_of(attention, queries, sides.batch, common);
  return sides;
}

void check_output_offsets(const Problem& problem, const Params& params, int64_t rows) {
  const Sequences& queries = params.queries;
  if (problem.query_form == Form::shared && problem.batch > 0 && queries.length > rows) {
    refuse("output", fmt::format("at least {} rows, the length of the query", queries.length), rows,
           "allocate the rows of all batch entries");
  }
  if (problem.device.kind != DeviceKind::cpu) return;
  constexpr std::string_view who = "output_offsets";
  const Integers& begins = params.outputs.begins;
  for (int64_t b = 0; b < problem.batch; ++b) {
    if (begins[b] < 0 || begins[b] + queries.size(b) > rows) {
      refuse(who,
             fmt::format("numbers from 0 to {}, for the {} rows of the output and {} queries", rows - queries.size(b),
                         rows, queries.size(b)),
             fmt::format("{} at index {}", begins[b], b), "correct the number");
    }
  }
  check_apart(problem.batch, begins, queries, who, "batch entries without common rows of the output",
              "row {} of entries {} and {}", "correct the numbers");
}

void check_one_for_each(std::string_view who, const TensorView& view, int64_t entries, std::string_view entry) {
  if (view.rank == 1 && size(view, 0) == entries) return;
  refuse(who, fmt::format("rank 1 and {} numbers, one for each {}", entries, entry), rank_and_shape(view),
         "correct the shape");
}

}  // namespace gdpa::api
