// See hopper_backward.h.
#include "gpu/kernels/hopper_backward.h"

#include <fmt/format.h>

#include "codegen/gradients.h"
#include "expression/lookup.h"

namespace gdpa::gpu {
namespace {

std::string_view gradients_in_source(const HopperBackward& kernel) {
  switch (kernel.gradients) {
    case FusedGradients::none:
      return "gdpa::hopper::NoGradients";
    case FusedGradients::of_numbers:
      return "gdpa::hopper::NumberGradients<Activation, Sum>";
    case FusedGradients::of_scores:
      return is_term(kernel.sum) ? "gdpa::hopper::StoredTerms<::StoredTensor>"
                                 : "gdpa::hopper::ScoreGradients<::TensorGradients>";
  }
  return {};
}

std::string gradients_source_of(const HopperBackward& kernel, const activation::Function& function) {
  if (kernel.gradients != FusedGradients::of_scores) return {};
  if (is_term(kernel.sum)) {
    return activation::stored_terms_source(function, kernel.wanted_parameters, element_of_terms(kernel.sum));
  }
  return activation::score_gradients_source(function, kernel.tensor_types, kernel.wanted_parameters,
                                            in_source(kernel.sum), kernel.own_elements);
}

}  // namespace

std::string_view activation_of(hopper::Pass pass) {
  switch (pass) {
    case hopper::Pass::only:
      return "::ActivationWithDerivative";
    case hopper::Pass::first:
      return "::UnguardedActivationWithDerivative";
    case hopper::Pass::second:
      return "gdpa::hopper::GuardedWhereNeeded<::UnguardedActivationWithDerivative, ::ActivationWithDerivative>";
  }
  return {};
}

std::string HopperBackward::properties() const {
  return describe_backward(*this, fmt::format("{}{}", exact_or_fast(accuracy), in_description(pass)));
}

SourceParts HopperBackward::source(const Expressions& expressions) const {
  const activation::Function& function = expressions.function;
  const bool are_of_numbers = gradients == FusedGradients::of_numbers;
  ConfigText config;
  if (is_term(sum)) config.include("hopper/stored_terms.cuh");
  config.type("Activation", are_of_numbers ? "::ActivationWithGradients" : activation_of(pass));
  if (wanted_parameters != 0) config.type("Sum", in_source(sum));
  config.type("Gradients", gradients_in_source(*this));
  write_inputs(&function, config);
  write_backward(*this, pass, expressions, config);
  config.flag("prefetches_bias", prefetches_bias);
  // The second pass rarely runs, and its function leaves no registers for the forms of lookups.
  config.flag("has_lookups", pass != hopper::Pass::second && activation::has_lookup_forms(function, tensor_types));
  const activation::ForwardForm form{.takes_head_factors = takes_head_factors,
                                     .takes_constant_factors = takes_constant_factors,
                                     .wanted_numbers = are_of_numbers ? wanted_parameters : 0};
  return hopper_source(function_source(*this, *this, expressions, form) + gradients_source_of(*this, function), config);
}

}  // namespace gdpa::gpu
