// The elements of lookups in shared memory (activation/lookup.h). A warp copies the elements of its head once for each
// query tile. A score then computes the number of its element with few instructions and loads it from shared memory.
//
// The number often depends on the difference of two elements of other tensors, one of the query and one of the key,
// such as two times. The warp looks at these elements once for each key tile, and finds the smallest and the largest
// difference. If all scores have the same element, no score computes a number. If the differences of 64-bit integers
// fit into 32 bits, the scores subtract 32-bit integers. Every form has the same results.
#pragma once

#include "common/index.cuh"
#include "common/lanes.cuh"
#include "common/memory.cuh"

namespace gdpa {

/// How the scores of a tile find their elements.
enum class LookupForm : int {
  any,    ///< each score computes its index in the types of the tensors
  close,  ///< each score computes its index from a difference of 32 bits
  one     ///< all scores have the same element
};

/// The elements of lookups in shared memory.
struct SharedLookups {
  const float* elements;

  __device__ __forceinline__ float element(int lookup, int entry) const {
    return elements[lookup * most_lookup_elements + entry];
  }
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
/// The number whose ordered_bits() are `bits`.
__device__ __forceinline__ float of_ordered_bits(int bits) {
  return __int_as_float(bits < 0 ? bits ^ 0x7fffffff : bits);
}

/// The numbers of 16 queries, such as their times. The difference between the number of a query and the number of a key
/// selects the element of a score.
template <class Number>
struct LookupRows {
  Number numbers[16];
  int close[16];              ///< for integers: `numbers` minus `origin`
  unsigned long long origin;  ///< for integers
  /// The range of `close`, or of the ordered bits of floating numbers. If least > greatest, the integers are too far
  /// apart, or a number is not finite.
  int least, greatest;
};

/// The type of these numbers.
template <class Bias, bool has_difference>
struct LookupNumbers {
  using OfQuery = decltype(Bias::number_of(typename Bias::OfQuery{}));
};
template <class Bias>
struct LookupNumbers<Bias, false> {
  using OfQuery = int;
};

/// The lookups of a warp: their shared memory, and the LookupForm of the current tile. A tile has 16 queries and
/// `columns` keys.
template <class Bias, int columns, bool exists>
class StagedLookups {
 public:
  using Query = typename Bias::OfQuery;
  using Key = typename Bias::OfKey;
  static constexpr int keys_of_lane = (columns + 31) / 32;

  StagedLookups() = default;
  __device__ __forceinline__ explicit StagedLookups(unsigned char* memory) : memory_(memory) {}

  /// Copies the elements of a head, and the numbers of the 16 queries from `query` on. All lanes call this function,
  /// after they have read the lookups of the preceding queries.
  __device__ __forceinline__ void fill(const Bias& bias, int query) const {
    __syncwarp();
#pragma unroll
    for (int lookup = 0; lookup < Bias::lookups; ++lookup) {
      const int entries = bias.lookup_entries(lookup);
#pragma unroll 1
      for (int entry = lane_index(); entry < entries; entry += 32) {
        elements()[lookup * most_lookup_elements + entry] =
            bias.lookup_element(lookup, bias.lookup_index(lookup, entry));
      }
    }
    if constexpr (Bias::has_difference) fill_rows(Bias::number_of(bias.of_query(query + lane_index() % 16)));
    __syncwarp();
  }

  /// Finds the LookupForm of a tile. `keys` are the inputs of the columns lane, lane + 32, and so on. All lanes call
  /// this function, after they have read the columns of the preceding tile.
  __device__ __forceinline__ void enter_tile(const Bias& bias, const Key* keys) {
    form_ = LookupForm::any;
    if constexpr (has_integers) {
      enter_tile_of_integers(bias, keys);
    } else if constexpr (has_floats) {
      enter_tile_of_floats(bias, keys);
    }
  }

  __device__ __forceinline__ LookupForm form() const { return form_; }

  /// Loads the numbers of the rows, if the scores need them. Call it before the scores of a tile.
  template <LookupForm form>
  __device__ __forceinline__ void begin() {
    if constexpr (form == LookupForm::any && Bias::has_difference) {
#pragma unroll
      for (int half = 0; half < 2; ++half) numbers_of_rows_[half] = rows().numbers[lane_index() / 4 + half * 8];
    }
  }

  /// Loads the numbers of two adjacent columns.
  template <LookupForm form>
  __device__ __forceinline__ void enter(int column) {
    if constexpr (form == LookupForm::close) {
      const int2 pair = *reinterpret_cast<const int2*>(numbers_of_columns() + column);
      columns_[0] = pair.x;
      columns_[1] = pair.y;
    }
  }

  /// The inputs of a score. `half` selects one of the two rows of the thread, and `column` one of the two columns that
  /// enter() loaded.
  template <LookupForm form, class OfDifference>
  __device__ __forceinline__ auto at(const Bias& bias, int query, int key, int half, int column, const Query& of_query,
                                     const Key& of_key, const OfDifference& of_difference) const {
    if constexpr (form == LookupForm::one) {
      return bias.at(query, key, of_query, of_key, of_difference, 0, SameLookups{words_});
    } else {
      const SharedLookups lookups{elements()};
      if constexpr (form == LookupForm::close) {
        const int apart = difference(words_[half], columns_[column]);
        return bias.at(query, key, of_query, of_key, of_difference, apart, lookups);
      } else if constexpr (Bias::has_difference) {
        const auto apart = difference(numbers_of_rows_[half], Bias::number_of(of_key));
        return bias.at(query, key, of_query, of_key, of_difference, apart, lookups);
      } else {
        return bias.at(query, key, of_query, of_key, of_difference, 0, lookups);
      }
    }
  }

 private:
  using Number = typename LookupNumbers<Bias, Bias::has_difference>::OfQuery;
  using Rows = LookupRows<Number>;
  static constexpr int columns_at = Bias::lookups * most_lookup_elements * static_cast<int>(sizeof(float));
  static constexpr int rows_at = columns_at + columns * static_cast<int>(sizeof(int));
  static constexpr bool has_integers = Bias::has_difference && Bias::fits_32_bits;
  static constexpr bool has_floats = Bias::has_difference && !Bias::are_integers && Bias::is_monotone;
  /// Integers are close if they are less than twice this number after the origin. Their differences are below 2^30.
  static constexpr unsigned long long close = 1ull << 29;

 public:
  static constexpr int bytes = rows_at + static_cast<int>(sizeof(Rows));
  static_assert(bytes <= lookup_bytes(Bias::lookups, columns), "the host plans this memory");

 private:
  __device__ __forceinline__ float* elements() const { return reinterpret_cast<float*>(memory_); }
  __device__ __forceinline__ int* numbers_of_columns() const { return reinterpret_cast<int*>(memory_ + columns_at); }
  __device__ __forceinline__ Rows& rows() const { return *reinterpret_cast<Rows*>(memory_ + rows_at); }

  template <class A, class B>
  __device__ __forceinline__ static auto difference(A of_query, B of_key) {
    if constexpr (Bias::is_absolute) {
      return index::absolute_difference(of_query, of_key);
    } else if constexpr (Bias::is_query_first) {
      return of_query - of_key;
    } else {
      return of_key - of_query;
    }
  }

  template <class Integer>
  __device__ __forceinline__ static unsigned long long bits_of(Integer number) {
    return static_cast<unsigned long long>(static_cast<long long>(number));
  }

  /// Stores the number of row lane % 16.
  __device__ __forceinline__ void fill_rows(Number number) const {
    const int row = lane_index() % 16;
    rows().numbers[row] = number;
    int word = 0;
    bool is_usable = false;
    if constexpr (has_integers) {
      const unsigned long long origin = __shfl_sync(0xffffffffu, bits_of(number), 0) - close;
      is_usable = bits_of(number) - origin < 2 * close;
      word = static_cast<int>(bits_of(number) - origin);
      rows().close[row] = word;
      rows().origin = origin;
    } else if constexpr (has_floats) {
      is_usable = is_finite(static_cast<float>(number));
      word = ordered_bits(static_cast<float>(number));
    }
    const int least = __reduce_min_sync(0xffffffffu, word), greatest = __reduce_max_sync(0xffffffffu, word);
    const bool are_usable = __all_sync(0xffffffffu, is_usable);
    rows().least = are_usable ? least : 1;
    rows().greatest = are_usable ? greatest : 0;
  }

  __device__ __forceinline__ void enter_tile_of_integers(const Bias& bias, const Key* keys) {
    const unsigned long long origin = rows().origin;
    bool are_close = true;
    int least = 0x7fffffff, greatest = 0;
#pragma unroll
    for (int i = 0; i < keys_of_lane; ++i) {
      const unsigned long long counted = bits_of(Bias::number_of(keys[i])) - origin;
      are_close &= counted < 2 * close;
      const int number = static_cast<int>(counted), column = i * 32 + lane_index();
      if (columns % 32 == 0 || column < columns) numbers_of_columns()[column] = number;
      least = min(least, number);
      greatest = max(greatest, number);
    }
    const int least_of_rows = rows().least, greatest_of_rows = rows().greatest;
    if (!__all_sync(0xffffffffu, are_close && least_of_rows <= greatest_of_rows)) return;
    form_ = LookupForm::close;
#pragma unroll
    for (int half = 0; half < 2; ++half) words_[half] = rows().close[lane_index() / 4 + half * 8];
    if constexpr (!Bias::is_monotone) return;
    look_for_one(bias, least_of_rows - __reduce_max_sync(0xffffffffu, greatest),
                 greatest_of_rows - __reduce_min_sync(0xffffffffu, least));
  }

  __device__ __forceinline__ void enter_tile_of_floats(const Bias& bias, const Key* keys) {
    bool are_finite = true;
    int least = 0x7fffffff, greatest = -0x7fffffff;
#pragma unroll
    for (int i = 0; i < keys_of_lane; ++i) {
      const auto number = static_cast<float>(Bias::number_of(keys[i]));
      are_finite &= is_finite(number);
      least = min(least, ordered_bits(number));
      greatest = max(greatest, ordered_bits(number));
    }
    const int least_of_rows = rows().least, greatest_of_rows = rows().greatest;
    if (!__all_sync(0xffffffffu, are_finite && least_of_rows <= greatest_of_rows)) return;
    look_for_one(bias, of_ordered_bits(least_of_rows) - of_ordered_bits(__reduce_max_sync(0xffffffffu, greatest)),
                 of_ordered_bits(greatest_of_rows) - of_ordered_bits(__reduce_min_sync(0xffffffffu, least)));
  }

  /// Tests whether all scores have the same element. The numbers of the queries minus the numbers of the keys are from
  /// `least` to `greatest`.
  template <class Difference>
  __device__ __forceinline__ void look_for_one(const Bias& bias, Difference least, Difference greatest) {
    Difference low = least, high = greatest;
    if constexpr (Bias::is_absolute) {
      low = index::maximum(index::maximum(least, -greatest), Difference{0});
      high = index::maximum(-least, greatest);
    } else if constexpr (!Bias::is_query_first) {
      low = -greatest;
      high = -least;
    }
    bool is_one = true;
    int entries[Bias::lookups];
#pragma unroll
    for (int lookup = 0; lookup < Bias::lookups; ++lookup) {
      entries[lookup] = bias.lookup_entry(lookup, low);
      const int last = bias.lookup_entry(lookup, high);
      is_one &= bias.lookup_index(lookup, entries[lookup]) == bias.lookup_index(lookup, last);
    }
    if (!__all_sync(0xffffffffu, is_one)) return;
    form_ = LookupForm::one;
#pragma unroll
    for (int lookup = 0; lookup < Bias::lookups; ++lookup) {
      words_[lookup] = __float_as_int(SharedLookups{elements()}.element(lookup, entries[lookup]));
    }
  }

  unsigned char* memory_;
  LookupForm form_;
  int words_[Bias::lookups > 2 ? Bias::lookups : 2];  ///< close: the numbers of the rows; one: the elements
  int columns_[2];                                    ///< close: the numbers of the current columns
  Number numbers_of_rows_[2];                         ///< any
};

template <class Bias, int columns>
class StagedLookups<Bias, columns, false> {
 public:
  static constexpr int bytes = 0;

  StagedLookups() = default;
  __device__ __forceinline__ explicit StagedLookups(unsigned char*) {}
};

}  // namespace gdpa
