// MaskExpression: the keys that a query attends to, as a condition in the language of Activation.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gdpa/export.h"
#include "gdpa/score.h"

namespace gdpa {

/// A condition in the positions batch, head, q_idx, kv_idx, q_row, kv_row, len_q, len_k and in elements of tensors of
/// the call. P and dS are 0 where it does not hold. It has the language of Activation (docs/functions.md) without the
/// score s. As in Python, `&`, `|` and `~` combine conditions, and comparisons next to them need parentheses.
///
///     gdpa::MaskExpression causal("kv_idx <= q_idx + len_k - len_q");
///     gdpa::MaskExpression prefix("kv_idx < lengths[batch]", {}, {"lengths"});
///     gdpa::MaskExpression local("(kv_idx <= q_idx) & (q_idx - kv_idx < n)", {{"n", 128}});
///
/// `constants` has the number of each name that is no tensor, and `tensors` names the tensors
/// (Attention::mask_parameters). gdpa parses each distinct text once. A MaskExpression is cheap to copy, and several
/// threads may share it.
///
/// On the CPU, conditions are computed in fp64, and an int64 element beyond 2^53 is rounded. On a GPU, whole numbers
/// are integers and other numbers are fp32.
///
/// Throws Error (value) for a text with an error, which the message marks with a caret, for a text that is a number or
/// that reads s, and for a name that is unknown, given twice or without a number.
class GDPA_API MaskExpression {
 public:
  explicit MaskExpression(std::string_view text, const std::map<std::string, double>& constants = {},
                          const std::vector<std::string>& tensors = {});

  /// The names of the tensors, in the order of the constructor.
  const std::vector<std::string>& tensors() const;

  /// The canonical text with all constants, which identifies the condition.
  const std::string& text() const;

  /// Whether the mask keeps a score, by the definition. Calls `read` for each number of a tensor. For references and
  /// tests, like ScoreDefinition.
  bool keeps(const ScorePlace& place, const std::function<double(const TensorRead&)>& read = {}) const;

  const activation::Function& function() const { return *function_; }

 private:
  std::shared_ptr<const activation::Function> function_;
};

}  // namespace gdpa
