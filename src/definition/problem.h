// Problem: what is asked, once the checks have passed. Everything that a plan may depend on and nothing that changes
// when the same shapes come with other data: Params carries the pointers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gdpa/activation.h"
#include "gdpa/attention.h"

namespace gdpa {

/// The form in which one side of the problem comes; see Attention.
enum class Form { jagged, dense, shared };

struct Problem {
  Direction direction = Direction::forward;
  Device device;
  DType dtype = DType::float32;
  int64_t batch = 0;
  Form query_form = Form::jagged;
  Form key_form = Form::jagged;
  int64_t heads_q = 0;
  int64_t heads_k = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  int64_t rows_q = 0;  ///< rows of the query operand: tokens, batch * length, or length where shared
  int64_t rows_k = 0;
  Mask mask;
  OutScale::Kind out_scale = OutScale::Kind::number;
  Accuracy accuracy = Accuracy::fast;
  bool deterministic = false;
  int threads = 0;  ///< asked for: 0 is one for each processor
  bool allow_tf32 = false;
  WantedGradients wanted = {};  ///< backward; forward leaves the default

  /// Whether batch entries have the same rows of a side, so that its gradients are sums over the batch.
  bool shares_queries() const { return query_form == Form::shared && batch != 1; }
  bool shares_keys() const { return key_form == Form::shared && batch != 1; }

  /// One batch entry's lengths, where the host can read them (always on the CPU).
  struct Lengths {
    int64_t q = 0;
    int64_t k = 0;
  };
};

}  // namespace gdpa
