// The description of work in backward: a key tile, the list of the query tiles that attend to it, and the destination
// of dQ of each. The schedule kernel writes it, and the warps of backward read it. The host includes this file too.
#pragma once

#include "hopper/arguments.cuh"

namespace gdpa::hopper {

/// A key tile of one head, and the query tiles that attend to it: `queries` of each query head of its group.
template <class Mask>
struct KeyTile {
  enum : int {
    takes_next = 1,     ///< the CTA of this slot of the table also takes the next slot
    took_previous = 2,  ///< the CTA of this slot has taken the previous slot
    direct = 4          ///< the result of is_direct()
  };
  int steps;  ///< query tiles of all heads; 0: no more key tiles
  int flags;
  typename Mask::Tiles queries;
  typename Mask::Writers writers;
  int b;  ///< the batch entry
  int first_key;
  int length_q;
  int length_k;
  int first_head;  ///< of the group
  int key_head;
  float out_scale;
  MapOrigin query;    ///< of row queries.first_row
  int grad_output_y;  ///< with x of the query
  MapOrigin key;      ///< of the first key
  int value_y;        ///< with x of the key
  int grad_query_y;   ///< with x of the query
  int grad_key_y;     ///< with x of the key
  int grad_value_y;
  int semaphore;     ///< slot of row queries.first_row among the slots of a head (dq_semaphore.cuh)
  int grad_query;    ///< the row queries.first_row of the accumulators; no memory holds 2^31 rows
  int64_t grad_key;  ///< offset of row first_key of key_head in elements, in the gradient or the partial results
  int64_t grad_value;

  GDPA_HOST_DEVICE bool is(int flag) const { return (flags & flag) != 0; }
  GDPA_HOST_DEVICE SequencePair pair(int head) const { return {b, head, length_q, length_k}; }
};

}  // namespace gdpa::hopper
