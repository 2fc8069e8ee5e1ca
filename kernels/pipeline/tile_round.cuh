// One round of the tile scheduler: which of the tiles that the lanes of a warp have found enter the queue, and which of
// them load K and V. The host includes this file too, to test it.
#pragma once

#include "gdpa/integers.h"

namespace gdpa::pipeline {

/// A round. Bit n of a mask is the tile of lane n. The tiles are in the order of the lanes.
struct TileRound {
  unsigned lanes;      ///< the tiles of this round, without the tile that is given back
  unsigned with_keys;  ///< the tiles that attend to a key, with the tile that is given back
  unsigned reusing;    ///< of `with_keys`: the tiles that use K and V of the previous tile again
  /// Whether the last tile that was found does not belong to this round, and begins the next one. It only tells whether
  /// the tile before it keeps K and V. Otherwise each round would load them again.
  bool gives_back;
  unsigned next_reuses;  ///< 1 if the next round begins with a tile that uses K and V of the previous tile again, or 0

  GDPA_HOST_DEVICE bool has(int lane) const { return (lanes >> lane & 1) != 0; }
  GDPA_HOST_DEVICE unsigned queued() const { return with_keys & lanes; }
  GDPA_HOST_DEVICE bool loads_keys(int lane) const { return (reusing >> lane & 1) == 0; }
  GDPA_HOST_DEVICE bool keeps_keys(int lane) const {
    const unsigned after = with_keys & ~((2u << lane) - 1);
    return (reusing & after & (0 - after)) != 0;  // the lowest bit of `after`
  }
};

/// The round of the tiles of `count` lanes. `found`: the lanes with a tile. `reusing`: the tiles that attend to the same
/// keys as the tile of a lower lane. `looks_ahead`: whether the round may give a tile back. `first_reuses` is
/// `next_reuses` of the round before.
GDPA_HOST_DEVICE inline TileRound tile_round(unsigned count, unsigned found, unsigned with_keys, unsigned reusing,
                                             bool looks_ahead, unsigned first_reuses) {
  const unsigned last = 1u << (count - 1);
  const bool gives_back = looks_ahead && (found & last) != 0;
  reusing = (reusing | first_reuses) & with_keys;
  return {gives_back ? last - 1 : ~0u, with_keys, reusing, gives_back, gives_back ? reusing >> (count - 1) & 1 : 0};
}

}  // namespace gdpa::pipeline
