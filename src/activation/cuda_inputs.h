// Prints the inputs of a function as CUDA C++: a struct with one number for each input that varies in a head, and the
// bias that computes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "activation/function.h"

namespace gdpa::activation {

/// Returns a literal of CUDA C++ for the number rounded to fp32.
std::string literal(double number);

/// Returns the statements of a program of x and the members of `in` and `parameters`, with the exact elementary
/// functions, and the expression of one of its results (cuda.cpp).
std::string exact_statements(const Program& program, const std::vector<Input>& inputs);
std::string exact_result(const Program& program, const std::vector<Input>& inputs, std::size_t result);

/// Whether the function has an input that is not a number of its head, so that Config::Bias is the printed struct Bias.
bool has_inputs_at(const Function& function);

/// Returns the includes of inputs_source().
std::string inputs_header(const Function& function);

/// Returns `using Inputs = gdpa::NoInputs;`, or the structs Inputs and Bias. `tensor_types` is Problem::tensor_types.
std::string inputs_source(const Function& function, unsigned tensor_types);

/// Returns the struct that a kernel for the gradients of tensors uses:
///     struct Gradients {
///       static __device__ Gradients of(const gdpa::Params&, const gdpa::SequencePair&);
///       static constexpr int diagonals;  // the number of reads that depend only on the difference of the positions
///       // Adds the gradients at one score. Those of the diagonal reads are written to `diagonal` instead.
///       __device__ void add(float score, int query, int key, float dp, bool is_valid, float* diagonal);
///       // Adds the gradient of a diagonal read for all scores of a diagonal. Called by whole warps.
///       __device__ void add_diagonal(int read, int query, int key, float term);
///       // Whether the first read with a computed index has a histogram: a sum of the warp for each of its span()
///       // elements. flush() adds one of these sums.
///       static constexpr bool has_histogram;
///       float* histogram;  // null: none
///       __device__ int64_t span() const;
///       __device__ void flush(int element, float term);
///       __device__ void end();  // called by whole warps, after the last score
///     };
/// `wanted` has bit n for tensor n. params.grad_parameters are the sums, of type `sum` (common/parameter_sum.cuh). f is
/// evaluated exactly.
std::string gradients_source(const Function& function, unsigned tensor_types, unsigned wanted, std::string_view sum);

}  // namespace gdpa::activation
