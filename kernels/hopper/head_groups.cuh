// The order of key tiles in the table of backward if they wait for dQ semaphores (dq_semaphore.cuh). If sequences are
// short, the key tiles of a head are not adjacent: a CTA would begin one of them at the same time as the CTA that it
// waits for. The key tiles of a group of heads are interleaved instead: first the last key tile of each head, then the
// tile before it. The host includes this file too, to test it.
#pragma once

#include "common/work.cuh"
#include "hopper/arguments.cuh"

namespace gdpa::hopper {

/// Returns the slot of an existing key tile in the table. A group has `heads_per_group` heads of one batch entry, or
/// the heads of several entries if an entry has fewer. With `by_heads`, a group has one head of `heads_per_group` batch
/// entries, and the groups of a head are adjacent: CTAs then read, and add to, the same elements of a tensor that all
/// entries share. `whole_keys` is the limit of is_whole.
template <class Mask, class Layout>
GDPA_HOST_DEVICE int64_t slot_in_head_group(const CommonArguments& arguments, int whole_keys, int64_t heads_per_group,
                                            const Owner<Layout>& owner, const Work& work, bool by_heads) {
  const int64_t heads = by_heads ? 1 : owner.heads;  // of an entry
  const int64_t head = by_heads ? 0 : work.head;
  const int64_t entries = heads < heads_per_group ? heads_per_group / heads : 1;  // of a group
  const int64_t first = work.entry / entries * entries;
  const int64_t end = first + entries < owner.entries ? first + entries : owner.entries;
  const auto one_cta_takes = [&](int64_t keys) {
    return is_whole(Mask::keeps_all(arguments.params), keys, whole_keys);
  };
  const auto tiles_of = [&](int64_t keys) { return (keys + owner.tile - 1) / owner.tile; };
  // If one CTA takes all tiles of an entry, the tiles are in the first row, in ascending order.
  const bool mine_is_whole = one_cta_takes(work.keys.count);
  const int64_t row = mine_is_whole ? 0 : tiles_of(work.keys.count) - 1 - work.tile;
  int64_t before = 0;  // tiles of one head in earlier rows, and of earlier entries in this row
  int64_t mine = 1;    // tiles of one head of this entry in this row
  for (int64_t b = first; b < end; ++b) {
    const int64_t keys = owner.rows_of(b).count;
    const int64_t tiles = tiles_of(keys);
    const int64_t of_row = one_cta_takes(keys) ? tiles : 1;
    const int64_t of_rows_before = clamp(row * of_row, 0, tiles);
    const int64_t here = clamp(tiles - of_rows_before, 0, of_row);
    before += of_rows_before + (b < work.entry ? here : 0);
    if (b == work.entry) mine = here;
  }
  const int64_t most_heads = heads < heads_per_group ? heads : heads_per_group;  // of an entry in a group
  const int64_t first_head = head / most_heads * most_heads;
  const int64_t heads_of_group = first_head + most_heads < heads ? most_heads : heads - first_head;
  const int64_t in_group = before * heads_of_group + (head - first_head) * mine + (mine_is_whole ? work.tile : 0);
  // A group of several entries begins with head 0.
  const int64_t in_earlier_groups = owner.first_slot_of(first) * heads + first_head * tiles_of(work.keys.count);
  return (by_heads ? work.head * owner.slots() : 0) + in_earlier_groups + in_group;
}

}  // namespace gdpa::hopper
