// Prints the inputs of a function as CUDA C++: a struct with one number for each input that varies in a head, and the
// bias that computes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "activation/function.h"
#include "definition/bound_tensor.h"

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

/// The number of elements of tensors whose index depends on the key only, or on the difference of the positions only.
/// The rows of a tile share these elements.
int reads_of_lines(const Function& function);

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

/// Returns the position in Function::inputs() of the read whose gradient has sums in shared memory: the first one with
/// a computed index that does not depend only on i - j. `wanted` has bit n for tensor n.
std::optional<std::size_t> read_with_sums(const Function& function, unsigned wanted);

/// The kernel of a struct Gradients.
struct GradientsForm {
  std::string_view sum;                ///< the type of the sums (common/parameter_sum.cuh)
  Accuracy accuracy = Accuracy::fast;  ///< of the derivatives of f
  int sum_threads = 0;  ///< if not 0, so many threads of a CTA have sums of their own for the read of read_with_sums()
};

/// Returns the struct that a kernel for the gradients of tensors uses:
///     struct Gradients {
///       static __device__ Gradients of(const gdpa::Params&, const gdpa::SequencePair&);
///       // Adds the gradients at the scores of two adjacent keys. A read that depends only on i - j has a pass of its
///       // own, which writes the gradients to `diagonal`. Pass 0 also adds the gradients of all other inputs. With
///       // `are_regular`, both scores are valid, and has_pairs_at() holds.
///       static constexpr int diagonals;  // the number of such reads
///       template <bool are_regular>
///       __device__ void add(int pass, const float (&scores)[2], const float (&grad_p)[2], const bool (&is_valid)[2],
///                           int query, int first_key, float (&diagonal)[2]);
///       // Whether at `keys` keys from first_key on, the elements of keys 2 n and 2 n + 1 are adjacent, at multiples
///       of
///       // the two sums, in each read whose indices are positions.
///       __device__ bool has_pairs_at(int first_key, int keys) const;
///       // Adds the gradient of a diagonal read for all scores of a diagonal. Called by whole warps.
///       __device__ void add_diagonal(int read, int query, int key, float term);
///       // The sums of read_with_sums() have one number for each of its elements() elements in a head and batch entry.
///       // flush() adds a sum to the gradient.
///       static constexpr int sum_threads;
///       float* thread_sums;              // with sum_threads: element 0 of the thread (ThreadSums)
///       static constexpr bool has_histogram;
///       float* histogram;                // of the warp; null: none
///       __device__ int64_t elements() const;
///       __device__ void flush(int element, float term);
///       // Adds the numbers in registers to the gradients. Called by whole warps, after the last score.
///       __device__ void end();
///     };
/// params.grad_parameters are the sums.
std::string gradients_source(const Function& function, unsigned tensor_types, unsigned wanted,
                             const GradientsForm& form);

}  // namespace gdpa::activation
