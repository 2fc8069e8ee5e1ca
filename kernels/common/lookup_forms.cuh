// The forms in which the scores of a tile find the elements of lookups (expression/lookup.h).
//
// The number of an element often depends on the difference of two elements of other tensors, one of the query and one
// of the key, such as two times. A warp looks at these elements once for each tile, and finds the smallest and the
// largest difference. If all scores have the same element, no score computes a number. If the differences of 64-bit
// integers fit into 32 bits, the scores subtract 32-bit integers. Every form has the same results.
#pragma once

#include "common/index.cuh"

namespace gdpa {

/// How the scores of a tile find their elements.
enum class LookupForm : int {
  any,    ///< each score computes its index in the types of the tensors
  close,  ///< each score computes its index from a difference of 32 bits
  one     ///< all scores have the same element
};

/// One element of each lookup, which all scores of a tile read. The elements are stored as bits.
struct SameLookups {
  const int* elements;

  __device__ __forceinline__ float element(int lookup, int /*entry*/) const { return __int_as_float(elements[lookup]); }
};

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) < __int_as_float(0x7f800000); }

/// Maps finite numbers to integers: if a < b, then ordered_bits(a) < ordered_bits(b).
__device__ __forceinline__ int ordered_bits(float x) {
  const int bits = __float_as_int(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
/// The inverse of ordered_bits().
__device__ __forceinline__ float of_ordered_bits(int bits) {
  return __int_as_float(bits < 0 ? bits ^ 0x7fffffff : bits);
}

/// The numbers of queries and keys as words of 32 bits in the same order, and their differences.
template <class Inputs>
struct LookupDifferences {
  static constexpr bool has_integers = Inputs::has_difference && Inputs::fits_32_bits;
  static constexpr bool has_floats = Inputs::has_difference && !Inputs::are_integers && Inputs::is_monotone;
  static constexpr bool have_words = has_integers || has_floats;

  /// The number that is word 0 of integers, if one of them is `number`.
  template <class Number>
  __device__ __forceinline__ static unsigned long long origin_of(Number number) {
    return has_integers ? bits_of(number) - close : 0;
  }
  template <class Number>
  __device__ __forceinline__ static bool has_word(Number number, unsigned long long origin) {
    if constexpr (has_integers) return bits_of(number) - origin < 2 * close;
    return is_finite(static_cast<float>(number));
  }
  /// Words of integers are the integers minus the origin. Their differences are below 2^30.
  template <class Number>
  __device__ __forceinline__ static int word_of(Number number, unsigned long long origin) {
    if constexpr (has_integers) return static_cast<int>(bits_of(number) - origin);
    return ordered_bits(static_cast<float>(number));
  }

  /// The difference of the numbers of two words.
  __device__ __forceinline__ static auto of_words(int a, int b) {
    if constexpr (has_integers) {
      return a - b;
    } else {
      return of_ordered_bits(a) - of_ordered_bits(b);
    }
  }

  /// The difference from which the index of an element is computed.
  template <class A, class B>
  __device__ __forceinline__ static auto of(A of_query, B of_key) {
    if constexpr (Inputs::is_absolute) {
      return index::absolute_difference(of_query, of_key);
    } else if constexpr (Inputs::is_query_first) {
      return of_query - of_key;
    } else {
      return of_key - of_query;
    }
  }

 private:
  static constexpr unsigned long long close = 1ull << 29;

  template <class Number>
  __device__ __forceinline__ static unsigned long long bits_of(Number number) {
    return static_cast<unsigned long long>(static_cast<long long>(number));
  }
};

/// The least and the greatest of the words of a warp.
struct WordRange {
  int least = 0x7fffffff, greatest = -0x7fffffff;

  __device__ __forceinline__ void add(int word) {
    least = min(least, word);
    greatest = max(greatest, word);
  }
  __device__ __forceinline__ WordRange of_warp() const {
    return {__reduce_min_sync(0xffffffffu, least), __reduce_max_sync(0xffffffffu, greatest)};
  }
};

/// The first and the last entry of each lookup that the scores of a tile can have.
template <class Inputs>
struct LookupEntries {
  int first[Inputs::lookups], last[Inputs::lookups];

  /// The words of the queries and of the keys are in these ranges.
  __device__ __forceinline__ static LookupEntries of(const Inputs& inputs, const WordRange& queries,
                                                     const WordRange& keys) {
    const auto least = LookupDifferences<Inputs>::of_words(queries.least, keys.greatest);
    const auto greatest = LookupDifferences<Inputs>::of_words(queries.greatest, keys.least);
    using Difference = decltype(least + greatest);
    Difference low = least, high = greatest;
    if constexpr (Inputs::is_absolute) {
      low = index::maximum(index::maximum(least, -greatest), Difference{0});
      high = index::maximum(-least, greatest);
    } else if constexpr (!Inputs::is_query_first) {
      low = -greatest;
      high = -least;
    }
    LookupEntries entries;
#pragma unroll
    for (int lookup = 0; lookup < Inputs::lookups; ++lookup) {
      const int of_low = inputs.lookup_entry(lookup, low), of_high = inputs.lookup_entry(lookup, high);
      entries.first[lookup] = min(of_low, of_high);
      entries.last[lookup] = max(of_low, of_high);
    }
    return entries;
  }

  /// Whether all scores have the same element.
  __device__ __forceinline__ bool have_one_element(const Inputs& inputs) const {
    bool have_one = true;
#pragma unroll
    for (int lookup = 0; lookup < Inputs::lookups; ++lookup) {
      have_one &= inputs.lookup_index(lookup, first[lookup]) == inputs.lookup_index(lookup, last[lookup]);
    }
    return have_one;
  }
};

}  // namespace gdpa
