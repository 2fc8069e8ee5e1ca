// Prints the inputs of a function as CUDA C++: a struct with one number for each input that varies in a head, and the
// bias that computes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "definition/bound_tensor.h"
#include "expression/function.h"

namespace gdpa::activation {

/// Returns a literal of CUDA C++ for the number rounded to fp32.
std::string literal(double number);

/// Returns a literal of CUDA C++: an integer of the smallest type where the number is one, otherwise fp32.
std::string index_literal(double number);

/// Returns the struct of common/index.cuh that reads the elements of a tensor.
std::string_view reader_of(NumberType type);

/// Returns the type of offsets in tensor `tensor`: they have 64 bits only where the tensor needs them. `tensor_types`
/// is Problem::tensor_types or Problem::mask_types.
std::string_view offset_type(unsigned tensor_types, std::size_t tensor);

/// Returns the statements of a program of x and the members of `in` and `parameters`, and the expression of one of its
/// results (cuda.cpp).
std::string printed_statements(const Program& program, const std::vector<Input>& inputs, Accuracy accuracy);
std::string printed_result(const Program& program, const std::vector<Input>& inputs, std::size_t result);

/// Whether the function has an input that is not a number of its head, so that Config::Bias is the printed struct Bias.
bool has_inputs_at(const Function& function);

/// Returns the includes of inputs_source().
std::string inputs_header(const Function& function);

/// The elements that the rows of a tile share.
inline int reads_of_lines(const Function& function) { return function.facts().reads_of_lines(); }

/// Returns the position in Function::inputs() of the read whose elements for a tile of scores a kernel may copy to
/// shared memory (kernels/common/staged_tile.cuh): the first one of a floating type with an axis for i and an axis for
/// j, whose other indices depend on neither.
std::optional<std::size_t> tile_read(const Function& function, unsigned tensor_types);

struct Lookup;

/// Returns the body of a function: it returns the index of the element that the entry `entry` of a lookup has.
std::string lookup_index_source(const Function& function, const Lookup& lookup);

/// The text of the inputs of a mask.
struct ConditionInputs {
  /// The statements that compute the inputs that depend on one position, and the variables that other statements read.
  struct Section {
    std::string statements;
    std::string members;  ///< the declarations of the variables in a struct
    std::string names;    ///< the variables, as initializers of the struct
    std::string copies;   ///< a format of statements that declare the variables from a struct with a given name
  };
  std::string members;
  std::string constructor;  ///< statements; the arguments are `params` and `pair_`
  Section of_query;         ///< the argument is `query`
  Section of_key;           ///< the argument is `key`
  std::string of_both;      ///< statements; the arguments are both, and the variables of the sections
};
ConditionInputs condition_inputs(const Function& mask, unsigned tensor_types);

/// The expression whose inputs are printed. A mask uses all of its inputs as an index does: with their own types.
enum class Expression { function, mask };

/// Returns a struct that finds indices outside of their axes, for the debug kernel check_indices:
///     struct NAME {
///       static constexpr bool exist;  // whether there are indices
///       // Whether an index at a score is outside of its axis. `prints`: prints the first such index.
///       __device__ bool are_wrong(int query, int key, bool prints) const;
///     };
std::string index_check_source(std::string_view name, const Function& function, unsigned tensor_types,
                               Expression expression);

/// Returns `using Inputs = gdpa::NoInputs;`, or the structs Inputs and Bias. `tensor_types` is Problem::tensor_types.
std::string inputs_source(const Function& function, unsigned tensor_types);

}  // namespace gdpa::activation
