// CheckedCall: a call after the checks. Problem: the properties of a checked call that its plan depends on, such as
// shapes and types. Params has the pointers and numbers, which differ between calls with the same plan.
#pragma once

#include <cstdint>
#include <memory>

#include "definition/params.h"
#include "gdpa/activation.h"
#include "gdpa/attention.h"

namespace gdpa {

namespace plan {
struct PreparedTiles;
}

/// The form of one side of the problem; see Attention.
enum class Form { jagged, dense, shared };

struct Problem {
  Direction direction = Direction::forward;
  Device device;
  DType dtype = DType::float32;
  int64_t batch = 0;
  Form query_form = Form::jagged;
  Form key_form = Form::jagged;
  bool has_query_gaps = false;  ///< jagged queries have a begin and an end instead of cumulative lengths
  bool has_key_gaps = false;
  bool has_batch_map = false;  ///< several batch entries may have the same keys
  int64_t page_rows = 0;       ///< keys and values are in pages of so many rows; rows_k counts the rows of the table
  int64_t mapped_entries = 0;  ///< with a batch map: the entries of the keys
  bool has_output_offsets = false;  ///< the output has rows of its own
  bool zeroes_output = true;        ///< rows of the output that belong to no batch entry become 0
  int64_t heads_q = 0;
  int64_t heads_k = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  int64_t rows_q = 0;  ///< rows of the query operand: tokens, batch * length, or the length of a shared query
  int64_t rows_k = 0;
  int64_t rows_o = 0;  ///< rows of the output, over all batch entries
  Mask mask;           ///< keeps all scores if the mask is an expression
  bool has_mask_expression = false;
  bool mask_depends_on_head = false;                         ///< the mask expression
  std::shared_ptr<const plan::PreparedTiles> prepared = {};  ///< the tile lists of a prepared mask
  OutScale::Kind out_scale = OutScale::Kind::number;
  Accuracy accuracy = Accuracy::fast;
  bool deterministic = false;
  int threads = 0;  ///< CPU: the largest number of threads. 0 means one for each processor
  bool allow_tf32 = false;
  bool add_query = false;  ///< O = out_scale * P V + Q
  /// The NumberType of tensor i of the call in the three bits from 4 i on. Bit 4 i + 3: offsets need 64 bits.
  unsigned tensor_types = 0;
  unsigned mask_types = 0;      ///< the same for the tensors of a mask expression
  WantedGradients wanted = {};  ///< backward: the gradients to compute. Forward ignores it

  /// Whether every query attends to every key.
  bool keeps_all_scores() const { return mask.keeps_all() && !has_mask_expression; }

  bool has_pages() const { return page_rows > 0; }

  /// The entries of keys that are not shared.
  int64_t key_entries() const { return has_batch_map ? mapped_entries : batch; }

  /// Whether all batch entries read the same queries (keys), so that their gradient is a sum over the batch.
  bool shares_queries() const { return query_form == Form::shared && batch != 1; }
  bool shares_keys() const { return key_form == Form::shared && batch != 1; }
};

struct CheckedCall {
  Problem problem;
  Params params;
  /// The function that the backend computes in place of the call's; null: the call's.
  std::shared_ptr<const activation::Function> function = nullptr;
};

}  // namespace gdpa
