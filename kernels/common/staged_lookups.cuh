// The elements of lookups in shared memory (expression/lookup.h). A warp copies the elements of its head once for each
// query tile. A score then computes the number of its element with few instructions and loads it from shared memory.
#pragma once

#include "common/lanes.cuh"
#include "common/lookup_forms.cuh"
#include "common/memory.cuh"

namespace gdpa {

/// The elements of lookups in shared memory.
struct SharedLookups {
  const float* elements;

  __device__ __forceinline__ float element(int lookup, int entry) const {
    return elements[lookup * most_lookup_elements + entry];
  }
};

/// The numbers of 16 queries, such as their times. The difference between the number of a query and the number of a key
/// selects the element of a score.
template <class Number>
struct LookupRows {
  Number numbers[16];
  int words[16];              ///< of LookupDifferences
  unsigned long long origin;  ///< of these words
  WordRange range;            ///< of these words; least > greatest if a number has no word
};

/// The type of these numbers.
template <class Inputs, bool has_difference>
struct LookupNumbers {
  using OfQuery = decltype(Inputs::number_of(typename Inputs::OfQuery{}));
};
template <class Inputs>
struct LookupNumbers<Inputs, false> {
  using OfQuery = int;
};

/// The lookups of a warp: their shared memory, and the LookupForm of the current tile. A tile has 16 queries and
/// `columns` keys.
template <class Inputs, int columns, bool exists>
class StagedLookups {
 public:
  using Query = typename Inputs::OfQuery;
  using Key = typename Inputs::OfKey;
  static constexpr int keys_of_lane = (columns + 31) / 32;

  StagedLookups() = default;
  __device__ __forceinline__ explicit StagedLookups(unsigned char* memory) : memory_(memory) {}

  /// Copies the elements of a head, and the numbers of the 16 queries from `query` on. All lanes call this function,
  /// after they have read the lookups of the preceding queries.
  __device__ __forceinline__ void fill(const Inputs& inputs, int query) const {
    __syncwarp();
#pragma unroll
    for (int lookup = 0; lookup < Inputs::lookups; ++lookup) {
      const int entries = inputs.lookup_entries(lookup);
#pragma unroll 1
      for (int entry = lane_index(); entry < entries; entry += 32) {
        elements()[lookup * most_lookup_elements + entry] =
            inputs.lookup_element(lookup, inputs.lookup_index(lookup, entry));
      }
    }
    if constexpr (Inputs::has_difference) fill_rows(Inputs::number_of(inputs.of_query(query + lane_index() % 16)));
    __syncwarp();
  }

  /// Finds the LookupForm of a tile. `keys` are the inputs of the columns lane, lane + 32, and so on. All lanes call
  /// this function, after they have read the columns of the preceding tile.
  __device__ __forceinline__ void enter_tile(const Inputs& inputs, const Key* keys) {
    form_ = LookupForm::any;
    if constexpr (Differences::have_words) find_form(inputs, keys);
  }

  __device__ __forceinline__ LookupForm form() const { return form_; }

  /// Loads the numbers of the rows, if the scores need them. Call it before the scores of a tile.
  template <LookupForm form>
  __device__ __forceinline__ void begin() {
    if constexpr (form == LookupForm::any && Inputs::has_difference) {
#pragma unroll
      for (int half = 0; half < 2; ++half) numbers_of_rows_[half] = rows().numbers[lane_index() / 4 + half * 8];
    }
  }

  /// Loads the words of this lane's two columns of a group.
  template <LookupForm form>
  __device__ __forceinline__ void enter(int group) {
    if constexpr (form == LookupForm::close) {
      const int2 pair = *reinterpret_cast<const int2*>(words_of_columns() + group * 8 + lane_index() % 4 * 2);
      columns_[0] = pair.x;
      columns_[1] = pair.y;
    }
  }

  /// The inputs of a score of the group that enter() has loaded. `score` is the number of its accumulator.
  template <LookupForm form, class OfDifference>
  __device__ __forceinline__ auto at(const Inputs& inputs, int query, int key, int score, const Query& of_query,
                                     const Key& of_key, const OfDifference& of_difference) const {
    [[maybe_unused]] const int half = score % 4 / 2, column = score % 2;
    if constexpr (form == LookupForm::one) {
      return inputs.at(query, key, of_query, of_key, of_difference, 0, SameLookups{words_});
    } else {
      const SharedLookups lookups{elements()};
      if constexpr (form == LookupForm::close) {
        const int apart = Differences::of(words_[half], columns_[column]);
        return inputs.at(query, key, of_query, of_key, of_difference, apart, lookups);
      } else if constexpr (Inputs::has_difference) {
        const auto apart = Differences::of(numbers_of_rows_[half], Inputs::number_of(of_key));
        return inputs.at(query, key, of_query, of_key, of_difference, apart, lookups);
      } else {
        return inputs.at(query, key, of_query, of_key, of_difference, 0, lookups);
      }
    }
  }

 private:
  using Number = typename LookupNumbers<Inputs, Inputs::has_difference>::OfQuery;
  using Rows = LookupRows<Number>;
  using Differences = LookupDifferences<Inputs>;
  static constexpr int columns_at = Inputs::lookups * most_lookup_elements * static_cast<int>(sizeof(float));
  static constexpr int rows_at = columns_at + columns * static_cast<int>(sizeof(int));

 public:
  static constexpr int bytes = rows_at + static_cast<int>(sizeof(Rows));
  static_assert(bytes <= lookup_bytes(Inputs::lookups, columns), "the host plans this memory");

 private:
  __device__ __forceinline__ float* elements() const { return reinterpret_cast<float*>(memory_); }
  __device__ __forceinline__ int* words_of_columns() const { return reinterpret_cast<int*>(memory_ + columns_at); }
  __device__ __forceinline__ Rows& rows() const { return *reinterpret_cast<Rows*>(memory_ + rows_at); }

  /// Stores the number of row lane % 16.
  __device__ __forceinline__ void fill_rows(Number number) const {
    const int row = lane_index() % 16;
    rows().numbers[row] = number;
    if constexpr (!Differences::have_words) return;
    const unsigned long long origin = __shfl_sync(0xffffffffu, Differences::origin_of(number), 0);
    const int word = Differences::word_of(number, origin);
    rows().words[row] = word;
    rows().origin = origin;
    WordRange range;
    range.add(word);
    const bool have_words = __all_sync(0xffffffffu, Differences::has_word(number, origin));
    rows().range = have_words ? range.of_warp() : WordRange{};
  }

  __device__ __forceinline__ void find_form(const Inputs& inputs, const Key* keys) {
    const unsigned long long origin = rows().origin;
    bool have_words = true;
    WordRange range;
#pragma unroll
    for (int i = 0; i < keys_of_lane; ++i) {
      const auto number = Inputs::number_of(keys[i]);
      const int word = Differences::word_of(number, origin), column = i * 32 + lane_index();
      have_words &= Differences::has_word(number, origin);
      range.add(word);
      if (Differences::has_integers && (columns % 32 == 0 || column < columns)) words_of_columns()[column] = word;
    }
    const WordRange of_rows = rows().range;
    if (!__all_sync(0xffffffffu, have_words && of_rows.least <= of_rows.greatest)) return;
    if constexpr (Differences::has_integers) {
      form_ = LookupForm::close;
#pragma unroll
      for (int half = 0; half < 2; ++half) words_[half] = rows().words[lane_index() / 4 + half * 8];
    }
    if constexpr (!Inputs::is_monotone) return;
    const auto entries = LookupEntries<Inputs>::of(inputs, of_rows, range.of_warp());
    if (!__all_sync(0xffffffffu, entries.have_one_element(inputs))) return;
    form_ = LookupForm::one;
#pragma unroll
    for (int lookup = 0; lookup < Inputs::lookups; ++lookup) {
      words_[lookup] = __float_as_int(SharedLookups{elements()}.element(lookup, entries.first[lookup]));
    }
  }

  unsigned char* memory_;
  LookupForm form_;
  int words_[Inputs::lookups > 2 ? Inputs::lookups : 2];  ///< close: of the rows; one: the elements
  int columns_[2];                                    ///< close: the words of the current columns
  Number numbers_of_rows_[2];                         ///< any
};

template <class Inputs, int columns>
class StagedLookups<Inputs, columns, false> {
 public:
  static constexpr int bytes = 0;

  StagedLookups() = default;
  __device__ __forceinline__ explicit StagedLookups(unsigned char*) {}
};

}  // namespace gdpa
