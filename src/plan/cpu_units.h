// The CPU schedule: tiles, the list of units of work, and the sums after them, as a pure function of the problem, its
// lengths and the processor. One thread runs a unit, and only this unit writes its results; see docs/cpu.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "definition/divide.h"
#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/plan.h"
#include "plan/cpu_plan.h"

namespace gdpa::plan {

/// The largest vector length of a product. Widths and numbers of keys are rounded up to a multiple of it.
constexpr int64_t cpu_vector = 16;

/// Elements in a row of the sums of one gradient. A gradient that is not wanted has sums without elements.
constexpr int64_t sum_width(bool is_wanted, int64_t head_dim) { return is_wanted ? round_up(head_dim, cpu_vector) : 0; }

/// A range that stands for all rows of every sequence.
constexpr Range all_rows{0, std::numeric_limits<int64_t>::max()};

constexpr Range intersection(Range a, Range b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

/// Calls body(range) with consecutive ranges of `step` rows, of which the last may be shorter.
template <class Body>
void for_each_range(Range all, int64_t step, const Body& body) {
  for (int64_t begin = all.begin; begin < all.end; begin += step) body(Range{begin, std::min(begin + step, all.end)});
}

struct CpuTiles {
  int64_t queries = 64;        ///< largest number of rows of a score tile
  int64_t keys = 128;          ///< largest number of columns of a score tile; a multiple of cpu_vector
  int64_t block_queries = 64;  ///< forward: largest number of query rows of a unit, over all its heads
                               ///< backward: largest number of query rows of one head in the dQ buffer of a thread
};

/// The offsets of the buffers in the workspace of a thread, in elements of the compute type.
struct CpuBuffers {
  int64_t query = 0;        ///< packed rows of Q
  int64_t grad_output = 0;  ///< backward: packed rows of dO
  int64_t keys_transposed = 0;
  int64_t values_transposed = 0;  ///< backward
  int64_t keys = 0;               ///< backward: rows of K
  int64_t values = 0;             ///< forward: rows of V
  int64_t scores = 0;
  int64_t derivatives = 0;  ///< backward: f'(S)
  int64_t grad_scores = 0;  ///< backward: dP, then dS
  int64_t output = 0;       ///< forward: sums of O
  int64_t product = 0;      ///< one product P V (forward) or dS K (backward), before it is added to O or dQ
  int64_t grad_query = 0;   ///< backward: sums of dQ
  int64_t grad_keys = 0;    ///< backward: sums of dK for one tile of keys, or for the unit's keys
  int64_t grad_values = 0;  ///< backward: sums of dV for one tile of keys, or for the unit's keys
  int64_t key_totals = 0;   ///< backward: totals in double, of dK and then of dV, for one tile of keys
  int64_t total = 0;
};

/// A unit of work: consecutive batch entries, one key head, some of the query heads that read it, some query rows and
/// some keys.
struct CpuUnit {
  Range batch;  ///< backward: positions in the order of CpuSchedule::entry
  int64_t key_head = 0;
  Range heads;
  Range queries = all_rows;
  Range keys = all_rows;
  bool grad_query = false;       ///< backward: computes dQ
  bool grad_key_value = false;   ///< backward: computes the wanted ones of dK and dV
  bool sums_over_batch = false;  ///< backward: alone owns its rows of the operand that the batch shares
  int64_t query_sum = -1;        ///< the first partial sum of dQ over the unit; -1: the unit alone owns these rows
  int64_t key_sum = -1;          ///< the same for dK, then dV, if they are wanted
  Range key_rows;                ///< with key_sum: the rows of keys that it has, counted as Sequences::begin counts
  double cost = 0;               ///< in products of one score tile element; only ratios matter
};

/// Returns whether the unit computes the terms of the gradients of tensors. These units together compute each score
/// once.
inline bool adds_parameters(const CpuUnit& unit, const WantedGradients& wanted) {
  return wanted.parameters != 0 && (unit.grad_key_value || !(wanted.key || wanted.value));
}

/// Partial sums of a gradient. After all units, they are added in order and stored.
struct CpuReduction {
  bool of_query = false;  ///< dQ if true, otherwise dK and dV
  int64_t batch = 0;      ///< position in the order of CpuSchedule::entry; 0 if the operand is shared
  int64_t head = 0;
  Range rows;
  int64_t first = 0;   ///< the first partial sum of this head, in elements
  int64_t stride = 0;  ///< distance between partial sums
  int64_t count = 0;   ///< 0: zeros are written
  int64_t length = 0;  ///< rows of one partial sum
};

/// The division of backward.
enum class CpuCut : std::uint8_t {
  whole,     ///< a unit computes every gradient of its rows: five products
  partial,   ///< like whole, with partial sums for gradients to which several units add
  separate,  ///< separate units for dQ and for dK and dV: seven products, no partial sums
};

struct CpuSchedule {
  CpuTiles tiles;
  CpuBuffers buffers;
  int threads = 1;
  CpuCut cut = CpuCut::whole;
  std::vector<CpuUnit> units;  ///< by decreasing cost
  std::vector<CpuReduction> reductions;
  int64_t partial_elements = 0;  ///< in double
  /// Backward, if batch entries have common keys: the entries, ordered so that entries with common keys follow each
  /// other, and for each position the position after the last entry with common keys. Otherwise empty.
  std::vector<int64_t> order;
  std::vector<int64_t> ends_of_group;

  int64_t entry(int64_t position) const { return order.empty() ? position : order[static_cast<std::size_t>(position)]; }
  int64_t end_of_group(int64_t position) const {
    return order.empty() ? position + 1 : ends_of_group[static_cast<std::size_t>(position)];
  }
};

CpuSchedule schedule_for_cpu(const Problem& problem, const Params& params, const Processor& processor);

/// Returns the bytes of an element of the compute type of this problem.
int64_t compute_bytes(const Problem& problem);

/// Returns the number of scores of these queries that the mask keeps.
double kept_scores(const Mask& mask, Range queries, int64_t length_q, int64_t length_k);

}  // namespace gdpa::plan
