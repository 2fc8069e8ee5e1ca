// The gradients of the tensors that f reads: the type and the place of their sums. Kernels of backward, or a kernel of
// their own, add to the sums, and another kernel rounds them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "definition/params.h"
#include "definition/problem.h"
#include "expression/function.h"
#include "gpu/call.h"
#include "gpu/config_text.h"
#include "gpu/launch.h"

namespace gdpa::gpu {

struct GpuPlan;

/// The sums of the gradients of tensors (kernels/common/parameter_sum.cuh), or the terms that backward stores in a
/// gradient (kernels/hopper/stored_terms.cuh).
enum class ParameterSum : std::uint8_t { float32, float64, exact, bfloat16_term, float16_term };

/// Whether backward stores terms in the type of the gradient.
inline bool is_term(ParameterSum sum) {
  return sum == ParameterSum::bfloat16_term || sum == ParameterSum::float16_term;
}

/// The type of the sums in the device code, and the type of the elements in which backward stores terms.
std::string_view in_source(ParameterSum sum);
std::string_view element_of_terms(ParameterSum sum);

/// The members of a kernel for these gradients.
struct ParameterGradientsForm {
  unsigned tensor_types = 0;  ///< of the tensors that f reads, as in Problem
  unsigned wanted = 0;        ///< bit n: tensor n
  ParameterSum sum = ParameterSum::float64;
  Accuracy accuracy = Accuracy::fast;  ///< of the derivatives of f

  auto operator<=>(const ParameterGradientsForm&) const = default;
};

/// Writes Config::Gradients and Config::Sum, and returns the struct Gradients. `threads_with_sums`: so many threads of
/// a CTA have sums of their own (activation::GradientsForm).
void write_parameter_gradients(const ParameterGradientsForm& form, ConfigText& config);
std::string parameter_gradients_source(const ParameterGradientsForm& form, const activation::Function& function,
                                       int threads_with_sums);

/// The bytes of WarpTerms (kernels/common/parameter_terms.cuh), which each warp of such a kernel has in shared memory.
constexpr int warp_terms_bytes(int tile_keys) {
  constexpr int rows = 8, lanes = 32, padding = 8, float_bytes = 4;
  return rows * ((tile_keys + 15 + lanes - 1) / lanes * lanes + padding) * float_bytes;
}

/// The wanted gradients, bit n for tensor n, if all are of numbers of the head and the function reads nothing else. A
/// backward kernel can then compute them with f and f'. Otherwise, or if they need many registers, 0.
unsigned number_gradients(const Problem& problem, const activation::Function& function);

/// The wanted gradients that are sums of dS, which a backward kernel can add up. A dense bias in deterministic mode is
/// not among them: an exact sum has too many instructions for each score.
unsigned score_gradients(const Problem& problem, const activation::Function& function);

/// Whether no two scores of the call read one element of a tensor of score_gradients() by their positions, unless an
/// index is clamped.
bool has_own_elements(const Call& call);

/// The type of the sums of all wanted gradients. `in_backward`: the gradients that a kernel of backward computes.
ParameterSum parameter_sum_of(const Call& call, unsigned in_backward);

struct ParameterSumsPlan {
  ParameterSum sum = ParameterSum::float64;
  unsigned in_backward = 0;  ///< bit n: a kernel of backward computes the gradient of tensor n
  /// The gradients have no sums in the workspace: kernels add to the gradients, which are cleared before, or backward
  /// and complete_terms store all elements (is_term).
  bool adds_to_gradients = false;
  int64_t offset = -1;  ///< of the sums in the workspace, or of the sums at the borders of stored terms
  int64_t bytes = 0;    ///< of one copy of these sums
  int copies = 1;       ///< params.parameter_sums.copies
};

/// Plans the kernels for the wanted gradients that no kernel of backward computes, and the sums of all of them. Adds
/// the launches that clear the sums to `clears`, and the kernels to plan.launches. `in_backward` and `sum` of
/// plan.parameters are set if backward computes some.
void plan_parameter_gradients(const Call& call, GpuPlan& plan, std::vector<Launch>& clears);

/// Sets the sums as the gradients in the arguments of the attention kernels.
void set_parameter_sums(const ParameterSumsPlan& plan, const Problem& problem, std::byte* workspace,
                        CommonArguments& arguments);

/// The number of elements of a tensor.
int64_t elements_of(const BoundTensor& tensor);

}  // namespace gdpa::gpu
