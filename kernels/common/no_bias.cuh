// Config::Bias for scores without a bias. A bias adds a number to each score before f, and accumulates the gradient of
// this number. docs/kernels/add-a-bias.md lists the members of a bias.
#pragma once

#include "common/sequence.cuh"

namespace gdpa {

struct NoBias {
  static constexpr bool exists = false;

  GDPA_HOST_DEVICE static NoBias of(const Params&, const SequencePair&) { return {}; }

  /// Returns factor * (score + bias), where `scaled` is factor * score. In a partial tile, the query and the key may be
  /// beyond their sequences.
  GDPA_HOST_DEVICE float add(float scaled, float /*factor*/, int /*query*/, int /*key*/) const { return scaled; }

  /// Adds dS of a valid score to the gradient of the bias. Not called unless `exists`.
  GDPA_HOST_DEVICE void accumulate(float /*ds*/, int /*query*/, int /*key*/) const {}
};

}  // namespace gdpa
