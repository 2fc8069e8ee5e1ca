// Config::Inputs for a function that reads only the score and numbers of its head. The struct supplies the inputs of
// the function at one position: positions, and elements of tensors. docs/kernels/add-a-bias.md lists its members.
#pragma once

#include "common/sequence.cuh"

namespace gdpa {

/// The values of the inputs of a function that has none.
struct NoValues {};

struct NoInputs {
  using Values = NoValues;
  struct OfQuery {};
  struct OfKey {};
  struct OfDifference {};
  /// Whether a kernel has registers for the valid scores of a tile while it loads the inputs of the tile.
  static constexpr bool leaves_registers = true;
  /// Whether OfKey, or OfDifference, has elements of tensors.
  static constexpr bool reads_keys = false, reads_differences = false;

  GDPA_HOST_DEVICE static NoInputs of(const Params&, const SequencePair&) { return {}; }

  /// The parts of the inputs that depend only on the query, only on the key, or only on the difference of their
  /// positions. In a partial tile, the query and the key may be beyond their sequences.
  GDPA_HOST_DEVICE OfQuery of_query(int /*query*/) const { return {}; }
  GDPA_HOST_DEVICE OfKey of_key(int /*key*/) const { return {}; }
  GDPA_HOST_DEVICE OfDifference of_difference(int /*query*/, int /*key*/) const { return {}; }

  /// Called after the scores of every 8 columns of a tile. A struct with inputs has a barrier of the warp in it:
  /// otherwise the compiler loads the inputs of all scores early, and registers do not suffice.
  GDPA_HOST_DEVICE void end_group(int /*group*/) const {}

  /// Returns the values of the inputs for one score, from the parts.
  GDPA_HOST_DEVICE Values at(int /*query*/, int /*key*/, const OfQuery&, const OfKey&, const OfDifference&) const {
    return {};
  }
};

}  // namespace gdpa
