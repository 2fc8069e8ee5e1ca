// Config::Mask for a condition (gdpa/mask_expression.h). Every tile is a partial tile: the lists have all tiles of the
// other side, and the condition is evaluated for each score.
#pragma once

#include "common/window_mask.cuh"

namespace gdpa {

/// The mask of one batch entry and query head. Condition is the struct that src/activation/cuda_inputs.cpp prints.
template <class Condition>
struct ExpressionMask {
  using Tiles = ContiguousTiles;
  using Writers = ContiguousWriters;

  /// The valid scores of one query or of one key.
  struct ValidScores {
    Condition condition;
    int row = 0;
    int origin = 0;  ///< the position of index 0
    int length = 0;  ///< of the other side; 0 if the row is beyond its sequence
    bool is_query = true;

    __device__ __forceinline__ bool holds(int index) const {
      const int other = origin + index;
      if (other < 0 || other >= length) return false;
      return is_query ? condition.holds(row, other) : condition.holds(other, row);
    }
    __device__ __forceinline__ ValidScores from(int origin_) const {
      ValidScores result = *this;
      result.origin = origin_;
      return result;
    }
  };

  WindowMask all;  ///< without bounds
  Condition condition;

  __device__ __forceinline__ static ExpressionMask of(const Params& params, const SequencePair& pair) {
    return {WindowMask::of(params, pair), Condition(params, pair)};
  }

  /// Whether all tiles are in the lists.
  GDPA_HOST_DEVICE static bool keeps_all(const Params&) { return true; }

  __device__ Tiles key_tiles(int query, int queries, int tile_keys) const {
    return partial(all.key_tiles(query, queries, tile_keys));
  }
  __device__ Tiles query_tiles(int key, int keys, int tile_queries) const {
    return partial(all.query_tiles(key, keys, tile_queries));
  }
  __device__ Writers writers_of(const Tiles& tiles, int key, int keys, int tile_queries) const {
    return all.writers_of(tiles, key, keys, tile_queries);
  }

  __device__ __forceinline__ ValidScores row(int query) const {
    return {condition, query, 0, query < all.length_q ? all.length_k : 0, true};
  }
  __device__ __forceinline__ ValidScores column(int key) const {
    return {condition, key, 0, key < all.length_k ? all.length_q : 0, false};
  }

 private:
  __device__ static Tiles partial(Tiles tiles) {
    tiles.full = {0, 0};
    return tiles;
  }
};

}  // namespace gdpa
