// Config::Bias for a function that reads only the score and numbers of its head. A bias supplies the inputs of the
// function at one position: positions, and elements of tensors. docs/kernels/add-a-bias.md lists the members of a bias.
#pragma once

#include "common/sequence.cuh"

namespace gdpa {

/// The inputs of a function that has none.
struct NoInputs {};

struct NoBias {
  using Inputs = NoInputs;
  static constexpr bool exists = false;

  GDPA_HOST_DEVICE static NoBias of(const Params&, const SequencePair&) { return {}; }

  /// Returns the inputs of the function for one score. In a partial tile, the query and the key may be beyond their
  /// sequences.
  GDPA_HOST_DEVICE Inputs at(int /*query*/, int /*key*/) const { return {}; }
};

}  // namespace gdpa
