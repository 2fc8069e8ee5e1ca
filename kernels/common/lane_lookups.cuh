// Lookups in backward (expression/lookup.h). The rows of a tile are keys. Backward has no shared memory left, so that
// the numbers of a tile are in the registers of a warp, and scores load the elements of lookups from global memory.
#pragma once

#include "common/lanes.cuh"
#include "common/lookup_forms.cuh"

namespace gdpa {

/// The elements of lookups in global memory.
template <class Inputs>
struct GlobalLookups {
  const Inputs& inputs;

  __device__ __forceinline__ float element(int lookup, int entry) const {
    return inputs.lookup_element(lookup, inputs.lookup_index(lookup, entry));
  }
};

/// The LookupForm of a tile, and the words of its numbers. A tile has 16 keys, which are the rows of an accumulator,
/// and 64 queries. A lane has the words of its two rows and of two columns.
template <class Inputs, bool exists>
class LaneLookups {
 public:
  using Query = typename Inputs::OfQuery;
  using Key = typename Inputs::OfKey;
  static constexpr int columns = 64, columns_of_lane = columns / 32;

  LaneLookups() = default;

  /// Finds the LookupForm. `keys` are the inputs of the rows of the lane, and `query` is the first column of the tile.
  /// By all lanes of the warp.
  __device__ __forceinline__ LaneLookups(const Inputs& inputs, const Key (&keys)[2], int query) {
    const unsigned long long origin = __shfl_sync(0xffffffffu, Differences::origin_of(Inputs::number_of(keys[0])), 0);
    bool have_words = true;
    const auto word_of = [&](auto number, WordRange& range) {
      const int word = Differences::word_of(number, origin);
      have_words &= Differences::has_word(number, origin);
      range.add(word);
      return word;
    };
    WordRange of_rows, of_columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) words_[half] = word_of(Inputs::number_of(keys[half]), of_rows);
#pragma unroll
    for (int i = 0; i < columns_of_lane; ++i) {
      words_of_lane_[i] = word_of(Inputs::number_of(inputs.of_query(query + i * 32 + lane_index())), of_columns);
    }
    if (!__all_sync(0xffffffffu, have_words)) return;
    if constexpr (Differences::has_integers) form_ = LookupForm::close;
    if constexpr (!Inputs::is_monotone) return;
    entries_ = LookupEntries<Inputs>::of(inputs, of_columns.of_warp(), of_rows.of_warp());
    if (!__all_sync(0xffffffffu, entries_.have_one_element(inputs))) return;
    form_ = LookupForm::one;
#pragma unroll
    for (int lookup = 0; lookup < Inputs::lookups; ++lookup) {
      words_[lookup] = __float_as_int(GlobalLookups<Inputs>{inputs}.element(lookup, entries_.first[lookup]));
    }
  }

  __device__ __forceinline__ LookupForm form() const { return form_; }

  /// The first and the last entry of each lookup in the tile. If they are not known, the last one is before the first.
  __device__ __forceinline__ const LookupEntries<Inputs>& entries() const { return entries_; }

  /// The entry of lookup 0 that all scores of the tile read; -1 if they may read several.
  __device__ __forceinline__ int same_entry() const { return form_ == LookupForm::one ? entries_.first[0] : -1; }

  /// Receives the words of this lane's two columns of a group.
  template <LookupForm form>
  __device__ __forceinline__ void enter(int group) {
    if (group == columns / 16) __syncwarp();  // otherwise scores of all groups are computed at once, and spill
    if constexpr (form == LookupForm::close) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int lane = group % 4 * 8 + lane_index() % 4 * 2 + i;
        columns_[i] = __shfl_sync(0xffffffffu, words_of_lane_[group / 4], lane);
      }
    }
  }

  /// The inputs of a score of the group that enter() has received. `score` is the number of its accumulator.
  template <LookupForm form, class OfDifference>
  __device__ __forceinline__ auto at(const Inputs& inputs, int query, int key, int score, const Query& of_query,
                                     const Key& of_key, const OfDifference& of_difference) const {
    if constexpr (form == LookupForm::one) {
      return inputs.at(query, key, of_query, of_key, of_difference, 0, SameLookups{words_});
    } else if constexpr (form == LookupForm::close) {
      return inputs.at(query, key, of_query, of_key, of_difference, apart(score), GlobalLookups<Inputs>{inputs});
    } else {
      return inputs.at(query, key, of_query, of_key, of_difference);
    }
  }

  /// The entry of a score in a lookup.
  template <LookupForm form>
  __device__ __forceinline__ int entry(const Inputs& inputs, int lookup, int score, const Query& of_query,
                                       const Key& of_key) const {
    if constexpr (form == LookupForm::close) {
      return inputs.lookup_entry(lookup, apart(score));
    } else {
      return inputs.lookup_entry(lookup, Differences::of(Inputs::number_of(of_query), Inputs::number_of(of_key)));
    }
  }

 private:
  using Differences = LookupDifferences<Inputs>;
  static_assert(Differences::have_words, "otherwise every tile has LookupForm::any");

  __device__ __forceinline__ int apart(int score) const {
    return Differences::of(columns_[score % 2], words_[score % 4 / 2]);
  }

  LookupForm form_ = LookupForm::any;
  LookupEntries<Inputs> entries_ = {{0}, {-1}};
  int words_[Inputs::lookups > 2 ? Inputs::lookups : 2];  ///< close: of the rows; one: the elements
  int words_of_lane_[columns_of_lane];                ///< of columns
  int columns_[2];                                    ///< close: the words of the current columns
};

template <class Inputs>
class LaneLookups<Inputs, false> {};

}  // namespace gdpa
