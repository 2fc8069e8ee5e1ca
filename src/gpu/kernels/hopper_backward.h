// The host file of kernels/hopper/backward.cuh: dQ, dK and dV on Hopper, with head dims up to 128.
#pragma once

#include "codegen/gradients.h"
#include "expression/lookup.h"
#include "gpu/kernels/hopper_backward_common.h"
#include "gpu/parameter_sums.h"

namespace gdpa::gpu {

/// The gradients of tensors that backward computes with dQ, dK and dV (kernels/hopper/backward_gradients.cuh).
enum class FusedGradients : std::uint8_t { none, of_numbers, of_scores };

/// The type that evaluates f and f' in a pass of backward.
inline std::string_view activation_of(hopper::Pass pass) {
  constexpr std::string_view names[] = {
      "::ActivationWithDerivative", "::UnguardedActivationWithDerivative",
      "gdpa::hopper::GuardedWhereNeeded<::UnguardedActivationWithDerivative, ::ActivationWithDerivative>"};
  return names[static_cast<int>(pass)];
}

struct HopperBackward : HopperBackwardKernel, FunctionForm {
  bool takes_head_factors = false;      ///< dV and dS have factors of the head (activation::ForwardForm)
  bool takes_constant_factors = false;  ///< dV and dS have constant factors (activation::ForwardForm)
  bool prefetches_bias = false;         ///< the elements of a dense bias are loaded into the L1 cache first
  FusedGradients gradients = FusedGradients::none;
  unsigned wanted_parameters = 0;            ///< of these gradients, bit n: tensor n
  ParameterSum sum = ParameterSum::float64;  ///< of these gradients
  bool own_elements = false;                 ///< each score may have an element of its own in a sum
  hopper::Pass pass = hopper::Pass::only;

  static constexpr KernelNames names = {"hopper", "backward", "backward", "BackwardArguments"};
  auto operator<=>(const HopperBackward&) const = default;

  std::string properties() const {
    return describe_backward(*this, fmt::format("{}{}", exact_or_fast(accuracy), in_description(pass)));
  }

  std::string_view gradients_in_source() const {
    if (is_term(sum)) return "gdpa::hopper::StoredTerms<::StoredTensor>";
    constexpr std::string_view structs[] = {"gdpa::hopper::NoGradients",
                                            "gdpa::hopper::NumberGradients<Activation, Sum>",
                                            "gdpa::hopper::ScoreGradients<::TensorGradients>"};
    return structs[static_cast<int>(gradients)];
  }

  std::string gradients_source(const activation::Function& function) const {
    if (gradients != FusedGradients::of_scores) return {};
    if (is_term(sum)) {
      return activation::stored_terms_source(function, wanted_parameters, element_of_terms(sum));
    }
    return activation::score_gradients_source(function, tensor_types, wanted_parameters, in_source(sum), own_elements);
  }

  SourceParts source(const Expressions& expressions) const {
    const activation::Function& function = expressions.function;
    const bool are_of_numbers = gradients == FusedGradients::of_numbers;
    ConfigText config;
    if (is_term(sum)) config.include("hopper/stored_terms.cuh");
    config.type("Activation", are_of_numbers ? "::ActivationWithGradients" : activation_of(pass));
    if (wanted_parameters != 0) config.type("Sum", in_source(sum));
    config.type("Gradients", gradients_in_source());
    write_inputs(function, config);
    write_backward(*this, pass, expressions, config);
    config.flag("prefetches_bias", prefetches_bias);
    // The second pass rarely runs, and its function leaves no registers for the forms of lookups.
    config.flag("has_lookups", pass != hopper::Pass::second && activation::has_lookup_forms(function, tensor_types));
    const activation::ForwardForm form{.takes_head_factors = takes_head_factors,
                                       .takes_constant_factors = takes_constant_factors,
                                       .wanted_numbers = are_of_numbers ? wanted_parameters : 0};
    return hopper_source(function_source(*this, *this, expressions, form) + gradients_source(function), config);
  }
};

}  // namespace gdpa::gpu
