// Prints the inputs of a function as CUDA C++: a struct with one number for each input that varies in a head, and the
// bias that computes them (inputs_source in inputs_printer.h); and a struct that checks indices.
#pragma once

#include <string>
#include <string_view>

#include "expression/function.h"
#include "expression/lookup.h"

namespace gdpa::activation {

/// Whether the function has an input that is not a number of its head, so that Config::Inputs is the printed struct
/// Inputs.
bool has_inputs_at(const Function& function);

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

}  // namespace gdpa::activation
