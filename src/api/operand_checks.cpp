// The checks of one operand: its rank, dtype, device, memory and strides; and of query, key and value together.
#include <cmath>
#include <utility>

#include "api/check_parts.h"
#include "api/message.h"

namespace gdpa::api {
namespace {

void check_same(std::string_view who, std::string_view what, int64_t came, std::string_view of, int64_t expected) {
  if (came != expected) refuse(who, fmt::format("{} {}, as {}", what, expected, of), came, "make the two agree");
}

}  // namespace

void check_memory(std::string_view who, const TensorView& view, const Common& common) {
  for (int i = 0; i < view.rank; ++i) {
    if (size(view, i) < 0) refuse(who, "sizes of 0 or more", shape_of(view), "correct the shape");
  }
  if (view.device != common.device) {
    refuse_type(who, fmt::format("device {}, {}", to_string(common.device), common.whose), to_string(view.device),
                "move all tensors to one device");
  }
  if (common.needs_data && view.data == nullptr && has_elements(view)) {
    refuse(who, "a pointer to its elements", "null", "pass the address of the first element");
  }
}

void check_last_stride(std::string_view who, const TensorView& view) {
  if (size(view, view.rank - 1) > 1 && stride(view, view.rank - 1) != 1) {
    refuse(who, "a last dimension of stride 1", fmt::format("stride {}", stride(view, view.rank - 1)),
           "make it contiguous in the last dimension, e.g. by .contiguous()");
  }
}

void check_operand(std::string_view who, const TensorView& view, const Common& common) {
  if (view.rank != 3 && view.rank != 4) {
    refuse(who, "rank 3, (tokens, heads, head_dim), or rank 4, (batch, length, heads, head_dim)", rank_and_shape(view),
           "reshape it");
  }
  if (view.dtype != common.dtype) {
    refuse_type(who, fmt::format("dtype {}, as the query's", name(common.dtype)), name(view.dtype),
                "convert all operands to one dtype");
  }
  check_memory(who, view, common);
  if (size(view, view.rank - 2) < 1 || size(view, view.rank - 1) < 1) {
    refuse(who, "at least one head and a head_dim of 1 or more", shape_of(view), "correct the shape");
  }
  check_last_stride(who, view);
}

void check_no_overlap(std::string_view who, const TensorView& view) {
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
      refuse(who, "strides that give each element an address of its own",
             fmt::format("stride {} in dimension {} of shape {}", stride(view, outer), outer, shape_of(view)),
             "write into a tensor of its own, or a view that does not repeat or overlap rows");
    }
  }
}

void check_fits_gpu(const TensorView& query, const TensorView& value) {
  if (!is_operand_of_gpu(query.dtype)) {
    refuse_type("query", "dtype bfloat16, float16 or float32 on a GPU", name(query.dtype),
                "convert it, or move the tensors to the CPU");
  }
  constexpr int64_t step = 8, most = 256;
  for (const auto& [who, view] : {std::pair{"query", &query}, std::pair{"value", &value}}) {
    const int64_t head_dim = size(*view, view->rank - 1);
    if (head_dim % step != 0 || head_dim > most) {
      refuse(who, fmt::format("a head_dim that is a multiple of {} up to {} on a GPU", step, most), head_dim,
             "pad it with zeros, or move the tensors to the CPU");
    }
  }
}

void check_shapes(const TensorView& query, const TensorView& key, const TensorView& value) {
  check_same("value", "rank", value.rank, "the key's", key.rank);
  check_same("key", "head_dim", size(key, key.rank - 1), "the query's", size(query, query.rank - 1));
  for (int i = 0; i + 1 < key.rank; ++i) {
    check_same("value", "in every dimension but the last a size of", size(value, i), "the key's", size(key, i));
  }
  const int64_t heads_q = size(query, query.rank - 2), heads_k = size(key, key.rank - 2);
  if (heads_q % heads_k != 0) {
    refuse("query", fmt::format("heads in a multiple of the {} heads of key and value", heads_k), heads_q,
           "repeat or drop heads until one divides the other");
  }
}

void check_finite(std::string_view who, double number) {
  if (!std::isfinite(number)) refuse(who, "a finite number", fmt::format("{}", number), "pass a finite number");
}

Operand operand_of(const TensorView& view, int64_t batch_stride) {
  Operand operand;
  operand.data = const_cast<void*>(view.data);  // inputs are only read
  operand.row_stride = stride(view, view.rank - 3);
  operand.head_stride = stride(view, view.rank - 2);
  operand.batch_stride = view.rank == 4 ? stride(view, 0) : batch_stride;
  return operand;
}

}  // namespace gdpa::api
