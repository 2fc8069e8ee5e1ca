// The schedule of backward: a small kernel finds, for each place of work.cuh, the tile of keys and the tiles of queries
// that meet it, and writes what the warps of backward ask of it into a table; keys that meet no query have gradients of
// zero, which it writes itself. A warp of each CTA of backward takes places from the table, in order, as others end;
// another one keeps the turns of their dQ (turns.cuh).
//
// The dealer of forward finds its tiles itself. Here it has 24 registers, since two warpgroups take all others.
#pragma once

#include "common/sequence.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/grad_query_sums.cuh"
#include "hopper/key_gradients.cuh"
#include "hopper/ring.cuh"
#include "hopper/rows.cuh"
#include "hopper/schedule.cuh"
#include "hopper/turns.cuh"
#include "hopper/windows.cuh"

namespace gdpa::hopper {

/// One whose dQ is not through yet, one that is worked on, one that waits: a CTA that took more could end long after
/// the others.
using KeyRing = Ring<KeyTile, 3>;
constexpr int key_tile_words = sizeof(KeyTile) / sizeof(int);  ///< a lane writes each of them
static_assert(key_tile_words <= 32);

/// Describes the tile of `work`, which the queries `met` meet.
template <class Config>
__device__ void describe_key_tile(KeyTile& tile, const BackwardArguments& arguments, const Work& work,
                                  const Kept& met) {
  constexpr int rows = Config::tile_queries;
  const Params& params = arguments.common.params;
  const MaskOfSequence mask{params.mask, work.queries.count, work.keys.count};
  const int first_key = work.tile * Config::tile_keys;
  const int first_query = met.begin / rows * rows;
  const int query_tiles = (met.begin + met.count - first_query + rows - 1) / rows;
  const int group = static_cast<int>(divide_counts(params.heads_q, params.heads_k));
  tile.steps = query_tiles * group;
  tile.query_tiles = query_tiles;
  tile.first_query = first_query;
  tile.first_key = first_key;
  tile.length_q = work.queries.count;
  tile.length_k = work.keys.count;
  // Each kind of tiles of queries follows each other.
  const auto those = [query_tiles](bool there_are, auto is) {
    QueryTiles tiles{there_are ? 0 : query_tiles, query_tiles};
    while (tiles.begin < tiles.end && !is(tiles.begin)) ++tiles.begin;
    while (tiles.begin < tiles.end && !is(tiles.end - 1)) --tiles.end;
    return tiles;
  };
  const int next_key = first_key + Config::tile_keys;
  const auto keys_of = [&](int i) { return mask.keys_of(first_query + i * rows, rows); };
  tile.full = those(next_key <= work.keys.count,
                    [&](int i) { return mask.is_full(first_query + i * rows, rows, first_key, Config::tile_keys); });
  tile.first = those(next_key >= work.keys.count || !params.mask.keeps_all(),
                     [&](int i) { return keys_of(i).begin + keys_of(i).count <= next_key; });
  tile.last = those(work.tile == 0 || !params.mask.keeps_all(), [&](int i) { return keys_of(i).begin >= first_key; });
  tile.first_head = work.head * group;
  tile.key_head = work.head;
  const int64_t b = work.batch_begin;
  tile.out_scale = out_scale_of(arguments.common, b, work.queries, work.keys);
  tile.query = origin_of(arguments.query, params.queries, work.queries, b, first_query);
  tile.grad_output_y = origin_of(arguments.grad_output, params.queries, work.queries, b, first_query).y;
  tile.key = origin_of(arguments.key, params.keys, work.keys, b, first_key);
  tile.value_y = origin_of(arguments.value, params.keys, work.keys, b, first_key).y;
  tile.is_direct = static_cast<int>(is_direct(params.mask, work.keys.count, arguments.direct_keys));
  tile.links = KeyTileLinks::none;
  if (tile.is_direct != 0 && next_key < work.keys.count) tile.links |= KeyTileLinks::to_next;
  if (tile.is_direct != 0 && work.tile > 0) tile.links |= KeyTileLinks::to_previous;
  tile.grad_query_y = origin_of(arguments.grad_query, params.queries, work.queries, b, first_query).y;
  const int64_t rows_before = params.queries.cumulative != nullptr ? work.queries.begin
                              : arguments.queries_shared           ? 0
                                                                   : b * params.queries.length;
  tile.grad_query = first_query + static_cast<int>(rows_before);  // no more than a map has
  const Owner queries{params.queries, arguments.common.packed_rows_q, params.heads_q, rows, params.batch};
  tile.turn = static_cast<int>(queries.first_place_of(b)) + first_query / rows;
  tile.grad_key_y = origin_of(arguments.grad_key, params.keys, work.keys, b, first_key).y;
  tile.grad_value_y = origin_of(arguments.grad_value, params.keys, work.keys, b, first_key).y;
  using Gradients = KeyGradients<Config>;
  const int64_t index = Gradients::batch_index(work);
  tile.grad_key = element_offset(Gradients::of_key(arguments), work.keys, index, first_key, work.head);
  tile.grad_value = element_offset(Gradients::of_value(arguments), work.keys, index, first_key, work.head);
}

template <int columns>
struct Columns {
  static constexpr int value = columns;
};

template <class Config>
constexpr int key_schedule_threads = 256;
template <class Config>
constexpr int key_schedule_shared_bytes = 0;

/// A kernel of its own, a lane for each place; it also prepares rows of dQ: zeros where there are no keys, and sums.
/// Before a second pass, if there is one, it does all of this again.
///
/// Where there are turns, the table was cleared before: tiles do not lie at their own places then.
///
/// Launch: grid any number of CTAs, best places or tiles of queries / 64; block key_schedule_threads<Config>; no shared
///         memory.
template <class Config>
__device__ void key_schedule(const BackwardArguments& arguments) {
  using Gradients = KeyGradients<Config>;
  using Storage = typename Gradients::Element::Storage;
  constexpr unsigned warps = key_schedule_threads<Config> / 32;
  const Params& params = arguments.common.params;
  const Owner owner{params.keys, arguments.common.packed_rows_k, params.heads_k, Config::tile_keys,
                    Config::keys_shared ? arguments.common.parts : params.batch};
  const auto places = static_cast<unsigned>(owner.heads * owner.places());
  if (Config::pass == BackwardPass::again) {
    if (*arguments.found == 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) *arguments.places_taken = 0;
  }
  if (Config::sums_begun) look_for_offsets_that_fall(arguments);
  const auto prepare = [&](const RowsLeft& left) {
    if (left.keys == 0) {
      auto* const gradient = static_cast<typename Config::Element::Storage*>(params.grad_query.data) + left.offset;
      write_zero_rows<typename Config::Element, Config::head_dim>(gradient, params.grad_query.row_stride, left.rows);
      return;
    }
    if (!Config::sums_begun) {
      clear_sums<Config>(arguments, left);
    } else if (lane_index() == 0) {
      *turn_of(arguments, left.head, left.turn) = Turns::before_the_first - left.last_key_tile;
    }
  };
  if (Config::computes_grad_query && arguments.has_rows_left) for_all_rows_left<Config, warps>(arguments, prepare);
  for (unsigned first = (blockIdx.x * warps + threadIdx.x / 32) * places_at_once; first < places;
       first += gridDim.x * warps * places_at_once) {
    look_up_places(arguments, owner, false, first, [&](Work work) {
      work.queries = queries_that_meet<Config>(arguments, work);
      const unsigned place = first + static_cast<unsigned>(lane_index());
      const int first_key = work.tile * Config::tile_keys;
      Kept met{0, 0};
      if (work.exists) {
        const MaskOfSequence mask{params.mask, work.queries.count, work.keys.count};
        met = mask.queries_of(first_key, Config::tile_keys);
      }
      if constexpr (Config::sums_begun) {
        const auto in_window = [&] {
          return static_cast<unsigned>(
              place_in_window(arguments.common, arguments.direct_keys, arguments.heads_of_window, owner, work));
        };
        const unsigned place_of_tile = met.count > 0 ? in_window() : places;
        if (place_of_tile < places) {
          describe_key_tile<Config>(arguments.key_tiles[place_of_tile], arguments, work, met);
        }
      } else if (lane_index() < places_at_once && place < places) {
        KeyTile& tile = arguments.key_tiles[place];
        if (met.count > 0) {
          describe_key_tile<Config>(tile, arguments, work, met);
        } else {
          tile = KeyTile{};
        }
      }
      const auto offset_in = [&](const Operand& operand) {
        return element_offset(operand, work.keys, Gradients::batch_index(work), first_key, work.head);
      };
      const int64_t key_offset = offset_in(Gradients::of_key(arguments));
      const int64_t value_offset = offset_in(Gradients::of_value(arguments));
      const int rows = min(Config::tile_keys, work.keys.count - first_key);
      const bool has_zeros = work.exists && met.count == 0;
      for (unsigned left = __ballot_sync(0xffffffffu, has_zeros); left != 0; left &= left - 1) {
        const int source = __ffs(static_cast<int>(left)) - 1;
        const auto of_source = [source](auto value) { return __shfl_sync(0xffffffffu, value, source); };
        const auto write = [&](const Operand& operand, int64_t offset, auto columns) {
          write_zero_rows<typename Gradients::Element, columns.value>(static_cast<Storage*>(operand.data) + offset,
                                                                      operand.row_stride, of_source(rows));
          __syncwarp();
        };
        if constexpr (Config::computes_grad_key) {
          write(Gradients::of_key(arguments), of_source(key_offset), Columns<Gradients::columns>{});
        }
        if constexpr (Config::computes_grad_value) {
          write(Gradients::of_value(arguments), of_source(value_offset), Columns<Gradients::columns_v>{});
        }
      }
    });
  }
}

/// The next tile of keys is taken when the loader has so many steps left of one: that takes as long as the next one's
/// way from the table to K in shared memory.
constexpr int steps_before_next = 3;

/// By a loader of Q at each step: says when the next tile is due. Behind a short one it is at once.
__device__ inline void say_when_next_is_due(const Barrier& next_is_due, const KeyTile& tile, int left) {
  if (left == steps_before_next && tile.steps > steps_before_next) next_is_due.arrive();
}

/// The dealer's work: takes one place after the other, which CTAs share by a counter, and fills the ring; ends it with
/// a tile of no steps. A place is taken late, so that no CTA holds what others could do, or what others wait for; only
/// behind a short one as soon as the ring has room.
__device__ inline void deal_key_tiles(const BackwardArguments& arguments, const KeyRing& ring,
                                      const Barrier& next_is_due) {
  constexpr int words = key_tile_words;
  const int lane = lane_index();
  unsigned place = 0;
  bool is_linked = false;  // to the place before
  bool is_late = false;
  unsigned parity = 0;  // of the times that it waited for the next one to be due
  int dealt = 0;
  for (;;) {
    ring.wait_free(dealt);
    if (is_late) {
      next_is_due.wait(parity);
      parity ^= 1;
      is_late = false;
    }
    if (is_linked) {
      ++place;
    } else {
      if (lane == 0) place = atomicAdd(arguments.places_taken, 1u);
      place = __shfl_sync(0xffffffffu, place, 0);
    }
    const bool ends = place >= arguments.places;
    int word = 0;
    if (!ends && lane < words) word = reinterpret_cast<const int*>(arguments.key_tiles + place)[lane];
    const int steps = __shfl_sync(0xffffffffu, word, 0);  // the first two of the table's words
    const int links = __shfl_sync(0xffffffffu, word, 1);
    const bool is_others = steps == 0 || ((links & KeyTileLinks::to_previous) != 0 && !is_linked);
    if (is_others && !ends) {
      is_linked = false;  // offsets that fall, which they must not, may have made a link to nothing
      continue;
    }
    is_linked = (links & KeyTileLinks::to_next) != 0;
    is_late = steps > steps_before_next;
    if (lane < words) {
      reinterpret_cast<int*>(&ring[dealt])[lane] = word;
      ring.publish(dealt);
    }
    if (ends) return;
    ++dealt;
  }
}

/// Calls visit(tile, number) for every tile of keys; by one thread, which is one of the ring's readers.
template <class Visit>
__device__ void for_all_key_tiles(const KeyRing& ring, Visit visit) {
  for (int number = 0;; ++number) {
    const KeyTile& tile = ring.wait(number);
    if (tile.steps == 0) return;
    visit(tile, number);
    ring.release(static_cast<int>(computed_anew(number)));  // else its barrier takes a register meanwhile
  }
}

/// What becomes of dQ of a tile of queries of a tile of keys.
template <class Config>
__device__ GradQuery grad_query_of(const KeyTile& tile, int query_tile) {
  if (tile.is_direct != 0) return tile.first_key == 0 ? GradQuery::stored : GradQuery::added;
  if (!Config::sums_begun) return GradQuery::added_to_sums;
  const bool is_last = tile.last.holds(query_tile);
  if (tile.first.holds(query_tile)) return is_last ? GradQuery::stored : GradQuery::begins_sums;
  return is_last ? GradQuery::ends_sums : GradQuery::added_to_sums;
}

/// Calls visit(head, first row from the tile's, how many are left with it) for every tile of queries of a tile of keys.
template <class Config, class Visit>
__device__ void for_all_query_tiles(const KeyTile& tile, Visit visit) {
  int head = tile.first_head, row = 0;
#pragma unroll 1
  for (int left = tile.steps; left > 0; --left) {
    visit(head, row, left);
    row += Config::tile_queries;
    if (row == tile.query_tiles * Config::tile_queries) {
      row = 0;
      ++head;
    }
  }
}

/// The keeper of turns asks for them while dQ is still multiplied, and passes them on when it has been added: to ask
/// and to pass on take a way to memory and back each, for which who adds has no time.
template <class Config>
__device__ void keep_turns(const BackwardArguments& arguments, const KeyRing& tiles, const HeldTurns& turns) {
  int asked = 0, passed = 0;
  const auto pass_on = [&] {
    const HeldTurn& turn = turns[passed];
    if (turn.number != nullptr) add_released(turn.number, Turns::passed_on(turn.is));
    ++passed;
  };
  const auto pass_on_what_is_over = [&] {
    if (passed < asked && is_over(turns.over, passed)) pass_on();
  };
  for_all_key_tiles(tiles, [&](const KeyTile& tile, int) {
    for_all_query_tiles<Config>(tile, [&](int head, int row, int) {
      if (asked - passed == HeldTurns::most) {
        wait_for_turn(turns.over, passed);
        pass_on();
      }
      const int query_tile = row / Config::tile_queries;
      const GradQuery is = grad_query_of<Config>(tile, query_tile);
      int* number = nullptr;  // which is not asked for where dQ is stored at once
      if (has_sums(is)) {
        number = turn_of(arguments, head, tile.turn + query_tile);
        const int awaited = Turns::awaited<Config>(is, tile.first_key / Config::tile_keys);
        while (!has_come(arguments, number, awaited)) pass_on_what_is_over();
      }
      turns[asked].number = number;
      turns[asked].is = is;
      turns.come[index_in<HeldTurns::most>(asked)].arrive();
      ++asked;
      pass_on_what_is_over();
    });
  });
  while (passed < asked) {
    wait_for_turn(turns.over, passed);
    pass_on();
  }
}

}  // namespace gdpa::hopper
