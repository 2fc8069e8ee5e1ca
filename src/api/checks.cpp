// The checks of a call, in this order: each operand, then the operands together, the lengths, the numbers, and the
// outputs. A call with several mistakes reports the first one.
#include "api/checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/message.h"
#include "api/overlap.h"
#include "api/wanted.h"
#include "expression/function.h"
#include "plan/prepared_tiles.h"

namespace gdpa::api {
namespace {

constexpr int64_t no_batch = -1;

template <class Pointer>
int64_t size(const BasicTensorView<Pointer>& view, int dimension) {
  return view.sizes[static_cast<std::size_t>(dimension)];
}

template <class Pointer>
int64_t stride(const BasicTensorView<Pointer>& view, int dimension) {
  return view.strides[static_cast<std::size_t>(dimension)];
}

template <class Pointer>
bool has_elements(const BasicTensorView<Pointer>& view) {
  return std::all_of(view.sizes.begin(), view.sizes.begin() + view.rank, [](int64_t n) { return n > 0; });
}

template <class One, class Other>
bool is_same_shape(const BasicTensorView<One>& one, const BasicTensorView<Other>& other) {
  return one.rank == other.rank && std::equal(one.sizes.begin(), one.sizes.begin() + one.rank, other.sizes.begin());
}

bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::bfloat16 || dtype == DType::float16;
}

/// The properties that all operands of a call have in common.
struct Common {
  DType dtype;
  Device device;
  bool needs_data;
};

template <class Pointer>
void check_memory(std::string_view who, const BasicTensorView<Pointer>& view, const Common& common) {
  for (int i = 0; i < view.rank; ++i) {
    if (size(view, i) < 0) {
      refuse(ErrorKind::value, who, "sizes of 0 or more", shape_of(view), "correct the shape");
    }
  }
  if (view.device != common.device) {
    refuse(ErrorKind::type, who, fmt::format("device {}, as the query's", to_string(common.device)),
           to_string(view.device), "move all tensors to one device");
  }
  if (common.needs_data && view.data == nullptr && has_elements(view)) {
    refuse(ErrorKind::value, who, "a pointer to its elements", "null", "pass the address of the first element");
  }
}

/// Rank 3 or 4, one floating type, the last stride 1.
template <class Pointer>
void check_operand(std::string_view who, const BasicTensorView<Pointer>& view, const Common& common) {
  if (view.rank != 3 && view.rank != 4) {
    refuse(ErrorKind::value, who, "rank 3, (tokens, heads, head_dim), or rank 4, (batch, length, heads, head_dim)",
           fmt::format("rank {} with shape {}", view.rank, shape_of(view)), "reshape it");
  }
  if (view.dtype != common.dtype) {
    refuse(ErrorKind::type, who, fmt::format("dtype {}, as the query's", name(common.dtype)), name(view.dtype),
           "convert all operands to one dtype");
  }
  check_memory(who, view, common);
  if (size(view, view.rank - 2) < 1 || size(view, view.rank - 1) < 1) {
    refuse(ErrorKind::value, who, "at least one head and a head_dim of 1 or more", shape_of(view), "correct the shape");
  }
  if (size(view, view.rank - 1) > 1 && stride(view, view.rank - 1) != 1) {
    refuse(ErrorKind::value, who, "a last dimension of stride 1", fmt::format("stride {}", stride(view, view.rank - 1)),
           "make it contiguous in the last dimension, e.g. by .contiguous()");
  }
}

/// Refuses an output with two elements at one address. Each stride must be larger than the extent of all dimensions
/// with smaller strides.
void check_no_overlap(std::string_view who, const MutableTensorView& view) {
  if (!has_elements(view)) return;
  for (int outer = 0; outer < view.rank; ++outer) {
    if (size(view, outer) <= 1) continue;
    int64_t covered = 1;
    for (int inner = 0; inner < view.rank; ++inner) {
      const bool is_inside =
          stride(view, inner) < stride(view, outer) || (stride(view, inner) == stride(view, outer) && inner > outer);
      if (is_inside && size(view, inner) > 1) covered += stride(view, inner) * (size(view, inner) - 1);
    }
    if (stride(view, outer) < covered) {
      refuse(ErrorKind::value, who, "strides that give each element an address of its own",
             fmt::format("stride {} in dimension {} of shape {}", stride(view, outer), outer, shape_of(view)),
             "write into a tensor of its own, or a view that does not repeat or overlap rows");
    }
  }
}

void check_same(std::string_view who, std::string_view what, int64_t came, std::string_view of, int64_t expected) {
  if (came != expected) {
    refuse(ErrorKind::value, who, fmt::format("{} {}, as {}", what, expected, of), fmt::format("{}", came),
           "make the two agree");
  }
}

/// One side of the problem, before the checks of its lengths.
struct Side {
  std::string_view operand;       ///< "query" or "key"
  std::string_view offsets_name;  ///< of the tensor with its lengths, or with its begins and ends
  Form form = Form::shared;
  int64_t batch = no_batch;  ///< its sequences; no_batch for a shared side
  int64_t rows = 0;
  bool has_gaps = false;
  Sequences sequences;
};

/// Checks a tensor of numbers that say where sequences are.
void check_integers(std::string_view who, const TensorView& numbers, const Common& common) {
  if (numbers.dtype != DType::int32 && numbers.dtype != DType::int64) {
    refuse(ErrorKind::type, who, "dtype int32 or int64", name(numbers.dtype), "convert it");
  }
  check_memory(who, numbers, common);
  if (numbers.data == nullptr && has_elements(numbers)) {
    refuse(ErrorKind::value, who, "a pointer to its numbers", "null", "pass the numbers; a plan depends on them too");
  }
}

Sequences cumulative_of(std::string_view who, const TensorView& numbers, const Common& common) {
  if (numbers.rank != 1 || size(numbers, 0) < 1) {
    refuse(ErrorKind::value, who, "rank 1 and batch + 1 numbers",
           fmt::format("rank {} with shape {}", numbers.rank, shape_of(numbers)),
           "pass cumulative lengths: 0, then the running sum");
  }
  check_integers(who, numbers, common);
  if (size(numbers, 0) > 1 && stride(numbers, 0) != 1) {
    refuse(ErrorKind::value, who, "stride 1", fmt::format("stride {}", stride(numbers, 0)), "make it contiguous");
  }
  return Sequences::cumulative(numbers.data, numbers.dtype == DType::int64);
}

Sequences gapped_of(std::string_view who, const TensorView& numbers, const Common& common) {
  if (numbers.rank != 2 || size(numbers, 1) != 2) {
    refuse(ErrorKind::value, who, "shape (batch, 2), the begin and the end of each sequence",
           fmt::format("rank {} with shape {}", numbers.rank, shape_of(numbers)), "correct the shape");
  }
  check_integers(who, numbers, common);
  if (stride(numbers, 0) < 0 || stride(numbers, 1) < 0) {
    refuse(ErrorKind::value, who, "strides of 0 or more",
           fmt::format("{} and {}", stride(numbers, 0), stride(numbers, 1)), "make it contiguous");
  }
  // An operand with begins is jagged, so an empty batch has an address too.
  static constexpr int64_t none = 0;
  const bool is_int64 = numbers.dtype == DType::int64;
  const auto* const first = static_cast<const std::byte*>(numbers.data == nullptr ? &none : numbers.data);
  Sequences side;
  side.begins = {first, stride(numbers, 0), is_int64};
  side.ends = {first + stride(numbers, 1) * size_in_bytes(numbers.dtype), stride(numbers, 0), is_int64};
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
  Side side{.operand = operand, .offsets_name = offsets.cumulative_name, .rows = size(view, 0), .sequences = {}};
  if (offsets.cumulative && offsets.gapped) {
    refuse(ErrorKind::value, offsets.gapped_name, fmt::format("no {} with it", offsets.cumulative_name), "both",
           "leave one of them out");
  }
  if (offsets.cumulative || offsets.gapped) {
    side.has_gaps = offsets.gapped.has_value();
    if (side.has_gaps) side.offsets_name = offsets.gapped_name;
    if (view.rank != 3) {
      refuse(ErrorKind::value, operand, fmt::format("rank 3, (tokens, heads, head_dim), with {}", side.offsets_name),
             fmt::format("rank {} with shape {}", view.rank, shape_of(view)),
             fmt::format("flatten batch and length into tokens, or leave {} out", side.offsets_name));
    }
    side.form = Form::jagged;
    if (side.has_gaps) {
      side.sequences = gapped_of(side.offsets_name, *offsets.gapped, common);
      side.batch = size(*offsets.gapped, 0);
    } else {
      side.sequences = cumulative_of(side.offsets_name, *offsets.cumulative, common);
      side.batch = size(*offsets.cumulative, 0) - 1;
    }
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

/// Checks the begins and ends of sequences on the CPU.
void check_gapped(const Side& side) {
  const Sequences& sequences = side.sequences;
  for (int64_t b = 0; b < side.batch; ++b) {
    const int64_t begin = sequences.begins[b], end = sequences.ends[b];
    if (begin < 0 || end < begin || end > side.rows) {
      refuse(ErrorKind::value, side.offsets_name,
             fmt::format("0 <= begin <= end <= {}, the tokens of {}", side.rows, side.operand),
             fmt::format("begin {} and end {} at index {}", begin, end, b), "correct the numbers");
    }
  }
}

/// Refuses queries that two sequences have, because both would write their output.
void check_apart(const Side& queries) {
  std::vector<int64_t> order;
  for (int64_t b = 0; b < queries.batch; ++b) {
    if (queries.sequences.begins[b] < queries.sequences.ends[b]) order.push_back(b);
  }
  const auto begin = [&](int64_t b) { return queries.sequences.begins[b]; };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return begin(a) < begin(b); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (begin(order[i]) < queries.sequences.ends[order[i - 1]]) {
      refuse(ErrorKind::value, queries.offsets_name, "sequences without common queries",
             fmt::format("row {} in sequences {} and {}", begin(order[i]), order[i - 1], order[i]),
             "copy the queries that two sequences have");
    }
  }
}

/// Checks the lengths on the CPU. On a GPU the host does not read them, and kernels clamp them.
void check_offsets(const Side& side, Device device) {
  if (side.form != Form::jagged || device.kind != DeviceKind::cpu) return;
  const Sequences& sequences = side.sequences;
  if (side.has_gaps) return check_gapped(side);
  if (sequences.begin(0) < 0) {
    refuse(ErrorKind::value, side.offsets_name, "0 or more as the first number", fmt::format("{}", sequences.begin(0)),
           "pass cumulative lengths, which count rows");
  }
  for (int64_t b = 0; b < side.batch; ++b) {
    if (sequences.size(b) < 0) {
      refuse(ErrorKind::value, side.offsets_name, "numbers that never fall",
             fmt::format("{} after {} at index {}", sequences.end(b), sequences.begin(b), b + 1),
             "pass cumulative lengths, not lengths");
    }
  }
  if (sequences.begins[side.batch] > side.rows) {
    refuse(ErrorKind::value, side.offsets_name,
           fmt::format("numbers up to {}, the tokens of {}", side.rows, side.operand),
           fmt::format("{} at the end", sequences.begins[side.batch]), "make the lengths add up to the tokens at most");
  }
}

int64_t common_batch(const Side& queries, const Side& keys) {
  if (queries.batch == no_batch && keys.batch == no_batch) return 1;
  if (queries.batch == no_batch) return keys.batch;
  if (keys.batch != no_batch && keys.batch != queries.batch) {
    const std::string_view who = keys.form == Form::jagged ? keys.offsets_name : keys.operand;
    refuse(ErrorKind::value, who, fmt::format("{} batch entries, as the query side has", queries.batch),
           fmt::format("{}", keys.batch), "describe the same batch on both sides");
  }
  return queries.batch;
}

/// Checks the batch map and adds it to the keys, whose sequences it selects. Returns the batch of the call.
int64_t map_batch(const std::optional<TensorView>& map, const Side& queries, Side& keys, const Common& common) {
  if (!map) return common_batch(queries, keys);
  constexpr std::string_view who = "kv_of";
  if (map->rank != 1 || (queries.batch != no_batch && size(*map, 0) != queries.batch)) {
    refuse(ErrorKind::value, who,
           queries.batch == no_batch ? "rank 1"
                                     : fmt::format("rank 1 and {} numbers, one for each query entry", queries.batch),
           fmt::format("rank {} with shape {}", map->rank, shape_of(*map)), "correct the shape");
  }
  check_integers(who, *map, common);
  if (keys.form == Form::shared) {
    refuse(ErrorKind::value, who, "keys with batch entries", "keys that the whole batch shares",
           "leave kv_of out, or pass keys of rank 4 or with lengths");
  }
  const int64_t batch = size(*map, 0);
  if (batch > 0 && stride(*map, 0) < 0) {
    refuse(ErrorKind::value, who, "a stride of 0 or more", fmt::format("{}", stride(*map, 0)), "make it contiguous");
  }
  if (batch > 0 && keys.batch == 0) {
    refuse(ErrorKind::value, who, "at least one entry of keys", "0", "pass keys for the queries");
  }
  static constexpr int64_t none = 0;
  keys.sequences.map = {map->data == nullptr ? &none : map->data, stride(*map, 0), map->dtype == DType::int64};
  keys.sequences.sequences = keys.batch;
  if (common.device.kind != DeviceKind::cpu) return batch;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t mapped = keys.sequences.map[b];
    if (mapped < 0 || mapped >= keys.batch) {
      refuse(ErrorKind::value, who, fmt::format("numbers from 0 to {}, the entries of the keys", keys.batch - 1),
             fmt::format("{} at index {}", mapped, b), "correct the number");
    }
  }
  return batch;
}

/// Returns the side of keys in pages.
Side paged_side_of(const Attention& attention, const Common& common, Direction direction) {
  const TensorView& key = attention.key;
  const TensorView& table = *attention.block_table;
  if (direction == Direction::backward) {
    refuse(ErrorKind::value, "block_table", "forward", "backward", "gather the pages for a gradient");
  }
  if (attention.cu_seqlens_k || attention.seq_offsets_k || attention.kv_of) {
    refuse(ErrorKind::value, "block_table", "no other description of the keys with it",
           attention.kv_of ? "kv_of" : "offsets of keys", "leave one of them out");
  }
  if (key.rank != 4 || size(key, 1) < 1 || size(key, 1) % least_page_rows != 0) {
    refuse(ErrorKind::value, "key",
           fmt::format("shape (pages, rows of a page, heads, head_dim) with a multiple of {} rows", least_page_rows),
           shape_of(key), "use larger pages, or gather them");
  }
  if (table.rank != 2) {
    refuse(ErrorKind::value, "block_table", "rank 2, (batch, pages of an entry)",
           fmt::format("rank {} with shape {}", table.rank, shape_of(table)), "reshape it");
  }
  check_integers("block_table", table, common);
  const int64_t batch = size(table, 0);
  if (has_elements(table) && ((size(table, 1) > 1 && stride(table, 1) != 1) || stride(table, 0) < 0)) {
    refuse(ErrorKind::value, "block_table", "a last dimension of stride 1", fmt::format("stride {}", stride(table, 1)),
           "make it contiguous");
  }
  if (has_elements(table) && size(key, 0) == 0) {
    refuse(ErrorKind::value, "key", "at least one page", "0", "pass the pages");
  }
  if (!attention.seqused_k || attention.seqused_k->rank != 1 || size(*attention.seqused_k, 0) != batch) {
    refuse(ErrorKind::value, "seqused_k", fmt::format("rank 1 and {} lengths, with block_table", batch),
           attention.seqused_k ? fmt::format("shape {}", shape_of(*attention.seqused_k)) : "nothing",
           "pass the number of keys of each entry");
  }
  check_integers("seqused_k", *attention.seqused_k, common);
  static constexpr int64_t none = 0;
  const auto integers_of = [](const TensorView& view, int64_t step) {
    return Integers{view.data == nullptr ? &none : view.data, step, view.dtype == DType::int64};
  };
  Side side{.operand = "key", .offsets_name = "block_table", .rows = 0, .sequences = {}};
  side.form = Form::dense;
  side.batch = batch;
  Sequences& sequences = side.sequences;
  sequences.pages = integers_of(table, 1);
  sequences.pages_stride = stride(table, 0);
  sequences.page_rows = size(key, 1);
  sequences.page_count = size(key, 0);
  sequences.ends = integers_of(*attention.seqused_k, stride(*attention.seqused_k, 0));
  sequences.length = size(table, 1) * sequences.page_rows;
  side.rows = batch * sequences.length;
  if (common.device.kind != DeviceKind::cpu) return side;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = sequences.size(b);
    if (length < 0 || length > sequences.length) {
      refuse(ErrorKind::value, "seqused_k",
             fmt::format("numbers from 0 to {}, the rows of the pages", sequences.length),
             fmt::format("{} at index {}", length, b), "correct the number");
    }
    for (int64_t page = 0; page * sequences.page_rows < length; ++page) {
      const int64_t number = sequences.pages[b * sequences.pages_stride + page];
      if (number < 0 || number >= sequences.page_count) {
        refuse(ErrorKind::value, "block_table",
               fmt::format("numbers from 0 to {}, the pages", sequences.page_count - 1),
               fmt::format("{} at index ({}, {})", number, b, page), "correct the number");
      }
    }
  }
  return side;
}

/// Checks the shape of output_offsets, and returns the side of the output.
Sequences output_side_of(const Attention& attention, const Side& queries, int64_t batch, const Common& common) {
  constexpr std::string_view who = "output_offsets";
  if (!attention.output_offsets) {
    if (!attention.zeroes_output && !queries.has_gaps) {
      refuse(ErrorKind::value, "zeroes_output", "true without seq_offsets_q and output_offsets", "false",
             "say where the sequences are by one of them");
    }
    return {};
  }
  const TensorView& offsets = *attention.output_offsets;
  if (queries.form == Form::dense) {
    refuse(ErrorKind::value, "query", fmt::format("rank 3 with {}", who),
           fmt::format("shape {}", shape_of(attention.query)),
           "flatten batch and length into tokens, and pass cu_seqlens_q");
  }
  if (offsets.rank != 1 || size(offsets, 0) != batch) {
    refuse(ErrorKind::value, who, fmt::format("rank 1 and {} numbers, one for each batch entry", batch),
           fmt::format("rank {} with shape {}", offsets.rank, shape_of(offsets)), "correct the shape");
  }
  check_integers(who, offsets, common);
  if (batch > 0 && stride(offsets, 0) < 0) {
    refuse(ErrorKind::value, who, "a stride of 0 or more", fmt::format("{}", stride(offsets, 0)), "make it contiguous");
  }
  static constexpr int64_t none = 0;
  Sequences side;
  side.begins = {offsets.data == nullptr ? &none : offsets.data, stride(offsets, 0), offsets.dtype == DType::int64};
  return side;
}

/// Checks where the rows of each batch entry are in an output of `rows` rows. On a GPU the host does not read the
/// numbers, and kernels clamp them.
void check_output_offsets(const CheckedCall& call, int64_t rows) {
  const Problem& problem = call.problem;
  const Sequences& queries = call.params.queries;
  constexpr std::string_view who = "output_offsets";
  if (problem.query_form == Form::shared && problem.batch > 0 && queries.length > rows) {
    refuse(ErrorKind::value, "output", fmt::format("at least {} rows, the length of the query", queries.length),
           fmt::format("{}", rows), "allocate the rows of all batch entries");
  }
  if (problem.device.kind != DeviceKind::cpu) return;
  const Integers& begins = call.params.outputs.begins;
  std::vector<int64_t> order;
  for (int64_t b = 0; b < problem.batch; ++b) {
    if (begins[b] < 0 || begins[b] + queries.size(b) > rows) {
      refuse(ErrorKind::value, who,
             fmt::format("numbers from 0 to {}, for the {} rows of the output and {} queries", rows - queries.size(b),
                         rows, queries.size(b)),
             fmt::format("{} at index {}", begins[b], b), "correct the number");
    }
    if (queries.size(b) > 0) order.push_back(b);
  }
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return begins[a] < begins[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (begins[order[i]] < begins[order[i - 1]] + queries.size(order[i - 1])) {
      refuse(ErrorKind::value, who, "batch entries without common rows of the output",
             fmt::format("row {} of entries {} and {}", begins[order[i]], order[i - 1], order[i]),
             "correct the numbers");
    }
  }
}

/// Returns the strides of an operand of this form. The output of a shared query is not shared: it has `length` rows for
/// each batch entry, one batch entry after another.
template <class Pointer>
Operand operand_of(const BasicTensorView<Pointer>& view, Form form, int64_t length, bool is_output) {
  Operand operand;
  operand.data = const_cast<void*>(static_cast<const void*>(view.data));  // inputs are only read
  operand.row_stride = stride(view, view.rank - 3);
  operand.head_stride = stride(view, view.rank - 2);
  if (view.rank == 4) {
    operand.batch_stride = stride(view, 0);
  } else if (is_output && form == Form::shared) {
    operand.batch_stride = length * operand.row_stride;
  }
  return operand;
}

void check_finite(std::string_view who, double number) {
  if (!std::isfinite(number)) {
    refuse(ErrorKind::value, who, "a finite number", fmt::format("{}", number), "pass a finite number");
  }
}

/// Checks the numbers of out_scale.
void check_numbers(const TensorView& numbers, const Common& common) {
  if (numbers.dtype != DType::float32 && numbers.dtype != DType::float64) {
    refuse(ErrorKind::type, "out_scale", "dtype float32 or float64", name(numbers.dtype), "convert it");
  }
  check_memory("out_scale", numbers, common);
}

/// The distance in memory between the numbers of two rows of the query, in elements.
template <class Pointer>
int64_t row_stride_of(std::string_view who, const BasicTensorView<Pointer>& numbers) {
  const bool is_dense = numbers.rank == 2;
  const int64_t batch = size(numbers, 0), length = size(numbers, numbers.rank - 1);
  if (is_dense && batch > 1 && length > 1 && stride(numbers, 0) != length * stride(numbers, 1)) {
    refuse(ErrorKind::value, who, "rows of one distance in memory",
           fmt::format("strides {} and {}", stride(numbers, 0), stride(numbers, 1)), "make it contiguous");
  }
  return stride(numbers, is_dense && length == 1 ? 0 : numbers.rank - 1);
}

/// out_scale with one number for each row of the query.
OutputScale row_scale_of(const TensorView& numbers, int64_t batch, const Side& queries, const Common& common,
                         bool is_on_gpu) {
  const int64_t length = queries.sequences.length;
  const bool is_dense = queries.form == Form::dense;
  const bool has_shape = is_dense ? numbers.rank == 2 && size(numbers, 0) == batch && size(numbers, 1) == length
                                  : numbers.rank == 1 && size(numbers, 0) == queries.rows;
  if (!has_shape) {
    refuse(ErrorKind::value, "out_scale",
           is_dense ? fmt::format("shape ({}, {}), one number for each query", batch, length)
                    : fmt::format("rank 1 and {} numbers, one for each row of the query", queries.rows),
           fmt::format("rank {} with shape {}", numbers.rank, shape_of(numbers)), "correct the shape");
  }
  if (is_on_gpu && numbers.dtype == DType::float64) {
    refuse(ErrorKind::type, "out_scale", "dtype float32 for one number for each row of the query on a GPU", "float64",
           "convert it");
  }
  check_numbers(numbers, common);
  OutputScale result;
  result.kind = numbers.dtype == DType::float32 ? OutputScale::Kind::per_row_float : OutputScale::Kind::per_row_double;
  result.numbers = numbers.data;
  result.row_stride = row_stride_of("out_scale", numbers);
  if (numbers.data == nullptr || common.device.kind != DeviceKind::cpu) return result;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t first = queries.sequences.first_row(b);
    for (int64_t i = 0; i < queries.sequences.size(b); ++i) check_finite("out_scale", result.of_row(first + i));
  }
  return result;
}

OutputScale output_scale_of(const OutScale& out_scale, int64_t batch, const Side& queries, const Common& common,
                            bool is_on_gpu) {
  OutputScale result;
  switch (out_scale.kind) {
    case OutScale::Kind::number:
      check_finite("out_scale", out_scale.number);
      result.number = out_scale.number;
      return result;
    case OutScale::Kind::reciprocal_length_q:
      result.kind = OutputScale::Kind::reciprocal_length_q;
      return result;
    case OutScale::Kind::reciprocal_length_k:
      result.kind = OutputScale::Kind::reciprocal_length_k;
      return result;
    case OutScale::Kind::per_row:
      return row_scale_of(out_scale.per_row, batch, queries, common, is_on_gpu);
    case OutScale::Kind::per_batch:
      break;
  }
  const TensorView& numbers = out_scale.per_batch;
  if (numbers.rank != 1 || size(numbers, 0) != batch) {
    refuse(ErrorKind::value, "out_scale", fmt::format("rank 1 and {} numbers, one for each batch entry", batch),
           fmt::format("rank {} with shape {}", numbers.rank, shape_of(numbers)), "correct the shape");
  }
  check_numbers(numbers, common);
  if (batch > 1 && stride(numbers, 0) != 1) {
    refuse(ErrorKind::value, "out_scale", "stride 1", fmt::format("stride {}", stride(numbers, 0)),
           "make it contiguous");
  }
  result.kind =
      numbers.dtype == DType::float32 ? OutputScale::Kind::per_batch_float : OutputScale::Kind::per_batch_double;
  result.numbers = numbers.data;
  if (numbers.data != nullptr && common.device.kind == DeviceKind::cpu) {
    for (int64_t b = 0; b < batch; ++b) check_finite("out_scale", result.of(b, 0, 0));
  }
  return result;
}

void check_mask(const Mask& mask) {
  for (const int64_t side : {mask.left, mask.right}) {
    if (side < -1) {
      refuse(ErrorKind::value, "window", "sides of 0 or more, or -1 for no bound", fmt::format("{}", side),
             "correct the window");
    }
  }
}

void check_workspace(const Workspace& workspace) {
  const auto remainder = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(workspace.data) % Workspace::alignment);
  if (remainder != 0) {
    refuse(ErrorKind::value, "workspace",
           fmt::format("an address that is a multiple of {} bytes", Workspace::alignment),
           fmt::format("a remainder of {}", remainder), "pass the address that the device's allocator returned");
  }
}

void check_length_fits_gpu(const Side& side) {
  // Backward may have tiles of the rows of keys whose sequences have gaps, as if they were one sequence.
  if (side.has_gaps && side.rows > most_gpu_rows) {
    refuse(ErrorKind::value, side.operand,
           fmt::format("at most {} rows with {} on a GPU", most_gpu_rows, side.offsets_name),
           fmt::format("{}", side.rows), "split the call, or move the tensors to the CPU");
  }
  if (side.sequences.length > most_gpu_rows) {
    refuse(ErrorKind::value, side.operand, fmt::format("at most {} rows in a sequence on a GPU", most_gpu_rows),
           fmt::format("{}", side.sequences.length), "split the sequence, or move the tensors to the CPU");
  }
}

/// Refuses types and head dims that the GPU kernels do not support.
void check_fits_gpu(const Attention& attention) {
  if (attention.query.dtype == DType::float64) {
    refuse(ErrorKind::type, "query", "dtype bfloat16, float16 or float32 on a GPU", "float64",
           "convert it, or move the tensors to the CPU");
  }
  constexpr int64_t step = 8, most = 256;
  for (const auto& [who, view] : {std::pair{"query", &attention.query}, std::pair{"value", &attention.value}}) {
    const int64_t head_dim = size(*view, view->rank - 1);
    if (head_dim % step != 0 || head_dim > most) {
      refuse(ErrorKind::value, who, fmt::format("a head_dim that is a multiple of {} up to {} on a GPU", step, most),
             fmt::format("{}", head_dim), "pad it with zeros, or move the tensors to the CPU");
    }
  }
}

NumberType number_type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return NumberType::float32;
    case DType::float64:
      return NumberType::float64;
    case DType::bfloat16:
      return NumberType::bfloat16;
    case DType::float16:
      return NumberType::float16;
    case DType::int32:
      return NumberType::int32;
    case DType::int64:
      return NumberType::int64;
  }
  return NumberType::float32;
}

template <class Pointer>
BoundTensor bound_tensor_of(const BasicTensorView<Pointer>& view) {
  BoundTensor tensor;
  tensor.data = const_cast<void*>(static_cast<const void*>(view.data));  // inputs are only read
  tensor.type = number_type_of(view.dtype);
  tensor.rank = view.rank;
  std::copy_n(view.sizes.begin(), view.rank, tensor.sizes);
  std::copy_n(view.strides.begin(), view.rank, tensor.strides);
  return tensor;
}

/// Whether the offset of an element in bytes may not fit in 32 bits.
bool needs_wide_offsets(const TensorView& view) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  int64_t extent = 0, elements = 1;  // the gradient has all elements, also where the tensor has strides of 0
  for (int axis = 0; axis < view.rank; ++axis) {
    extent += std::abs(stride(view, axis)) * (size(view, axis) - 1);
    elements *= size(view, axis);
  }
  return extent > most / size_in_bytes(view.dtype) || elements > most;
}

/// Returns whether an index of the function is an element of this tensor as it is, without floor(). The tensor then has
/// an integer type.
bool is_index(const activation::Function& function, std::size_t tensor) {
  const std::vector<activation::Input>& inputs = function.inputs();
  const auto is_rounded = [](activation::Operation operation) {
    return operation == activation::Operation::floor || operation == activation::Operation::floor_divide;
  };
  for (const activation::Input& read : inputs) {
    for (const activation::Program& index : read.indices) {
      for (std::size_t i = 0; i < index.steps.size(); ++i) {
        const activation::Step& step = index.steps[i];
        if (step.operation != activation::Operation::input) continue;
        const activation::Input& input = inputs[static_cast<std::size_t>(step.number)];
        if (input.kind != activation::Input::Kind::read || input.tensor != tensor) continue;
        // A later step may round the number.
        const bool rounds = std::any_of(index.steps.begin() + static_cast<std::ptrdiff_t>(i), index.steps.end(),
                                        [&](const activation::Step& later) { return is_rounded(later.operation); });
        if (!rounds) return true;
      }
    }
  }
  return false;
}

/// Checks a tensor that the function reads without an index.
void check_number(const std::string& who, const TensorView& view, int64_t heads, bool is_on_gpu) {
  if (view.dtype != DType::float32 && (is_on_gpu || view.dtype != DType::float64)) {
    refuse(ErrorKind::type, who, is_on_gpu ? "dtype float32 on a GPU" : "dtype float32 or float64", name(view.dtype),
           "convert it");
  }
  if (view.rank > 1 || (view.rank == 1 && size(view, 0) != heads && size(view, 0) != 1)) {
    refuse(ErrorKind::value, who, fmt::format("shape () or ({}), one number for each query head", heads),
           shape_of(view), "reshape it");
  }
}

/// Checks a tensor that the function reads by index.
void check_read(const std::string& who, const TensorView& view, const activation::Function& function,
                const activation::Input& read, bool is_on_gpu) {
  if (static_cast<std::size_t>(view.rank) != read.indices.size()) {
    refuse(ErrorKind::value, who,
           fmt::format("rank {}, one axis for each index in \"{}\"", read.indices.size(), function.text()),
           fmt::format("rank {} with shape {}", view.rank, shape_of(view)), "reshape it, or correct the indices");
  }
  const auto is_too_long = [&](int64_t n) { return n > std::numeric_limits<int32_t>::max(); };
  if (is_on_gpu && std::any_of(view.sizes.begin(), view.sizes.begin() + view.rank, is_too_long)) {
    refuse(ErrorKind::value, who, "axes of at most 2^31 - 1 elements on a GPU", shape_of(view), "split the tensor");
  }
  if (is_on_gpu && view.dtype == DType::float64) {
    refuse(ErrorKind::type, who, "dtype float32, bfloat16, float16, int32 or int64 on a GPU", name(view.dtype),
           "convert it");
  }
  if (is_floating(view.dtype) && is_index(function, read.tensor)) {
    refuse(ErrorKind::type, who, "dtype int32 or int64, because it is an index", name(view.dtype),
           "convert it, or round it in the expression with floor()");
  }
}

/// Checks the axes of a tensor: each score reads an element. An axis of the rows of an operand without rows may be
/// empty.
void check_axes(const std::string& who, const TensorView& view, const activation::Function& function,
                const activation::Input& read, const Problem& problem) {
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    if (!activation::is_row_axis(read, axis)) {
      if (view.sizes[axis] > 0) continue;
      refuse(ErrorKind::value, who, "at least one element", shape_of(view), "pass a tensor with elements");
    }
    const bool is_query = activation::bare_index(read.indices[axis], function.inputs()) == activation::Index::query;
    const int64_t rows = is_query ? problem.rows_q : problem.rows_k;
    if (view.sizes[axis] >= rows || view.sizes[axis] == 1) continue;
    refuse(ErrorKind::value, who,
           fmt::format("{} elements or more on axis {}, one for each row of {}, because its index is {}", rows, axis,
                       is_query ? "query" : "key", is_query ? "q_row" : "kv_row"),
           fmt::format("{} with shape {}", view.sizes[axis], shape_of(view)),
           fmt::format("pass a number for each row, or index it by the position in the sequence, {}",
                       is_query ? "q_idx" : "kv_idx"));
  }
}

/// Checks that a function which reads rows of the keys has packed keys.
void check_packed_keys(std::string_view who, const activation::Function& function, const Problem& problem) {
  const auto reads_rows = [&](const activation::Input& input) {
    if (input.kind == activation::Input::Kind::index) return input.index == activation::Index::first_row_k;
    for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
      const bool is_key = activation::bare_index(input.indices[axis], function.inputs()) == activation::Index::key;
      if (is_key && activation::is_row_axis(input, axis)) return true;
    }
    return false;
  };
  if (!problem.has_pages() || std::ranges::none_of(function.inputs(), reads_rows)) return;
  refuse(ErrorKind::value, std::string(who), "keys in one tensor for kv_row", "keys in pages (block_table)",
         "index by the position in the sequence, kv_idx, and by the batch entry, batch");
}

void check_heads_of_list(const activation::Function& function, int64_t heads) {
  const auto functions = static_cast<int64_t>(function.functions());
  if (functions > 1 && functions != heads) {
    refuse(ErrorKind::value, "activation", fmt::format("one function, or {}: one for each query head", heads),
           fmt::format("{}", functions), "correct the list");
  }
}

/// The words of a message about the tensors of an expression.
struct Wording {
  std::string_view expression;
  std::string_view tensor;
  std::string_view tensors;
  std::string_view constructor;
};
constexpr Wording of_function{"activation", "parameter", "parameters", "Activation"};
constexpr Wording of_mask{"mask", "mask parameter", "mask_parameters", "MaskExpression"};

/// Checks the tensors of the call that an expression reads, and fills in their addresses.
BoundTensors check_tensors(const Wording& words, const activation::Function& function,
                           const std::vector<Parameter>& parameters, const Common& common, const Problem& problem,
                           bool is_on_gpu) {
  BoundTensors bound;
  uint32_t given = 0;
  const std::vector<std::string>& names = function.parameters();
  const auto listed = [&names] { return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")); };
  if (names.size() > most_parameters) {
    refuse(ErrorKind::value, words.expression, fmt::format("at most {} parameters of the call", most_parameters),
           fmt::format("{}", names.size()), "write numbers for some of them");
  }
  for (const Parameter& parameter : parameters) {
    const std::string who = fmt::format("{} {}", words.tensor, parameter.name);
    const TensorView& view = parameter.value;
    const auto found = std::find(names.begin(), names.end(), parameter.name);
    if (found == names.end()) {
      refuse(ErrorKind::value, who, fmt::format("a parameter of the call ({})", listed()), "another name",
             fmt::format("name it in the {}, or leave it out", words.constructor));
    }
    const auto tensor = static_cast<std::size_t>(found - names.begin());
    for (const activation::Input& input : function.inputs()) {
      if (input.kind == activation::Input::Kind::index || input.tensor != tensor) continue;
      if (input.kind == activation::Input::Kind::number) check_number(who, view, problem.heads_q, is_on_gpu);
      if (input.kind == activation::Input::Kind::read) {
        check_read(who, view, function, input, is_on_gpu);
        check_axes(who, view, function, input, problem);
      }
    }
    check_memory(who, view, common);
    if ((given >> tensor & 1U) != 0) refuse(ErrorKind::value, who, "one tensor", "two", "give it once");
    given |= 1U << tensor;
    bound.tensors[tensor] = bound_tensor_of(view);
  }
  if (parameters.size() != names.size()) {
    refuse(ErrorKind::value, words.tensors, fmt::format("a tensor for each parameter of the call ({})", listed()),
           fmt::format("{}", parameters.size()), "pass the missing tensors");
  }
  check_packed_keys(words.expression, function, problem);
  return bound;
}

/// Returns Problem::tensor_types or Problem::mask_types.
unsigned tensor_types_of(const std::vector<std::string>& names, const std::vector<Parameter>& parameters,
                         const BoundTensors& bound) {
  unsigned types = 0;
  for (const Parameter& parameter : parameters) {
    const auto tensor = std::find(names.begin(), names.end(), parameter.name) - names.begin();
    const unsigned type = static_cast<unsigned>(bound[tensor].type) | (needs_wide_offsets(parameter.value) ? 8U : 0U);
    types |= type << (4 * tensor);
  }
  return types;
}

/// Checks that a mask expression is the only mask, and returns its tensors.
BoundTensors check_mask_expression(const Attention& attention, const Common& common, const Problem& problem,
                                   bool is_on_gpu) {
  if (!attention.mask_expression) {
    if (attention.mask_parameters.empty()) return {};
    refuse(ErrorKind::value, "mask_parameters", "a mask expression that reads them", "none",
           "set mask_expression, or leave them out");
  }
  if (!attention.mask.keeps_all()) {
    refuse(ErrorKind::value, "mask", "a window or an expression", "both",
           "spell the window in the expression: (kv_idx <= q_idx + len_k - len_q) & ...");
  }
  return check_tensors(of_mask, attention.mask_expression->function(), attention.mask_parameters, common, problem,
                       is_on_gpu);
}

/// The operands in one word: "jagged queries and dense keys".
std::string forms_of(const plan::ListedCall& call) {
  const auto form = [](Form of) { return of == Form::jagged ? "jagged" : of == Form::dense ? "dense" : "shared"; };
  return fmt::format("{} queries and {} keys", form(call.query_form), form(call.key_form));
}

/// Checks that the call is one for which the mask was prepared, and returns its lists.
std::shared_ptr<const plan::PreparedTiles> check_prepared_mask(const Attention& attention, const Problem& problem,
                                                               bool needs_data) {
  if (!attention.prepared_mask) return nullptr;
  constexpr std::string_view who = "prepared_mask", remedy = "prepare the mask with the arguments of this call";
  const PreparedMask& mask = *attention.prepared_mask;
  if (!attention.mask_expression) {
    refuse(ErrorKind::value, who, "a mask expression with it", "none", "set mask_expression to the prepared one");
  }
  auto prepared = std::make_shared<plan::PreparedTiles>(plan::PreparedTiles::of_text(mask.tiles));
  const plan::ListedCall& of = prepared->call;
  const plan::ListedCall call = plan::ListedCall::of(problem, attention.mask_expression->function().identity());
  if (of.device != call.device) {
    refuse(ErrorKind::value, who, fmt::format("a mask that is prepared on {}", to_string(call.device)),
           fmt::format("one on {}", to_string(of.device)), remedy);
  }
  if (of.mask != call.mask) {
    refuse(ErrorKind::value, who, "the mask of this call, with the same types of tensors", "another mask", remedy);
  }
  if (of.query_form != call.query_form || of.key_form != call.key_form) {
    refuse(ErrorKind::value, who, fmt::format("a mask for {}", forms_of(call)), fmt::format("one for {}", forms_of(of)),
           remedy);
  }
  const auto check = [&](std::string_view what, int64_t wanted, int64_t given) {
    if (given == wanted) return;
    refuse(ErrorKind::value, who, fmt::format("a mask for {} {}", wanted, what), fmt::format("one for {}", given),
           remedy);
  };
  check("batch entries", call.batch, of.batch);
  check("rows of query", call.rows_q, of.rows_q);
  check("rows of key", call.rows_k, of.rows_k);
  check("query heads", call.heads_q, of.heads_q);
  check("key heads", call.heads_k, of.heads_k);
  if (needs_data && prepared->bytes > 0 && (mask.data == nullptr || mask.bytes < prepared->bytes)) {
    refuse(ErrorKind::value, who, fmt::format("{} bytes of device memory", prepared->bytes),
           mask.data == nullptr ? "a null pointer" : fmt::format("{}", mask.bytes), "keep the memory of prepare_mask");
  }
  prepared->data = mask.data;
  return prepared;
}

/// Whether the mask may differ between the query heads.
bool depends_on_head(const activation::Function& mask, const BoundTensors& tensors) {
  const std::vector<activation::Input>& inputs = mask.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [&](const activation::Input& input) {
    if (input.kind == activation::Input::Kind::index) return input.index == activation::Index::head;
    const BoundTensor& tensor = tensors[input.tensor];
    return input.kind == activation::Input::Kind::number && tensor.rank == 1 && tensor.sizes[0] > 1;
  });
}

/// Checks that the output has the shape of the query.
void check_add_query(const Problem& problem) {
  if (problem.head_dim_v != problem.head_dim) {
    refuse(ErrorKind::value, "add_query", fmt::format("value with the query's head_dim {}", problem.head_dim),
           fmt::format("{}", problem.head_dim_v), "leave it out, and add a projection of the query to the output");
  }
  if (problem.shares_queries()) {
    refuse(ErrorKind::value, "add_query", "queries of each batch entry", "one query for the whole batch",
           "leave it out, and add the query to the output");
  }
  if (problem.has_output_offsets || !problem.zeroes_output) {
    refuse(ErrorKind::value, "add_query", "an output with the rows of the query",
           problem.has_output_offsets ? "output_offsets" : "zeroes_output false",
           "leave it out, and add the query to the output");
  }
  if (problem.out_scale == OutScale::Kind::per_row) {
    refuse(ErrorKind::value, "add_query", "an out_scale without a number for each query", "one with them",
           "leave it out, and add the query to the output");
  }
}

/// Checks that multiply_by_row_scale is possible.
void check_row_scale(const activation::Function& function) {
  const auto is_read = [](const activation::Input& input) { return input.kind == activation::Input::Kind::read; };
  const std::size_t tensor = function.parameters().size();
  const auto reads = static_cast<std::size_t>(std::ranges::count_if(function.inputs(), is_read));
  if (tensor >= most_parameters || reads >= activation::most_reads) {
    refuse(ErrorKind::value, "out_scale",
           fmt::format("one number for each row of the query with a function of at most {} tensors and {} reads",
                       most_parameters - 1, activation::most_reads - 1),
           fmt::format("{} tensors and {} reads", tensor, reads), "multiply the output yourself");
  }
}

/// Makes out_scale with one number for each query the last tensor of the function. Backward needs it for the gradient
/// of the numbers. On a GPU it always needs it: the kernels multiply the sums of dK and dV, to which many queries add,
/// by one factor at the end.
void multiply_by_row_scale(const activation::Function& function, CheckedCall& call) {
  Problem& problem = call.problem;
  Params& params = call.params;
  const std::size_t tensor = function.parameters().size();
  call.function = function.times_row_scale();
  BoundTensor& numbers = params.parameters[tensor];
  const bool is_double = params.out_scale.kind == OutputScale::Kind::per_row_double;
  numbers.data = const_cast<void*>(params.out_scale.numbers);  // only read
  numbers.type = is_double ? NumberType::float64 : NumberType::float32;
  numbers.rank = 1;
  numbers.sizes[0] = problem.rows_q;
  numbers.strides[0] = params.out_scale.row_stride;
  const int64_t extent = problem.rows_q * std::max<int64_t>(1, std::abs(numbers.strides[0]));
  const bool is_wide = extent > std::numeric_limits<int32_t>::max() / static_cast<int64_t>(sizeof(float));
  problem.tensor_types |= (static_cast<unsigned>(numbers.type) | (is_wide ? 8U : 0U)) << (4 * tensor);
  problem.out_scale = OutScale::Kind::number;
  params.out_scale = {};
}

/// `wants_out_scale`: backward computes the gradient of one number for each row of the query.
CheckedCall check_inputs(const Attention& attention, Direction direction, bool needs_data, bool for_gpu,
                         bool wants_out_scale) {
  const TensorView& query = attention.query;
  const TensorView& key = attention.key;
  const TensorView& value = attention.value;
  if (!is_floating(query.dtype)) {
    refuse(ErrorKind::type, "query", "dtype float32, float64, bfloat16 or float16", name(query.dtype), "convert it");
  }
  const Common common{query.dtype, query.device, needs_data};
  check_operand("query", query, common);
  check_operand("key", key, common);
  check_operand("value", value, common);
  const bool is_on_gpu = for_gpu || query.device.kind == DeviceKind::cuda;
  if (is_on_gpu) check_fits_gpu(attention);

  check_same("value", "rank", value.rank, "the key's", key.rank);
  check_same("key", "head_dim", size(key, key.rank - 1), "the query's", size(query, query.rank - 1));
  for (int i = 0; i + 1 < key.rank; ++i) {
    check_same("value", "in every dimension but the last a size of", size(value, i), "the key's", size(key, i));
  }
  const int64_t heads_q = size(query, query.rank - 2);
  const int64_t heads_k = size(key, key.rank - 2);
  if (heads_q % heads_k != 0) {
    refuse(ErrorKind::value, "query", fmt::format("heads in a multiple of the {} heads of key and value", heads_k),
           fmt::format("{}", heads_q), "repeat or drop heads until one divides the other");
  }

  const Side queries = side_of(
      "query", query, {"cu_seqlens_q", attention.cu_seqlens_q, "seq_offsets_q", attention.seq_offsets_q}, common);
  Side keys = attention.block_table
                  ? paged_side_of(attention, common, direction)
                  : side_of("key", key,
                            {"cu_seqlens_k", attention.cu_seqlens_k, "seq_offsets_k", attention.seq_offsets_k}, common);
  if (attention.seqused_k && !attention.block_table) {
    refuse(ErrorKind::value, "seqused_k", "a block_table with it", "none", "pass seq_offsets_k for keys without pages");
  }
  if (is_on_gpu) {
    check_length_fits_gpu(queries);
    check_length_fits_gpu(keys);
  }
  check_offsets(queries, query.device);
  check_offsets(keys, query.device);
  if (queries.has_gaps && query.device.kind == DeviceKind::cpu) check_apart(queries);
  const int64_t batch = map_batch(attention.kv_of, queries, keys, common);
  const Sequences outputs = output_side_of(attention, queries, batch, common);

  const int64_t head_dim = size(query, query.rank - 1);
  const double scale = attention.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  check_finite("scale", scale);
  check_mask(attention.mask);
  check_workspace(attention.workspace);
  if (attention.threads < 0) {
    refuse(ErrorKind::value, "threads", "0 for all processors, or a number of threads",
           fmt::format("{}", attention.threads), "correct the number");
  }

  CheckedCall call;
  call.problem = {.direction = direction,
                  .device = query.device,
                  .dtype = query.dtype,
                  .batch = batch,
                  .query_form = queries.form,
                  .key_form = keys.form,
                  .has_query_gaps = queries.has_gaps,
                  .has_key_gaps = keys.has_gaps,
                  .has_batch_map = attention.kv_of.has_value(),
                  .page_rows = keys.sequences.page_rows,
                  .mapped_entries = attention.kv_of ? keys.batch : 0,
                  .has_output_offsets = attention.output_offsets.has_value(),
                  .zeroes_output = attention.zeroes_output,
                  .heads_q = heads_q,
                  .heads_k = heads_k,
                  .head_dim = head_dim,
                  .head_dim_v = size(value, value.rank - 1),
                  .rows_q = queries.rows,
                  .rows_k = keys.rows,
                  .rows_o = queries.form == Form::shared ? batch * queries.rows : queries.rows,
                  .mask = attention.mask,
                  .out_scale = attention.out_scale.kind,
                  .accuracy = attention.accuracy,
                  .deterministic = attention.deterministic,
                  .threads = attention.threads,
                  .allow_tf32 = attention.allow_tf32,
                  .add_query = attention.add_query};
  if (attention.add_query) check_add_query(call.problem);
  Params& params = call.params;
  params.batch = batch;
  params.heads_q = heads_q;
  params.heads_k = heads_k;
  params.head_dim = head_dim;
  params.head_dim_v = call.problem.head_dim_v;
  params.queries = queries.sequences;
  params.keys = keys.sequences;
  params.outputs = outputs;
  params.query = operand_of(query, queries.form, queries.sequences.length, false);
  params.key = operand_of(key, keys.form, keys.sequences.length, false);
  params.value = operand_of(value, keys.form, keys.sequences.length, false);
  params.scale = scale;
  params.out_scale = output_scale_of(attention.out_scale, batch, queries, common, is_on_gpu);
  params.mask = attention.mask;
  check_heads_of_list(attention.activation.function(), heads_q);
  params.parameters = check_tensors(of_function, attention.activation.function(), attention.parameters, common,
                                    call.problem, is_on_gpu);
  call.problem.tensor_types =
      tensor_types_of(attention.activation.parameters(), attention.parameters, params.parameters);
  params.mask_parameters = check_mask_expression(attention, common, call.problem, is_on_gpu);
  if (attention.mask_expression) {
    call.problem.has_mask_expression = true;
    call.problem.mask_depends_on_head = depends_on_head(attention.mask_expression->function(), params.mask_parameters);
    call.problem.mask_types =
        tensor_types_of(attention.mask_expression->tensors(), attention.mask_parameters, params.mask_parameters);
  }
  call.problem.prepared = check_prepared_mask(attention, call.problem, needs_data);
  if (wants_out_scale && !params.out_scale.is_per_row()) {
    refuse(ErrorKind::value, "gradient of out_scale", "an out_scale with one number for each row of the query",
           "another one", "leave it out");
  }
  if (params.out_scale.is_per_row()) {
    const activation::Function& function = attention.activation.function();
    check_row_scale(function);
    if (direction == Direction::backward && (is_on_gpu || wants_out_scale)) multiply_by_row_scale(function, call);
  }
  return call;
}

/// Checks the shape of the output or of its gradient: the shape of the query with head_dim_v last. For a shared query,
/// it has batch * length rows, or batch and length as two dimensions. With output_offsets, it has any number of rows.
template <class Pointer>
void check_output_shape(std::string_view who, const BasicTensorView<Pointer>& view, const Problem& problem,
                        const Attention& attention) {
  const TensorView& query = attention.query;
  BasicTensorView<Pointer> expected;
  const int64_t length = problem.query_form == Form::dense ? size(query, 1) : size(query, 0);
  const bool is_rank_4 = problem.query_form == Form::dense ||
                         (problem.query_form == Form::shared && view.rank == 4 && !problem.has_output_offsets);
  if (is_rank_4) {
    expected.rank = 4;
    expected.sizes = {problem.batch, length, problem.heads_q, problem.head_dim_v};
  } else {
    expected.rank = 3;
    const int64_t rows = problem.query_form == Form::shared ? problem.batch * length : length;
    expected.sizes = {problem.has_output_offsets ? size(view, 0) : rows, problem.heads_q, problem.head_dim_v, 0};
  }
  if (!is_same_shape(view, expected)) {
    refuse(ErrorKind::value, who, fmt::format("shape {}", shape_of(expected)), shape_of(view),
           "allocate the query's shape with the value's head_dim last");
  }
}

/// Returns the strides of the output or of its gradient, and checks where its rows are.
template <class Pointer>
Operand output_operand_of(CheckedCall& call, const BasicTensorView<Pointer>& view) {
  if (!call.problem.has_output_offsets) {
    return operand_of(view, call.problem.query_form, call.params.queries.length, true);
  }
  call.problem.rows_o = size(view, 0);
  check_output_offsets(call, size(view, 0));
  return operand_of(view, Form::jagged, 0, true);
}

void check_gradient(std::string_view who, const MutableTensorView& view, const TensorView& input,
                    const Common& common) {
  check_operand(who, view, common);
  if (!is_same_shape(view, input)) {
    refuse(ErrorKind::value, who, fmt::format("shape {}, as its input's", shape_of(input)), shape_of(view),
           "allocate the input's shape");
  }
  check_no_overlap(who, view);
}

/// The inputs of a call with their names. An output must not overlap an input, because kernels read inputs after they
/// have written the first results.
class Inputs {
 public:
  explicit Inputs(const Attention& attention) {
    add("query", attention.query);
    add("key", attention.key);
    add("value", attention.value);
    if (attention.cu_seqlens_q) add("cu_seqlens_q", *attention.cu_seqlens_q);
    if (attention.cu_seqlens_k) add("cu_seqlens_k", *attention.cu_seqlens_k);
    if (attention.seq_offsets_q) add("seq_offsets_q", *attention.seq_offsets_q);
    if (attention.seq_offsets_k) add("seq_offsets_k", *attention.seq_offsets_k);
    if (attention.kv_of) add("kv_of", *attention.kv_of);
    if (attention.block_table) add("block_table", *attention.block_table);
    if (attention.seqused_k) add("seqused_k", *attention.seqused_k);
    if (attention.output_offsets) add("output_offsets", *attention.output_offsets);
    if (attention.out_scale.kind == OutScale::Kind::per_batch) add("out_scale", attention.out_scale.per_batch);
    if (attention.out_scale.kind == OutScale::Kind::per_row) add("out_scale", attention.out_scale.per_row);
    for (const Parameter& parameter : attention.parameters) add(parameter.name, parameter.value);
    for (const Parameter& parameter : attention.mask_parameters) add(parameter.name, parameter.value);
  }

  void add(std::string_view who, const TensorView& view) { inputs_[count_++] = {who, Bytes::of(view)}; }

  void check_without(std::string_view who, const Bytes& written) const {
    for (std::size_t i = 0; i < count_; ++i) check_apart(who, written, inputs_[i].who, inputs_[i].bytes);
  }

  static void check_apart(std::string_view who, const Bytes& written, std::string_view other, const Bytes& bytes) {
    if (!overlap(written, bytes)) return;
    refuse(ErrorKind::value, who, "memory of its own", fmt::format("elements that {} has too", other),
           "write into another tensor");
  }

 private:
  std::array<NamedBytes, 11 + 2 * most_parameters> inputs_;
  std::size_t count_ = 0;
};

/// Checks the gradient of a tensor of the function, and adds it to `written`.
void check_grad_tensor(const std::string& who, const TensorView& input, const MutableTensorView& view,
                       const Common& common, const Inputs& inputs, std::vector<NamedBytes>& written) {
  if (!is_floating(input.dtype)) {
    refuse(ErrorKind::type, who, "a parameter of a floating dtype", name(input.dtype), "leave it out");
  }
  const bool is_on_cpu = common.device.kind == DeviceKind::cpu;
  const DType own = is_on_cpu ? DType::float64 : input.dtype;
  if (view.dtype != DType::float32 && view.dtype != own) {
    const std::string or_own = own == DType::float32 ? "" : fmt::format(" or {}", name(own));
    refuse(ErrorKind::type, who, "dtype float32" + or_own, name(view.dtype), "allocate another tensor");
  }
  if (!is_same_shape(view, input)) {
    refuse(ErrorKind::value, who, fmt::format("shape {}, as the parameter's", shape_of(input)), shape_of(view),
           "allocate the parameter's shape");
  }
  check_memory(who, view, common);
  check_no_overlap(who, view);
  const Bytes bytes = Bytes::of(view);
  inputs.check_without(who, bytes);
  for (const NamedBytes& other : written) Inputs::check_apart(who, bytes, other.who, other.bytes);
  written.push_back({"another gradient", bytes});
}

/// Checks the gradients of the tensors of the call, fills in their addresses, and returns them as bits.
uint32_t check_grad_parameters(const Attention& attention, const std::vector<ParameterGradient>& gradients,
                               const Common& common, const Inputs& inputs, std::vector<NamedBytes>& written,
                               Params& params) {
  const std::vector<std::string>& names = attention.activation.parameters();
  uint32_t wanted = 0;
  for (const ParameterGradient& gradient : gradients) {
    const std::string who = fmt::format("gradient of parameter {}", gradient.name);
    const auto found = std::find(names.begin(), names.end(), gradient.name);
    if (found == names.end()) {
      refuse(ErrorKind::value, who, "a parameter of the call", "another name", "leave it out");
    }
    const auto index = static_cast<std::size_t>(found - names.begin());
    if ((wanted >> index & 1U) != 0) refuse(ErrorKind::value, who, "one tensor", "two", "give it once");
    const auto of_name = [&](const Parameter& parameter) { return parameter.name == gradient.name; };
    const TensorView& input = std::find_if(attention.parameters.begin(), attention.parameters.end(), of_name)->value;
    check_grad_tensor(who, input, gradient.value, common, inputs, written);
    wanted |= 1U << index;
    params.grad_parameters[index] = bound_tensor_of(gradient.value);
  }
  return wanted;
}

/// Checks the gradient of one number for each row of the query, and fills in its address.
void check_grad_out_scale(const Attention& attention, const MutableTensorView& gradient, const Common& common,
                          const Inputs& inputs, std::vector<NamedBytes>& written, Params& params) {
  constexpr std::string_view who = "gradient of out_scale";
  check_grad_tensor(std::string(who), attention.out_scale.per_row, gradient, common, inputs, written);
  const std::size_t tensor = attention.activation.parameters().size();
  BoundTensor& bound = params.grad_parameters[tensor];
  bound = params.parameters[tensor];
  bound.data = gradient.data;
  bound.type = number_type_of(gradient.dtype);
  bound.strides[0] = row_stride_of(who, gradient);
}

/// The gradient of out_scale is that of the last tensor of the function (multiply_by_row_scale).
void want(Problem& problem, const Attention& attention, WantedGradients wanted) {
  if (!wanted.any()) {
    refuse(ErrorKind::value, "backward", "at least one gradient that is wanted", "none",
           "pass a tensor for grad_query, grad_key, grad_value, a parameter or out_scale");
  }
  if (std::exchange(wanted.out_scale, false)) wanted.parameters |= 1U << attention.activation.parameters().size();
  problem.wanted = wanted;
}

}  // namespace

CheckedCall check_plan(const Attention& attention, Direction direction, bool for_gpu, const WantedGradients& wanted,
                       bool needs_data) {
  const bool wants_out_scale = direction == Direction::backward && wanted.out_scale;
  CheckedCall call = check_inputs(attention, direction, needs_data, for_gpu, wants_out_scale);
  // The CPU has no lists that a plan for a GPU could read.
  if (for_gpu && call.problem.device.kind == DeviceKind::cpu) call.problem.prepared = nullptr;
  if (direction != Direction::backward) return call;
  want(call.problem, attention, wanted);
  const bool is_on_gpu = for_gpu || call.problem.device.kind == DeviceKind::cuda;
  const DType of_gradient = is_on_gpu ? parameter_gradient_dtype(attention, wanted) : DType::float32;
  for (int i = 0; i < most_parameters; ++i) {
    if ((call.problem.wanted.parameters >> i & 1U) == 0) continue;
    // The gradient has the sizes of its tensor, and is assumed to be contiguous.
    BoundTensor& gradient = call.params.grad_parameters[i];
    gradient = call.params.parameters[i];
    gradient.data = nullptr;
    gradient.type = number_type_of(of_gradient);
    int64_t stride = 1;
    for (int axis = gradient.rank; axis-- > 0; stride *= gradient.sizes[axis]) gradient.strides[axis] = stride;
  }
  return call;
}

CheckedCall check_forward(const Attention& attention, const MutableTensorView& output) {
  CheckedCall call = check_inputs(attention, Direction::forward, true, false, false);
  const Common common{call.problem.dtype, call.problem.device, true};
  check_operand("output", output, common);
  check_output_shape("output", output, call.problem, attention);
  check_no_overlap("output", output);
  Inputs(attention).check_without("output", Bytes::of(output));
  call.params.output = output_operand_of(call, output);
  return call;
}

CheckedCall check_backward(const Attention& attention, const Gradients& gradients) {
  const bool wants_out_scale = is_wanted(gradients.out_scale);
  CheckedCall call = check_inputs(attention, Direction::backward, true, false, wants_out_scale);
  const Problem& problem = call.problem;
  const Common common{problem.dtype, problem.device, true};
  check_operand("grad_output", gradients.output, common);
  check_output_shape("grad_output", gradients.output, problem, attention);

  struct Written {
    std::string_view who;
    const MutableTensorView& gradient;
    const TensorView& input;
    Form form;
    Operand& operand;
  };
  Params& params = call.params;
  const std::array<Written, 3> all = {
      Written{"grad_query", gradients.query, attention.query, problem.query_form, params.grad_query},
      Written{"grad_key", gradients.key, attention.key, problem.key_form, params.grad_key},
      Written{"grad_value", gradients.value, attention.value, problem.key_form, params.grad_value}};
  Inputs inputs(attention);
  inputs.add("grad_output", gradients.output);
  std::array<Bytes, 3> bytes;
  std::vector<NamedBytes> outputs;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Written& written = all[i];
    if (!is_wanted(written.gradient)) continue;
    check_gradient(written.who, written.gradient, written.input, common);
    bytes[i] = Bytes::of(written.gradient);
    inputs.check_without(written.who, bytes[i]);
    for (std::size_t j = 0; j < i; ++j) Inputs::check_apart(written.who, bytes[i], all[j].who, bytes[j]);
    written.operand = operand_of(written.gradient, written.form, 0, false);
    outputs.push_back({written.who, bytes[i]});
  }
  const uint32_t parameters = check_grad_parameters(attention, gradients.parameters, common, inputs, outputs, params);
  if (wants_out_scale) check_grad_out_scale(attention, gradients.out_scale, common, inputs, outputs, params);
  want(call.problem, attention,
       {is_wanted(gradients.query), is_wanted(gradients.key), is_wanted(gradients.value), parameters, wants_out_scale});
  params.grad_output = output_operand_of(call, gradients.output);
  return call;
}

}  // namespace gdpa::api
