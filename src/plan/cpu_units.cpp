// Divides a problem into units of work for the CPU; see cpu_units.h and docs/cpu.md.
#include "plan/cpu_units.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

namespace gdpa::plan {
namespace {

// The cost of a row, in products of this row. Packing and storing process about one element in each cycle, and products
// about thirty.
constexpr double row_cost = 30;
// The number of units for each thread, so that all threads finish at nearly the same time.
constexpr int64_t units_per_thread = 4;
// The list of units also needs memory.
constexpr int64_t most_units_per_thread = 50'000;
// Parts with fewer rows do not improve the balance enough, because every part packs its keys again.
constexpr int64_t smallest_piece = 128;

int64_t clamp(int64_t value, int64_t low, int64_t high) { return std::max(low, std::min(value, high)); }

/// Consecutive batch entries that share a unit, until the unit has the cost `target`.
template <class Add>
class Run {
 public:
  /// add(unit) adds a finished unit.
  Run(const CpuUnit& empty, double target, const Add& add) : empty_(empty), target_(target), add_(add) {}

  void take(int64_t b, double cost) {
    if (unit_.batch.empty()) unit_.batch.begin = b;
    unit_.batch.end = b + 1;
    unit_.cost += cost;
    if (unit_.cost >= target_) end();
  }

  void end() {
    if (!unit_.batch.empty()) add_(unit_);
    unit_ = empty_;
  }

 private:
  const CpuUnit empty_;
  const double target_;
  const Add add_;
  CpuUnit unit_ = empty_;
};

bool wants_keys(const Problem& problem) { return problem.wanted.key || problem.wanted.value; }

/// The sizes that determine the division.
struct Sizes {
  const Problem& problem;
  int64_t group = problem.heads_q / std::max<int64_t>(problem.heads_k, 1);  // query heads that read one key head
  int64_t width_q = round_up(problem.head_dim, cpu_vector);
  int64_t width_v = round_up(problem.head_dim_v, cpu_vector);
  int64_t sum_width_k = sum_width(problem.wanted.key, problem.head_dim);      // of dK
  int64_t sum_width_v = sum_width(problem.wanted.value, problem.head_dim_v);  // of dV
  // Only a gradient that is wanted is summed over the batch.
  bool shared_queries = problem.shares_queries() && problem.wanted.query;
  bool shared_keys = problem.shares_keys() && wants_keys(problem);

  int64_t key_row() const { return width_q + width_v; }
  int64_t key_sum_row() const { return sum_width_k + sum_width_v; }
};

/// Writes the list of one problem. The list determines the order of the additions to every gradient.
class Cutter {
 public:
  Cutter(const Problem& problem, const Params& params, const Processor& processor, CpuSchedule& schedule)
      : problem_(problem), params_(params), processor_(processor), schedule_(schedule) {}

  void cut() {
    for (int64_t b = 0; b < problem_.batch; ++b) total_ += static_cast<double>(problem_.heads_k) * cost_of(b, all_rows);
    const int wanted = problem_.threads > 0 ? std::min(problem_.threads, processor_.threads) : processor_.threads;
    schedule_.threads = static_cast<int>(clamp(static_cast<int64_t>(total_ / processor_.thread_cost), 1, wanted));
    share_ = total_ / schedule_.threads;
    small_ =
        std::max(std::min(processor_.thread_cost / 4, share_ / (4 * units_per_thread)), share_ / most_units_per_thread);
    choose_tiles();
    if (problem_.direction == Direction::forward) {
      cut_forward();
    } else {
      cut_backward();
    }
    // A total order, so that the list does not depend on the sort algorithm.
    std::sort(schedule_.units.begin(), schedule_.units.end(), [](const CpuUnit& a, const CpuUnit& b) {
      return std::tie(b.cost, a.batch.begin, a.queries.begin, a.heads.begin) <
             std::tie(a.cost, b.batch.begin, b.queries.begin, b.heads.begin);
    });
  }

 private:
  // In all functions, b is a position in the order of the schedule.
  int64_t length_q(int64_t b) const { return params_.queries.size(schedule_.entry(b)); }
  int64_t length_k(int64_t b) const { return params_.keys.size(schedule_.entry(b)); }
  Range key_rows(int64_t b) const {
    const int64_t begin = params_.keys.begin(schedule_.entry(b));
    return {begin, begin + length_k(b)};
  }
  int64_t element_bytes() const { return compute_bytes(problem_); }

  /// Returns the cost of these query rows in the group of one key head.
  double cost_of(int64_t b, Range queries) const {
    queries = intersection(queries, {0, length_q(b)});
    const double kept = kept_scores(params_.mask, queries, length_q(b), length_k(b));
    const auto rows = static_cast<double>(sizes_.group * queries.size() + length_k(b));
    const double products = problem_.direction == Direction::forward ? 1.0 : 2.5;
    return (products * static_cast<double>(sizes_.group) * kept + row_cost * rows) *
           static_cast<double>(sizes_.key_row());
  }

  Range group_of(int64_t key_head) const { return {key_head * sizes_.group, (key_head + 1) * sizes_.group}; }

  void choose_tiles() {
    CpuTiles& tiles = schedule_.tiles;
    const int64_t widest = std::max(sizes_.width_q, sizes_.width_v);
    // Half of the cache is for reused data: the rows of Q and O in forward, the tiles of K and V in backward.
    const int64_t half_cache = processor_.cache_bytes / 2 / element_bytes();
    if (problem_.direction == Direction::forward) {
      const int64_t rows = half_cache / sizes_.key_row() / tiles.queries * tiles.queries;
      int64_t all = 0;
      for (int64_t b = 0; b < problem_.batch; ++b) all += length_q(b) * problem_.heads_q;
      const int64_t fair = round_up(divide_up(all, schedule_.threads * units_per_thread), tiles.queries);
      tiles.block_queries = clamp(std::min(rows, fair), tiles.queries, 512);
      while (tiles.keys > 64 && tiles.keys * sizes_.key_row() > half_cache) tiles.keys /= 2;
    } else {
      while (tiles.keys > 64 && 5 * tiles.keys * widest > half_cache) tiles.keys /= 2;
      int64_t longest = 0;
      for (int64_t b = 0; b < problem_.batch; ++b) longest = std::max(longest, length_q(b));
      const int64_t held =
          processor_.held_bytes / element_bytes() / (sizes_.group * sizes_.width_q) / tiles.queries * tiles.queries;
      tiles.block_queries = clamp(round_up(longest, tiles.queries), tiles.queries, std::max(held, tiles.queries));
    }
  }

  void cut_forward() {
    Run run(unit_of({}, 0, 0), small_, [this](const CpuUnit& unit) { add_for_all_heads(unit, sizes_.group); });
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const int64_t length = length_q(b);
      if (length == 0) continue;
      const double cost = cost_of(b, all_rows);
      if (cost < small_ && sizes_.group * length <= schedule_.tiles.block_queries) {
        run.take(b, cost);
        continue;
      }
      run.end();
      cut_rows(b, length, cost);
    }
    run.end();
  }

  /// Adds the query rows of one batch entry, in blocks that fit the buffers.
  void cut_rows(int64_t b, int64_t length, double cost) {
    const CpuTiles& tiles = schedule_.tiles;
    const int64_t heads = clamp(tiles.block_queries / std::min(length, tiles.queries), 1, sizes_.group);
    const int64_t blocks = divide_up(length, std::max(tiles.queries, tiles.block_queries / heads));
    const int64_t pieces = clamp(static_cast<int64_t>(cost / small_), 1, blocks);
    CpuUnit unit = unit_of({b, b + 1}, 0, 0);
    for_each_range({0, length}, divide_up(length, pieces), [&](Range queries) {
      unit.queries = queries;
      unit.cost = cost_of(b, queries) * static_cast<double>(heads) / static_cast<double>(sizes_.group);
      add_for_all_heads(unit, heads);
    });
  }

  void add_for_all_heads(CpuUnit unit, int64_t heads_per_unit) {
    for (unit.key_head = 0; unit.key_head < problem_.heads_k; ++unit.key_head) {
      const Range group = group_of(unit.key_head);
      for (int64_t head = group.begin; head < group.end; head += heads_per_unit) {
        unit.heads = {head, std::min(head + heads_per_unit, group.end)};
        schedule_.units.push_back(unit);
      }
    }
  }

  void cut_backward() {
    const bool has_groups = !schedule_.order.empty();
    if (sizes_.shared_queries && has_groups) {
      computes_grad_query_ = false;
      add_sums_over_batch(true);
      schedule_.cut = CpuCut::separate;
    } else if (sizes_.shared_queries || sizes_.shared_keys) {
      cut_shared();
      return;
    }
    const bool balance = !is_balanced();
    Run run(unit_of({}, 0, 0), small_, [this](const CpuUnit& unit) { add_for_all_heads(unit, sizes_.group); });
    for (int64_t b = 0; b < problem_.batch; b = schedule_.end_of_group(b)) {
      if (schedule_.end_of_group(b) > b + 1) {
        run.end();
        cut_group({b, schedule_.end_of_group(b)});
        continue;
      }
      if (length_q(b) == 0 && length_k(b) == 0) continue;
      const double cost = cost_of(b, all_rows);
      if (cost < small_ && length_q(b) <= schedule_.tiles.block_queries) {
        run.take(b, cost);
        continue;
      }
      run.end();
      const int64_t pieces = balance && cost > share_ / 2 ? pieces_for(cost) : 1;
      for (int64_t head = 0; head < problem_.heads_k; ++head) cut_entry(b, head, pieces, cost);
    }
    run.end();
  }

  int64_t pieces_for(double cost) const { return static_cast<int64_t>(cost * units_per_thread / share_) + 1; }

  /// Returns whether units of one batch entry and key head load all threads equally, within a tenth, largest first.
  bool is_balanced() const {
    if (schedule_.threads == 1) return true;
    std::vector<double> costs;
    for (int64_t b = 0; b < problem_.batch; ++b) {
      costs.insert(costs.end(), static_cast<std::size_t>(problem_.heads_k), cost_of(b, all_rows));
    }
    std::sort(costs.begin(), costs.end(), std::greater<>());
    std::priority_queue<double, std::vector<double>, std::greater<>> loads;
    for (int i = 0; i < schedule_.threads; ++i) loads.push(0);
    double longest = 0;
    for (double cost : costs) {
      const double load = loads.top() + cost;
      loads.pop();
      loads.push(load);
      longest = std::max(longest, load);
    }
    return longest <= 1.1 * share_;
  }

  /// Adds one batch entry and key head: whole, in parts with partial sums of dK and dV, or separate.
  void cut_entry(int64_t b, int64_t key_head, int64_t pieces, double cost) {
    const int64_t length = length_q(b);
    const int64_t head_pieces = divide_up(sizes_.group, divide_up(sizes_.group, std::min(pieces, sizes_.group)));
    const int64_t heads = divide_up(sizes_.group, head_pieces);
    const int64_t row_pieces = clamp(divide_up(pieces, head_pieces), 1, std::max<int64_t>(1, length / smallest_piece));
    if (head_pieces * row_pieces == 1 && length <= schedule_.tiles.block_queries) {
      schedule_.units.push_back(unit_of({b, b + 1}, key_head, cost));
      return;
    }
    if (!wants_keys(problem_)) {
      add_query_units(b, key_head, cost);  // nothing is computed twice
      return;
    }
    const int64_t sum_elements = length_k(b) * sizes_.key_sum_row();
    const int64_t free = partial_limit() - schedule_.partial_elements;
    if (head_pieces * row_pieces * sum_elements > free) {
      schedule_.cut = CpuCut::separate;
      add_key_units(b, key_head, cost * 4 / 5);
      add_query_units(b, key_head, cost * 3 / 5);
      return;
    }
    schedule_.cut = std::max(schedule_.cut, CpuCut::partial);
    const int64_t first = schedule_.partial_elements;
    CpuUnit unit = unit_of({b, b + 1}, key_head, cost);
    unit.key_rows = key_rows(b);
    const Range group = unit.heads;
    int64_t count = 0;
    for_each_range({0, length}, divide_up(length, row_pieces), [&](Range queries) {
      unit.queries = queries;
      unit.cost = cost_of(b, queries) / static_cast<double>(head_pieces);
      for (int64_t head = group.begin; head < group.end; head += heads) {
        unit.heads = {head, std::min(head + heads, group.end)};
        unit.key_sum = first + count++ * sum_elements;
        schedule_.units.push_back(unit);
      }
    });
    schedule_.partial_elements += count * sum_elements;
    reduce({false, b, key_head, {}, first, sum_elements, count, length_k(b)});
  }

  /// A unit of all query heads of a key head, which computes all wanted gradients.
  CpuUnit unit_of(Range batch, int64_t key_head, double cost) const {
    CpuUnit unit;
    unit.batch = batch;
    unit.key_head = key_head;
    unit.heads = group_of(key_head);
    unit.grad_query = computes_grad_query_;
    unit.grad_key_value = problem_.direction == Direction::backward && wants_keys(problem_);
    unit.cost = cost;
    return unit;
  }

  int64_t partial_limit() const {
    return schedule_.threads * processor_.partial_bytes / static_cast<int64_t>(sizeof(double));
  }

  /// Adds units that compute dK and dV of some keys of one batch entry.
  void add_key_units(int64_t b, int64_t key_head, double cost) {
    if (!wants_keys(problem_)) return;
    const int64_t tile_count = divide_up(length_k(b), schedule_.tiles.keys);
    const int64_t pieces = clamp(pieces_for(cost), 1, std::max<int64_t>(tile_count, 1));
    const int64_t keys = std::max<int64_t>(1, divide_up(tile_count, pieces)) * schedule_.tiles.keys;
    CpuUnit unit = unit_of({b, b + 1}, key_head, cost / static_cast<double>(pieces));
    unit.grad_query = false;
    for_each_range({0, length_k(b)}, keys, [&](Range range) {
      unit.keys = range;
      schedule_.units.push_back(unit);
    });
  }

  /// Adds units that compute dQ of some queries of one batch entry.
  void add_query_units(int64_t b, int64_t key_head, double cost) {
    if (!computes_grad_query_ && problem_.wanted.of_operands()) return;
    const int64_t length = length_q(b);
    const int64_t pieces = clamp(pieces_for(cost), 1, std::max<int64_t>(1, length / smallest_piece));
    const int64_t rows = std::max<int64_t>(1, divide_up(length, pieces));
    CpuUnit unit = unit_of({b, b + 1}, key_head, 0);
    unit.grad_key_value = false;
    for_each_range({0, length}, rows, [&](Range queries) {
      unit.queries = queries;
      unit.cost = cost_of(b, queries) * 3 / 5;
      schedule_.units.push_back(unit);
    });
  }

  /// Adds the units for an operand that the whole batch shares. Each run of batch entries has a partial sum of its
  /// gradient. A batch entry that is larger than a run is divided along the other side.
  void cut_shared() {
    const int64_t shared_rows = sizes_.shared_keys ? params_.keys.length : params_.queries.length;
    const int64_t sum_elements =
        shared_rows * (sizes_.shared_keys ? sizes_.key_sum_row() : sizes_.group * sizes_.width_q);
    const int64_t all_heads = std::max<int64_t>(1, problem_.heads_k * sum_elements);
    const int64_t most = partial_limit() / all_heads;
    // A unit holds dQ of all shared queries until it adds them to a partial sum.
    const bool fits_thread = sizes_.shared_keys || shared_rows <= schedule_.tiles.block_queries;
    if (most < 1 || !fits_thread) {
      cut_shared_separately();
      return;
    }
    schedule_.cut = CpuCut::partial;
    const int64_t wanted =
        divide_up(schedule_.threads == 1 ? 1 : schedule_.threads * units_per_thread, problem_.heads_k);
    // In the worst case, runs and parts of large entries alternate, which needs three sums for each wanted one, and one
    // more. If the budget is too small for them, one run takes the whole batch.
    const int64_t runs = std::min(wanted, (most - 1) / 3);
    const double target = runs > 1 ? total_ / static_cast<double>(problem_.heads_k * runs) : 2 * total_;
    for (int64_t key_head = 0; key_head < problem_.heads_k; ++key_head) {
      cut_runs({0, problem_.batch}, key_head, target, sum_elements, {0, shared_rows});
    }
  }

  /// Adds batch entries with common keys. Their runs have partial sums of all rows of these keys, so that each run
  /// writes to every row of the gradient.
  void cut_group(Range batch) {
    Range rows = key_rows(batch.begin);
    double cost = 0;
    for (int64_t b = batch.begin; b < batch.end; ++b) {
      rows.end = std::max(rows.end, key_rows(b).end);
      cost += cost_of(b, all_rows);
    }
    schedule_.cut = std::max(schedule_.cut, CpuCut::partial);
    const int64_t sum_elements = rows.size() * sizes_.key_sum_row();
    for (int64_t key_head = 0; key_head < problem_.heads_k; ++key_head) {
      // In the worst case, each run and each part of a large entry needs three sums; see cut_shared.
      const int64_t sums = (partial_limit() - schedule_.partial_elements) / std::max<int64_t>(1, sum_elements);
      const int64_t runs = std::min(pieces_for(cost), (sums - 1) / 3);
      cut_runs(batch, key_head, runs > 1 ? cost / static_cast<double>(runs) : 2 * cost, sum_elements, rows);
    }
  }

  /// Adds batch entries of one key head whose gradients of keys, or of queries that the batch shares, are summed. Each
  /// run has the cost `target` and a partial sum of `rows`.
  void cut_runs(Range batch, int64_t key_head, double target, int64_t sum_elements, Range rows) {
    const bool sums_queries = sizes_.shared_queries && computes_grad_query_;
    const int64_t first = schedule_.partial_elements;
    int64_t count = 0;
    const auto add = [&](CpuUnit unit) {
      (sums_queries ? unit.query_sum : unit.key_sum) = first + count++ * sum_elements;
      unit.key_rows = rows;
      schedule_.units.push_back(unit);
    };
    Run run(unit_of({}, key_head, 0), target, add);
    for (int64_t b = batch.begin; b < batch.end; ++b) {
      const double cost = cost_of(b, all_rows);
      if (cost <= target) {
        run.take(b, cost);
        continue;
      }
      run.end();
      cut_along(b, key_head, static_cast<int64_t>(cost / target) + 1, cost, add);
    }
    run.end();
    schedule_.partial_elements += count * sum_elements;
    for (int64_t i = 0; i < (sums_queries ? sizes_.group : 1); ++i) {
      const int64_t head = sums_queries ? group_of(key_head).begin + i : key_head;
      const int64_t of_head = first + i * rows.size() * sizes_.width_q;
      reduce({sums_queries, batch.begin, head, {}, of_head, sum_elements, count, rows.size()});
    }
  }

  /// Adds one batch entry in parts along the side whose gradient is not summed over the batch.
  template <class Add>
  void cut_along(int64_t b, int64_t key_head, int64_t pieces, double cost, const Add& add) {
    const bool cuts_keys = sizes_.shared_queries && computes_grad_query_;
    const int64_t length = cuts_keys ? length_k(b) : length_q(b);
    pieces = clamp(pieces, 1, std::max<int64_t>(1, length / smallest_piece));
    const int64_t rows = std::max<int64_t>(1, divide_up(length, pieces));
    CpuUnit unit = unit_of({b, b + 1}, key_head, cost / static_cast<double>(pieces));
    for (int64_t begin = 0; begin < std::max<int64_t>(1, length); begin += rows) {
      (cuts_keys ? unit.keys : unit.queries) = Range{begin, std::min(begin + rows, length)};
      add(unit);
    }
  }

  /// Adds the units for a shared operand that is too long for partial sums. Each unit computes some of its rows, for
  /// the whole batch.
  void cut_shared_separately() {
    schedule_.cut = CpuCut::separate;
    add_sums_over_batch(sizes_.shared_queries);
    for (int64_t key_head = 0; key_head < problem_.heads_k; ++key_head) {
      for (int64_t b = 0; b < problem_.batch; ++b) {
        if (sizes_.shared_keys) {
          add_query_units(b, key_head, cost_of(b, all_rows) * 3 / 5);
        } else {
          add_key_units(b, key_head, cost_of(b, all_rows) * 4 / 5);
        }
      }
    }
  }

  /// Adds the units of cut_shared_separately for the rows of the shared operand.
  void add_sums_over_batch(bool of_queries) {
    const int64_t shared_rows = sizes_.shared_keys ? params_.keys.length : params_.queries.length;
    const int64_t step = of_queries ? schedule_.tiles.block_queries : schedule_.tiles.keys;
    const double cost = total_ / static_cast<double>(problem_.heads_k);
    const int64_t pieces = clamp(pieces_for(cost), 1, divide_up(shared_rows, step));
    const int64_t rows = round_up(divide_up(shared_rows, pieces), step);
    for (int64_t key_head = 0; key_head < problem_.heads_k; ++key_head) {
      CpuUnit unit = unit_of({0, problem_.batch}, key_head, cost / static_cast<double>(pieces));
      unit.sums_over_batch = true;
      unit.grad_query = of_queries;
      unit.grad_key_value = !of_queries;
      for_each_range({0, shared_rows}, rows, [&](Range range) {
        (of_queries ? unit.queries : unit.keys) = range;
        schedule_.units.push_back(unit);
      });
    }
  }

  /// Adds the reduction of all rows, in parts.
  void reduce(CpuReduction reduction) {
    constexpr int64_t rows_at_once = 256;
    for_each_range({0, reduction.length}, rows_at_once, [&](Range rows) {
      reduction.rows = rows;
      schedule_.reductions.push_back(reduction);
    });
  }

  const Problem& problem_;
  const Params& params_;
  const Processor& processor_;
  CpuSchedule& schedule_;
  const Sizes sizes_{problem_};
  bool computes_grad_query_ =
      problem_.direction == Direction::backward && problem_.wanted.query;  // in the units of batch entries
  double total_ = 0;
  double share_ = 0;  // cost for each thread
  double small_ = 0;  // a unit with a lower cost takes more batch entries
};

CpuBuffers buffers_for(const Problem& problem, const CpuTiles& tiles) {
  const Sizes sizes{problem};
  CpuBuffers buffers;
  // Every buffer begins at a new cache line.
  auto add = [&](int64_t& offset, int64_t elements) {
    offset = buffers.total;
    buffers.total += round_up(elements, 16);
  };
  const int64_t score_elements = tiles.queries * tiles.keys;
  add(buffers.keys_transposed, sizes.width_q * tiles.keys);
  add(buffers.scores, score_elements);
  if (problem.direction == Direction::forward) {
    add(buffers.values, tiles.keys * sizes.width_v);
    add(buffers.query, tiles.block_queries * sizes.width_q);
    add(buffers.output, tiles.block_queries * sizes.width_v);
    add(buffers.product, tiles.queries * sizes.width_v);
    return buffers;
  }
  add(buffers.values_transposed, sizes.width_v * tiles.keys);
  add(buffers.keys, tiles.keys * sizes.width_q);
  add(buffers.derivatives, score_elements);
  add(buffers.grad_scores, score_elements);
  add(buffers.query, tiles.queries * sizes.width_q);
  add(buffers.grad_output, tiles.queries * sizes.width_v);
  add(buffers.product, tiles.queries * sizes.width_q);
  add(buffers.grad_keys, tiles.keys * sizes.sum_width_k);
  add(buffers.grad_values, tiles.keys * sizes.sum_width_v);
  add(buffers.key_totals,
      tiles.keys * sizes.key_sum_row() * static_cast<int64_t>(sizeof(double)) / compute_bytes(problem));
  add(buffers.grad_query, sizes.group * tiles.block_queries * sizes.width_q);
  return buffers;
}

}  // namespace

int64_t compute_bytes(const Problem& problem) { return problem.dtype == DType::float64 ? 8 : 4; }

double kept_scores(const Mask& mask, Range queries, int64_t length_q, int64_t length_k) {
  if (mask.keeps_all()) return static_cast<double>(queries.size()) * static_cast<double>(length_k);
  int64_t scores = 0;
  for (int64_t query = queries.begin; query < queries.end; ++query) {
    scores += mask.keys({query, query + 1}, length_q, length_k).size();
  }
  return static_cast<double>(scores);
}

/// Fills the order of the schedule if batch entries may have common keys whose gradient is wanted.
void order_by_keys(const Problem& problem, const Params& params, CpuSchedule& schedule) {
  const bool may_have_groups = problem.has_key_gaps || problem.has_batch_map;
  if (problem.direction == Direction::forward || !wants_keys(problem) || !may_have_groups) return;
  const Sequences& keys = params.keys;
  schedule.order.resize(static_cast<std::size_t>(problem.batch));
  std::iota(schedule.order.begin(), schedule.order.end(), int64_t{0});
  std::stable_sort(schedule.order.begin(), schedule.order.end(),
                   [&](int64_t a, int64_t b) { return keys.first_row(a) < keys.first_row(b); });
  schedule.ends_of_group.resize(schedule.order.size());
  std::size_t begin = 0;
  int64_t end_of_rows = 0;
  const auto end_group = [&](std::size_t end) {
    std::fill(schedule.ends_of_group.begin() + static_cast<std::ptrdiff_t>(begin),
              schedule.ends_of_group.begin() + static_cast<std::ptrdiff_t>(end), static_cast<int64_t>(end));
    begin = end;
  };
  for (std::size_t position = 0; position < schedule.order.size(); ++position) {
    const int64_t b = schedule.order[position];
    if (keys.first_row(b) >= end_of_rows) end_group(position);
    end_of_rows = std::max(end_of_rows, keys.first_row(b) + keys.size(b));
  }
  end_group(schedule.order.size());
}

CpuSchedule schedule_for_cpu(const Problem& problem, const Params& params, const Processor& processor) {
  CpuSchedule schedule;
  order_by_keys(problem, params, schedule);
  Cutter(problem, params, processor, schedule).cut();
  schedule.buffers = buffers_for(problem, schedule.tiles);
  return schedule;
}

}  // namespace gdpa::plan
