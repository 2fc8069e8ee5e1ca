// Prints the gradients of the tensors that a function reads as CUDA C++.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "expression/function.h"

namespace gdpa::activation {

/// Returns the position in Function::inputs() of the read whose gradient has sums in shared memory. It is the first
/// read of a wanted tensor with a computed index that depends on i and j not only through i - j. `wanted` has bit n for
/// tensor n.
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
///       // Whether the elements of two adjacent keys, from first_key to first_key + keys - 1, are adjacent and begin
///       // at a multiple of two sums. The condition is for each read whose indices are positions.
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

/// Returns the tensors whose gradients backward can compute as sums of dS: bit n for tensor n. The function is g(s +
/// e), and e is a sum of elements of these tensors with constant factors. Each read of such a tensor is of one kind:
///   - its indices depend on neither i nor j (one sum for each head and batch entry)
///   - its indices depend on i and j only through i - j (one sum for each diagonal)
///   - its indices are positions, i and j among them. With `takes_spread`, one such read is allowed
///   - it is a lookup, and the only one of lookups_with_ranges() (expression/lookup.h)
unsigned tensors_of_score(const Function& function, unsigned tensor_types, bool takes_spread);

/// Returns the struct with which backward adds dS to the sums of `wanted`, which are some of tensors_of_score():
///     struct TensorGradients {
///       using Sum = ...;
///       TensorGradients(const gdpa::Params&, const gdpa::SequencePair&);
///       // Reads without i and j: adds the sum of dS over scores of the head and batch entry.
///       static constexpr bool have_totals;
///       __device__ void add_total(float term);
///       // Reads by i - j: adds the sum over scores of a diagonal. An element of the only such read, else nothing.
///       static constexpr int diagonals;
///       __device__ Element element_of_diagonal(int query, int key) const;
///       __device__ void add_to_element(Element element, float term);
///       __device__ void add_diagonal(int query, int key, float term);
///       // A lookup, at most one (expression/lookup.h): adds to the sum of the element of an entry.
///       static constexpr bool has_lookup;
///       __device__ void add_to_lookup(int entry, float term);
///       // The read, at most one, whose indices are positions: the sum of a score is elements + offset_of_query() +
///       // offset_of_key(), and its term is factor * dS.
///       static constexpr bool are_spread;
///       __device__ Sum* elements() const;
///       __device__ Offset offset_of_query(int query) const;
///       __device__ Offset offset_of_key(int key) const;
///       // Whether keys from `key` on are within their axis, and have adjacent elements.
///       __device__ bool has_adjacent_keys(int key, int count) const;
///       // Whether queries from `query` on are within their axis, and the distance of their elements.
///       __device__ bool has_queries(int query, int count) const;
///       __device__ Offset query_stride() const;
///       static constexpr float factor;
///       // Whether each score of the sequences has an element of its own. Always false unless `own_elements`.
///       __device__ bool has_own_elements() const;
///     };
std::string score_gradients_source(const Function& function, unsigned tensor_types, unsigned wanted,
                                   std::string_view sum, bool own_elements);

/// Returns the struct with which backward stores dS in the gradient of the tensor `wanted`, for scores that share their
/// element with no other score. The tensor is one of tensors_of_score(), and its read is_read_by_all_positions().
///     struct StoredTensor {
///       using Element = ...;            // of the gradient
///       static constexpr int tensor;    // its number
///       static constexpr float factor;  // the term of an element is factor * dS
///     };
std::string stored_terms_source(const Function& function, unsigned wanted, std::string_view element);

/// Whether the only indices of the read are the batch entry, the head, and the positions of the query and the key.
bool is_read_by_all_positions(const Input& read, const std::vector<Input>& inputs);

}  // namespace gdpa::activation
