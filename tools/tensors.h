// The tensors of the command line: --tensor NAME=VALUE binds a value to a name in the expressions of a score and a
// mask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gdpa/tensor.h"

namespace gdpa::tool {

struct Problem;

/// The value of a tensor: its shape, and its numbers or their generator.
struct NamedTensor {
  enum class Numbers : std::uint8_t {
    given,   ///< `data` has the numbers
    normal,  ///< N(0, 1)
    times,   ///< whole seconds with random gaps
  };

  std::string name;
  DType dtype = DType::float32;
  std::vector<int64_t> sizes;
  Numbers numbers = Numbers::given;
  std::vector<std::byte> data = {};  ///< in C order
  bool wants_gradient = false;

  bool is_floating() const { return dtype != DType::int32 && dtype != DType::int64; }
};

/// The options --tensor, which are texts NAME=VALUE, and --tensor-gradients.
struct TensorOptions {
  std::vector<std::string> values;
  std::string gradients = "all";
};

/// Returns the tensors whose names occur in the expression. A VALUE is a number, a .npy file, or a generator with a
/// shape, such as randn:4,4096 or times:tokens_q. `problem` has the lengths, heads and dtype. float64 numbers become
/// float32 unless the dtype is float64. Throws UsageError for another text.
std::vector<NamedTensor> parse_tensors(const TensorOptions& options, const std::string& expression,
                                       const Problem& problem);

/// Whether a name is a word of an expression.
bool occurs(const std::string& name, const std::string& expression);

/// Throws UsageError for a tensor whose name occurs in none of the expressions.
void refuse_unused_tensors(const TensorOptions& options, const std::vector<std::string>& expressions);

}  // namespace gdpa::tool
