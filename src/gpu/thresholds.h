// The numbers of rows and of batch entries at which the choice of a kernel changes. The planner compares lengths with
// these numbers and with no others, so that visit_representatives() can derive one problem for each choice. A plan
// asserts that a number which a kernel has too is the same there.
#pragma once

#include <cstdint>

namespace gdpa::gpu::thresholds {

/// Mean number of keys up to which forward loads K and V in tiles of 64 rows.
constexpr int64_t keys_of_a_short_tile = 64;

/// Mean number of keys up to which forward keeps K and V in shared memory with several stages of Q; the second one
/// where head dims are at most 64.
constexpr int64_t few_keys = 256, few_keys_of_narrow_heads = 512;

/// Mean number of keys up to which forward keeps three tiles of 128 keys in shared memory, if head dims are above 64.
constexpr int64_t keys_of_three_stages = 384;

/// Number of queries up to which forward computes with one warpgroup.
constexpr int64_t queries_of_one_warpgroup = 64;

/// Mean number of queries from which backward takes tiles of 128 queries. With fewer, too many tiles would be the only
/// one of a sequence, or half of one.
constexpr int64_t queries_of_large_tiles = 512;

/// Number of keys up to which backward takes tiles of 64 keys. The host has to know the number.
constexpr int64_t keys_of_one_consumer = 64;

/// The most tiles of keys of a sequence that one CTA of backward takes, by the number of heads of all batch entries:
///     whole_tiles                less than `few_heads_per_multiprocessor` for each multiprocessor
///     whole_tiles_of_few_heads   less than `many_heads_per_multiprocessor`
///     whole_tiles_of_many_heads  more
constexpr int whole_tiles = 1, whole_tiles_of_few_heads = 2, whole_tiles_of_many_heads = 4;
constexpr int64_t few_heads_per_multiprocessor = 1, many_heads_per_multiprocessor = 8;

/// Bytes of Q, dO and dQ of the queries of a key head in a sequence, up to which one CTA takes all tiles of keys. The
/// CTAs of 132 multiprocessors have at most 17 MB together, which stay in the L2 cache. With 26 MB, several CTAs for a
/// sequence were faster (docs/notebook/hopper-backward.md).
constexpr int64_t most_query_bytes_of_whole_tiles = 128 << 10;

/// Tiles of keys up to which dQ is summed in the gradient, in its type. With more, the rounded sums could exceed the
/// error promise.
constexpr int direct_tiles = 4;

/// Scores of a call up to which f is exact on a GPU, whatever the call's accuracy. The errors of the fast forms are
/// absolute. They are small in the 2-norm of a result unless f vanishes at nearly all of its scores: few scores can all
/// lie there by chance. The time of such a call is the time of its launch.
constexpr int64_t scores_of_exact_calls = 4096;

/// Terms of an element, on average, up to which the sums of gradients of tensors are fp32. An fp32 sum of this many
/// terms of one size has a relative error of at most 2.4e-4, and of 2e-6 for terms of random signs.
constexpr int64_t terms_of_float32_sums = 4096;

/// The mean lengths for which tiles are chosen in deterministic mode, whatever the lengths of the batch are: long
/// sequences of queries, and tiles of 128 keys, which both 256 and 2048 keys fill.
constexpr int64_t queries_of_deterministic_tiles = queries_of_large_tiles, keys_of_deterministic_tiles = few_keys;

/// The keys of so many tiles of backward.
constexpr int64_t keys_of_a_backward_tile = 128;
constexpr int64_t keys_of(int tiles) { return tiles * keys_of_a_backward_tile; }

/// All of them, for each of the numbers that the planner looks at.
constexpr int64_t of_queries[] = {queries_of_one_warpgroup, queries_of_large_tiles};
constexpr int64_t of_keys[] = {keys_of_a_short_tile,     few_keys,
                               few_keys_of_narrow_heads, keys_of_three_stages,
                               keys_of(whole_tiles),     keys_of(whole_tiles_of_few_heads),
                               keys_of(direct_tiles)};
// keys_of(whole_tiles_of_many_heads) and keys_of_one_consumer are not in the list, because the list has their
// values.
static_assert(whole_tiles_of_many_heads == direct_tiles && keys_of_one_consumer == keys_of_a_short_tile);
constexpr int64_t of_terms[] = {terms_of_float32_sums};
constexpr int64_t of_heads_per_multiprocessor[] = {few_heads_per_multiprocessor, many_heads_per_multiprocessor};

}  // namespace gdpa::gpu::thresholds
