// Input: a number in the expression of a score that does not depend on the score. It is a position, a number of a
// tensor of the call for each head, or an element of a tensor at computed indices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "expression/program.h"

namespace gdpa::activation {

/// The positions that an expression may read: the batch entry, the query head, the positions of the query and of the
/// key in their sequences, and the lengths and first rows of these sequences.
enum class Index : std::uint8_t { batch, head, query, key, length_q, length_k, first_row_q, first_row_k };

/// The texts of the positions, in the order of Index. The language has no name for the first row of a sequence.
constexpr std::array<std::string_view, 8> index_names = {"batch", "head",  "q_idx",           "kv_idx",
                                                         "len_q", "len_k", "(q_row - q_idx)", "(kv_row - kv_idx)"};

/// Returns the position with this name.
std::optional<Index> find_index(std::string_view name);

/// A row of the packed queries or keys: the position in the sequence plus the first row of the sequence.
struct Row {
  std::string_view name;
  Index position;
  Index first;
};
constexpr std::array<Row, 2> rows = {Row{"q_row", Index::query, Index::first_row_q},
                                     Row{"kv_row", Index::key, Index::first_row_k}};

/// Returns the row with this name, or a null pointer.
const Row* find_row(std::string_view name);

/// One input of a function. Operation::input refers to it by its position in Function::inputs(). An index of a read may
/// itself have inputs, which have lower positions.
struct Input {
  enum class Kind : std::uint8_t {
    number,  ///< a tensor of shape () or (heads,), read without an index
    read,    ///< an element of a tensor
    index,   ///< a position
  };
  Kind kind = Kind::number;
  std::size_t tensor = 0;        ///< the position of the tensor in Function::parameters(), unless the kind is index
  Index index = Index::batch;    ///< if the kind is index
  std::vector<Program> indices;  ///< of a read: one program for each axis, without the score
  unsigned row_axes = 0;  ///< bit n: axis n has the rows of the packed operand, and its index is q_row or kv_row.
                          ///< Its program is the position in the sequence.
};

/// The most reads of a function, and the most axes of a tensor that is read. The kernels have a bit for each axis.
constexpr std::size_t most_reads = 8;
constexpr std::size_t most_axes = 4;

/// Returns the position if the program is a position and nothing else.
std::optional<Index> bare_index(const Program& program, const std::vector<Input>& inputs);

/// Returns whether the program or the input, or an input of it, reads the position.
bool reads_index(const Program& program, const std::vector<Input>& inputs, Index index);
bool reads_index(const Input& input, const std::vector<Input>& inputs, Index index);

/// Returns whether an index of the read depends on q_idx or kv_idx and is no position or row, so that few elements may
/// have many scores.
bool has_computed_index(const Input& read, const std::vector<Input>& inputs);

/// Returns whether the element of a read depends on q_idx and kv_idx, and only on their difference.
bool is_diagonal(const Input& read, const std::vector<Input>& inputs);

/// The positions within a head that a number depends on: none, q_idx, kv_idx, only their difference, or both.
enum class Dependence : std::uint8_t { none, query, key, difference, both };

Dependence dependence_of(const Program& program, const std::vector<Input>& inputs);
Dependence dependence_of(const Input& input, const std::vector<Input>& inputs);

/// Returns whether the axis has the rows of the packed operand.
inline bool is_row_axis(const Input& read, std::size_t axis) { return (read.row_axes >> axis & 1U) != 0; }

}  // namespace gdpa::activation
