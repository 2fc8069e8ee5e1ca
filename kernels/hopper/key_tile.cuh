// The description of work in backward: a key tile, the list of the query tiles that attend to it, and the destination
// of dQ of each. The schedule kernel writes it, and the warps of backward read it. The host includes this file too.
#pragma once

#include "common/sequence.cuh"
#include "hopper/arguments.cuh"

namespace gdpa::hopper {

/// The query tiles of one batch entry that attend to a key tile: `queries` of each query head of the group.
template <class Mask>
struct QuerySegment {
  int steps;  ///< query tiles of all heads; 0: no more key tiles
  int b;      ///< the batch entry
  typename Mask::Tiles queries;
  typename Mask::Writers writers;
  int length_q;
  float out_scale;
  MapOrigin query;    ///< of row queries.first_row
  int grad_output_y;  ///< with x of the query
  int grad_query_y;   ///< with x of the query
  int semaphore;      ///< slot of row queries.first_row among the slots of a head (dq_semaphore.cuh)
  int grad_query;     ///< the row queries.first_row of the accumulators; no memory holds 2^31 rows
};

/// A key tile of one head, and the query tiles of one batch entry that attend to it. With a batch map, a key tile has
/// the query tiles of several entries. It then occurs in the queue once for each of these, one after the other.
template <class Mask>
struct KeyTile : QuerySegment<Mask> {
  enum : int {
    takes_next = 1,     ///< the CTA of this slot of the table also takes the next slot
    took_previous = 2,  ///< the CTA of this slot has taken the previous slot
    whole = 4,          ///< the result of is_whole()
    // With a batch map:
    follows = 8,     ///< the previous item of the queue has the same key tile
    continues = 16,  ///< the next item of the queue has the same key tile
    // With dQ semaphores: the lowest bit of the destinations, of which each has four bits.
    destinations = 32
  };
  int flags;
  int first_key;
  int length_k;
  int first_head;  ///< of the group
  int key_head;
  MapOrigin key;   ///< of the first key
  int value_y;     ///< with x of the key
  int grad_key_y;  ///< with x of the key
  int grad_value_y;
  int64_t grad_key;  ///< offset of row first_key of key_head in elements, in the gradient or the partial results
  int64_t grad_value;

  GDPA_HOST_DEVICE bool is(int flag) const { return (flags & flag) != 0; }

  /// With dQ semaphores: the destination of dQ of a query tile for which this key tile is, or is not, the first and the
  /// last writer. The destinations are a table, because code that computes them from flags makes consumers spill
  /// registers.
  GDPA_HOST_DEVICE GradQuery destination(bool is_first, bool is_last) const {
    return static_cast<GradQuery>((flags / destinations) >> ((is_first ? 4 : 0) + (is_last ? 8 : 0)) & 15);
  }
  GDPA_HOST_DEVICE void set_destinations(GradQuery of_first, GradQuery of_last, GradQuery of_only,
                                         GradQuery of_others) {
    flags |= destinations * (static_cast<int>(of_others) | static_cast<int>(of_first) << 4 |
                             static_cast<int>(of_last) << 8 | static_cast<int>(of_only) << 12);
  }

  GDPA_HOST_DEVICE SequencePair pair(const Params& params, int head) const {
    const int64_t first_row_q = first_row_at(params.queries, this->query, this->length_q, this->b);
    const int64_t first_row_k = first_row_at(params.keys, key, length_k, this->b);
    return {this->b, head, this->length_q, length_k, first_row_q, first_row_k};
  }
};

/// The descriptions of key tiles. With a batch map, the members of QuerySegment are in the second table: `b` is the
/// first segment there, and `steps` the number of segments.
template <class Config>
GDPA_HOST_DEVICE KeyTile<typename Config::Mask>* key_tile_table(const BackwardArguments& arguments) {
  return static_cast<KeyTile<typename Config::Mask>*>(arguments.key_tiles);
}

/// With a batch map: the query tiles of a batch entry for each class of key tiles. Segment `class * entries + place` is
/// of the entry at this place in KeySequences::entries, or of the entry at the next place with query tiles.
template <class Config>
GDPA_HOST_DEVICE QuerySegment<typename Config::Mask>* segment_table(const BackwardArguments& arguments) {
  return static_cast<QuerySegment<typename Config::Mask>*>(arguments.segments);
}

}  // namespace gdpa::hopper
