// ScoreDefinition: the function at one score of a call, with its derivatives, by the definition in fp64. References and
// tests use it. It is not optimised for speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gdpa/activation.h"
#include "gdpa/export.h"

namespace gdpa {

/// The place of a score in its call: the positions that an expression may read, by their names.
struct ScorePlace {
  int64_t batch = 0;   ///< batch entry
  int64_t head = 0;    ///< query head
  int64_t q_idx = 0;   ///< position of the query in its sequence
  int64_t kv_idx = 0;  ///< position of the key in its sequence
  int64_t len_q = 0;
  int64_t len_k = 0;
  int64_t q_row = 0;   ///< row of the query in the packed operand
  int64_t kv_row = 0;  ///< row of the key in the packed operand
};

/// A number that the function reads from a tensor of the call for one score.
struct TensorRead {
  std::size_t parameter = 0;     ///< the tensor Activation::parameters()[parameter]
  std::vector<int64_t> indices;  ///< the index of each axis, before it is clamped into the axis; none if the function
                                 ///< reads the number of the query head
};

/// The value of the function at one score, and its derivatives with respect to the score and to each number that it has
/// read, in the order of the reads. A number that is only an index has the derivative 0.
struct ScoreDerivatives {
  double value = 0;
  double by_score = 0;
  std::vector<double> by_read;
};

/// The function of an Activation at the scores of calls with `heads` query heads. Several threads may share an object.
///
///     gdpa::ScoreDefinition score(gdpa::Activation("silu(s + slope[head] * (q_idx - kv_idx))", {}, {"slope"}), heads);
///     const gdpa::ScoreDerivatives at = score.evaluate(
///         {.head = 1, .q_idx = 7, .kv_idx = 2}, 0.5,
///         [&](const gdpa::TensorRead& read) { return slopes[read.indices[0]]; });
class GDPA_API ScoreDefinition {
 public:
  /// Throws Error (value) if the activation is a list with another number of functions.
  ScoreDefinition(const Activation& activation, int64_t heads);

  /// Calls `read` for each number of a tensor.
  ScoreDerivatives evaluate(const ScorePlace& place, double score,
                            const std::function<double(const TensorRead&)>& read) const;

 private:
  struct OfHead;
  std::shared_ptr<const std::vector<OfHead>> heads_;
};

}  // namespace gdpa
