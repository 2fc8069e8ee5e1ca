// Backward: the gradients of tensors that the function reads, in kernels that compute them with dQ, dK and dV. S and dP
// are in registers there, so that no kernel computes them again (parameter_gradients.cuh). A consumer has the terms of
// 64 queries and of its keys in the accumulators of S^T.
#pragma once

#include "common/diagonal_sums.cuh"
#include "common/parameter_sum.cuh"
#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// Config::Gradients of a kernel that computes no gradients of tensors.
struct NoGradients {
  static constexpr bool are_of_numbers = false, are_of_scores = false;

  __device__ __forceinline__ void clear() {}
  template <class TileInputs>
  __device__ __forceinline__ void note(const TileInputs& /*inputs*/) {}
};

/// Query tiles whose terms a thread adds up in fp32. A sum of 4096 terms of one size has a relative error of at most
/// 2.4e-4.
constexpr int tiles_of_a_sum = 4096 / (backward_tile_queries / 2);

/// Whether the sums of a thread end with the query tile at a position in the list of a head.
__device__ __forceinline__ bool ends_sum(int position, int query_tiles) {
  return position + 1 == query_tiles || position % tiles_of_a_sum + 1 == tiles_of_a_sum;
}

/// Config::Gradients of a function that reads only numbers of its head. `Activation` computes the terms dP df/dnumber
/// together with f and dS, because they share most of their steps. Each thread adds up the terms of a head in
/// registers.
template <class Activation, class Sum>
struct NumberGradients {
  static constexpr bool are_of_numbers = true, are_of_scores = false;
  static constexpr int numbers = Activation::numbers;

  float totals[numbers];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& total : totals) total = 0.0f;
  }

  __device__ __forceinline__ void add(const float (&terms)[numbers]) {
#pragma unroll
    for (int k = 0; k < numbers; ++k) totals[k] += terms[k];
  }

  /// Adds the totals of a head to the sums, and clears them. By the warp.
  __device__ __forceinline__ void end(const Params& params, const Activation& function, int head, float out_scale) {
    function.multiply_by_factors(totals);
#pragma unroll
    for (int k = 0; k < numbers; ++k) {
      const int tensor = Activation::tensor_of(k);
      const float total = sum_of_warp(totals[k]) * out_scale;
      const int64_t element = params.grad_parameters[tensor].offset_of_head(head);
      if (lane_index() == 0) sums_of_cta<Sum>(params, tensor)[element].add(total);
    }
    clear();
  }
};

/// Config::Gradients of a function g(s + e), where the terms of the tensors in e are dS. `Tensors_` is the generated
/// struct of src/codegen/gradients.h. A warp has the terms of 16 keys and 64 queries.
template <class Tensors_>
struct ScoreGradients {
  using Tensors = Tensors_;
  using Sum = typename Tensors::Sum;
  using DiagonalElement = decltype(static_cast<Tensors*>(nullptr)->element_of_diagonal(0, 0));
  static constexpr bool are_of_numbers = false, are_of_scores = true;
  static constexpr int keys = 16, queries = backward_tile_queries, terms = queries / 2;
  static constexpr int most_entries = 24;  ///< of a lookup in a tile, that are added up one after the other

  float total;              ///< of this thread, of all scores of the head: for reads without i and j
  float same;               ///< of this thread, in tiles with one element for all diagonals
  DiagonalElement element;  ///< this element

  float of_entry;  ///< of this thread, in tiles whose scores all read one entry of the lookup
  int entry;       ///< this entry
  int same_entry;  ///< the entry that all scores of the latest tile read; -1 if they may read several

  __device__ __forceinline__ void clear() {
    total = same = of_entry = 0.0f;
    element = 0;
    entry = 0;
  }

  /// Called with the inputs of the scores after f has read them.
  template <class TileInputs>
  __device__ __forceinline__ void note([[maybe_unused]] const TileInputs& inputs) {
    if constexpr (Tensors::has_lookup && TileInputs::has_forms) same_entry = inputs.lookups().same_entry();
  }

  /// Adds the terms of a warp, whose first row and column are `key` and `query`. Invalid scores have a term of 0.
  /// inputs() makes the inputs of the scores, which most tiles do not need.
  template <class MakeInputs>
  __device__ __forceinline__ void add(const float (&ds)[terms], MakeInputs inputs, Tensors& tensors, int query,
                                      int key, float factor) {
    if constexpr (Tensors::have_totals) total += sum_of(ds);
    if constexpr (Tensors::diagonals > 0) {
      if (!has_one_element(ds, tensors, query, key, factor)) {
        const DiagonalSums sums(ds);
#pragma unroll
        for (int i = 0; i < DiagonalSums::count; ++i) {
          const int diagonal = DiagonalSums::diagonal_of(i);
          const bool exists = diagonal >= DiagonalSums::first && diagonal <= DiagonalSums::last;
          if (exists) tensors.add_diagonal(query + diagonal, key, sums.sums[i] * factor);
        }
      }
    }
    if constexpr (Tensors::are_spread) add_each(ds, tensors, query, key, factor * Tensors::factor);
    if constexpr (Tensors::has_lookup) {
      if constexpr (decltype(inputs())::has_forms) {
        add_lookup(ds, inputs, tensors, factor);
      } else {
        add_terms(ds, inputs(), tensors, factor);
      }
    }
  }

  /// Adds the sums of the threads for a head, and clears them. By the warp.
  __device__ __forceinline__ void end(Tensors& tensors, float factor) {
    if constexpr (Tensors::have_totals) {
      const float sum = sum_of_warp(total) * factor;
      if (lane_index() == 0) tensors.add_total(sum);
    }
    if constexpr (Tensors::diagonals == 1) end_element(tensors, factor);
    if constexpr (Tensors::has_lookup) end_entry(tensors, factor);
    clear();
  }

 private:
  /// Adds the terms of a warp to the elements of the lookup.
  template <class MakeInputs>
  __device__ __forceinline__ void add_lookup(const float (&ds)[terms], MakeInputs inputs, Tensors& tensors,
                                             float factor) {
    // Votes, because the compiler does not see that these numbers are uniform. A divergent branch would serialise all
    // WGMMA.
    const auto holds = [](bool is_true) { return __any_sync(0xffffffffu, is_true); };
    if (holds(same_entry < 0)) {
      add_entries(ds, inputs(), tensors, factor);
      return;
    }
    if (holds(entry != same_entry)) {
      end_entry(tensors, factor);
      entry = same_entry;
    }
    of_entry += sum_of(ds);
  }

  /// The same for a tile whose scores may read several entries.
  template <class TileInputs>
  __device__ __forceinline__ static void add_entries(const float (&ds)[terms], TileInputs inputs, Tensors& tensors,
                                                     float factor) {
    int entries[terms];
    inputs.visit_entries([&](auto& of_form) {
#pragma unroll
      for (int group = 0; group < terms / 4; ++group) {
        of_form.enter(group);
#pragma unroll
        for (int i = 0; i < 4; ++i) entries[group * 4 + i] = of_form.entry(0, i);
      }
    });
    const int first = inputs.lookups().entries().first[0], last = inputs.lookups().entries().last[0];
    if (__any_sync(0xffffffffu, first <= last && last - first < most_entries)) {
      // An addition in global memory for each score would take longer.
#pragma unroll 1
      for (int entry = first; entry <= last; ++entry) {
        float sums[2] = {};
#pragma unroll
        for (int i = 0; i < terms; ++i) {
          if (entries[i] == entry) sums[i % 2] += ds[i];
        }
        const float sum = sum_of_warp(sums[0] + sums[1]) * factor;
        if (lane_index() == 0) tensors.add_to_lookup(entry, sum);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < terms; ++i) {
      if (ds[i] != 0.0f) tensors.add_to_lookup(entries[i], ds[i] * factor);
    }
  }

  /// The same without LaneLookups.
  template <class TileInputs>
  __device__ __forceinline__ static void add_terms(const float (&ds)[terms], TileInputs of_tile, Tensors& tensors,
                                                   float factor) {
#pragma unroll
    for (int group = 0; group < terms / 4; ++group) {
      of_tile.enter(group);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float term = ds[group * 4 + i];
        if (term != 0.0f) tensors.add_to_lookup(of_tile.entry(0, i), term * factor);
      }
    }
  }

  __device__ __forceinline__ static float sum_of(const float (&ds)[terms]) {
    float sums[2] = {ds[0], ds[1]};
#pragma unroll
    for (int i = 2; i < terms; ++i) sums[i % 2] += ds[i];
    return sums[0] + sums[1];
  }

  __device__ __forceinline__ void end_element(Tensors& tensors, float factor) {
    const float sum = sum_of_warp(same) * factor;
    if (lane_index() == 0) tensors.add_to_element(element, sum);
    same = 0.0f;
  }
  __device__ __forceinline__ void end_entry(Tensors& tensors, float factor) {
    const float sum = sum_of_warp(of_entry) * factor;
    if (lane_index() == 0 && sum != 0.0f) tensors.add_to_lookup(entry, sum);
    of_entry = 0.0f;
  }

  /// Whether all diagonals have the same element, as where an index is clamped. Then adds the terms to the sum of the
  /// thread.
  __device__ __forceinline__ bool has_one_element(const float (&ds)[terms], Tensors& tensors, int query, int key,
                                                  float factor) {
    if constexpr (Tensors::diagonals > 1) return false;
    const auto at = [&](int i) {
      const int diagonal = max(DiagonalSums::first, min(DiagonalSums::last, DiagonalSums::diagonal_of(i)));
      return tensors.element_of_diagonal(query + diagonal, key);
    };
    const DiagonalElement one = __shfl_sync(0xffffffffu, at(0), 0);
    bool is_same = true;
#pragma unroll
    for (int i = 0; i < DiagonalSums::count; ++i) is_same = is_same && at(i) == one;
    if (__ballot_sync(0xffffffffu, is_same) != 0xffffffffu) return false;
    if (element != one) {
      end_element(tensors, factor);
      element = one;
    }
    same += sum_of(ds);
    return true;
  }

  /// Adds each term to its element.
  __device__ __forceinline__ static void add_each(const float (&ds)[terms], const Tensors& tensors, int query, int key,
                                                  float factor) {
    const int row = key + lane_index() / 4, column = query + lane_index() % 4 * 2;
    if (tensors.has_adjacent_keys(key, keys) && tensors.has_queries(query, queries)) {
      Sum* const first = tensors.elements() + (tensors.offset_of_key(row) + tensors.offset_of_query(column));
      const auto stride = tensors.query_stride();
      const auto sum_at = [&](int i) -> Sum& { return first[(i / 4 * 8 + i % 2) * stride + i / 2 % 2 * 8]; };
      if (tensors.has_own_elements()) {
        // No element has another term. A store does not read the sum, which no cache holds.
#pragma unroll
        for (int i = 0; i < terms; ++i) sum_at(i) = Sum::of(ds[i] * factor);
        return;
      }
#pragma unroll
      for (int i = 0; i < terms; ++i) sum_at(i).add(ds[i] * factor);
      return;
    }
#pragma unroll
    for (int i = 0; i < terms; ++i) {
      // An invalid score has a term of 0, and perhaps no element of its own.
      if (ds[i] == 0.0f) continue;
      const auto offset =
          tensors.offset_of_key(row + i / 2 % 2 * 8) + tensors.offset_of_query(column + i / 4 * 8 + i % 2);
      tensors.elements()[offset].add(ds[i] * factor);
    }
  }
};

}  // namespace gdpa::hopper
