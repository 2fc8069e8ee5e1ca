// The CPU schedule covers every row exactly once, loads the threads evenly, stays within its memory budget for all
// lengths, and describes itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/cpu_plan.h"
#include "plan/cpu_units.h"
#include "plan/work.h"

namespace gdpa::plan {
namespace {

constexpr Processor two_threads{2, 1 << 20};
constexpr int64_t mebibyte = 1 << 20;

/// A problem of given lengths; owns the memory that Params points to.
struct Example {
  Problem problem;
  Params params;
  std::vector<int64_t> offsets_q;
  std::vector<int64_t> offsets_k;

  Example(Direction direction, const std::vector<int64_t>& lengths_q, const std::vector<int64_t>& lengths_k,
          int64_t heads_k, int64_t group, int64_t head_dim, const Mask& mask = Mask::all())
      : offsets_q(cumulative(lengths_q)), offsets_k(cumulative(lengths_k)) {
    problem.direction = direction;
    problem.batch = params.batch = static_cast<int64_t>(lengths_q.size());
    problem.heads_k = params.heads_k = heads_k;
    problem.heads_q = params.heads_q = heads_k * group;
    problem.head_dim = params.head_dim = problem.head_dim_v = params.head_dim_v = head_dim;
    problem.mask = params.mask = mask;
    problem.rows_q = offsets_q.back();
    problem.rows_k = offsets_k.back();
    params.queries = Sequences::cumulative(offsets_q.data(), true);
    params.keys = Sequences::cumulative(offsets_k.data(), true);
  }
  Example(const Example&) = delete;
  Example& operator=(const Example&) = delete;

  void share_queries(int64_t length) {
    problem.query_form = Form::shared;
    problem.rows_q = length;
    params.queries = {};
    params.queries.length = length;
  }
  void share_keys(int64_t length) {
    problem.key_form = Form::shared;
    problem.rows_k = length;
    params.keys = {};
    params.keys.length = length;
  }

  CpuSchedule schedule(const Processor& processor = two_threads) const {
    return schedule_for_cpu(problem, params, processor);
  }
  CpuSchedule schedule_of(const WantedGradients& wanted) const {
    Problem changed = problem;
    changed.wanted = wanted;
    return schedule_for_cpu(changed, params, two_threads);
  }
  Plan plan(const Processor& processor = two_threads) const { return plan_for_cpu(problem, params, processor); }

 private:
  static std::vector<int64_t> cumulative(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> offsets(lengths.size() + 1, 0);
    std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
    return offsets;
  }
};

std::vector<int64_t> random_lengths(std::size_t count, int64_t longest) {
  std::mt19937_64 random(7);
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) {
    length = static_cast<int64_t>(std::exponential_distribution<double>(6.0 / static_cast<double>(longest))(random));
    length = std::min(length, longest);
  }
  return lengths;
}

/// How often each (batch entry, head, row) is computed: rows[b][head][row].
using Coverage = std::map<std::tuple<int64_t, int64_t>, std::vector<int>>;

void cover(Coverage& coverage, int64_t b, int64_t head, Range rows, int64_t length) {
  std::vector<int>& counts = coverage[{b, head}];
  counts.resize(static_cast<std::size_t>(length), 0);
  const Range clipped = intersection(rows, {0, length});
  for (int64_t i = clipped.begin; i < clipped.end; ++i) ++counts[static_cast<std::size_t>(i)];
}

void expect_each_once(const Coverage& coverage) {
  for (const auto& [where, counts] : coverage) {
    for (int count : counts)
      ASSERT_EQ(count, 1) << "batch entry " << std::get<0>(where) << " head " << std::get<1>(where);
  }
}

/// The choices of at least one gradient.
std::vector<WantedGradients> choices_of_gradients() {
  std::vector<WantedGradients> choices;
  for (unsigned bits = 1; bits < 16; ++bits) {
    choices.push_back({(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, bits >> 3});
  }
  return choices;
}

/// Exactly one unit that computes dQ contains each pair of a query row and a key row. The same holds for dK and dV, and
/// for the terms of the gradients of tensors.
/// No unit computes a gradient that is not wanted, and no unit computes nothing. The test compares the areas of the
/// units with the area of all pairs.
void expect_gradients_covered_once(const Example& example, const WantedGradients& wanted) {
  const CpuSchedule schedule = example.schedule_of(wanted);
  const auto computes_query = [](const CpuUnit& unit) { return unit.grad_query; };
  const auto computes_keys = [](const CpuUnit& unit) { return unit.grad_key_value; };
  const auto computes_parameters = [&](const CpuUnit& unit) { return adds_parameters(unit, wanted); };
  const std::vector<std::tuple<std::function<bool(const CpuUnit&)>, bool>> kinds = {
      {computes_query, wanted.query},
      {computes_keys, wanted.key || wanted.value},
      {computes_parameters, wanted.parameters != 0}};
  for (const auto& [computes, is_wanted] : kinds) {
    std::map<std::tuple<int64_t, int64_t>, double> area;
    for (const CpuUnit& unit : schedule.units) {
      if (!computes(unit)) continue;
      for (int64_t b = unit.batch.begin; b < unit.batch.end; ++b) {
        const Range queries = intersection(unit.queries, {0, example.params.queries.size(b)});
        const Range keys = intersection(unit.keys, {0, example.params.keys.size(b)});
        for (int64_t head = unit.heads.begin; head < unit.heads.end; ++head) {
          area[{b, head}] += static_cast<double>(queries.size()) * static_cast<double>(keys.size());
        }
      }
    }
    for (int64_t b = 0; b < example.problem.batch; ++b) {
      for (int64_t head = 0; head < example.problem.heads_q; ++head) {
        const double expected =
            static_cast<double>(example.params.queries.size(b)) * static_cast<double>(example.params.keys.size(b));
        EXPECT_EQ((area[{b, head}]), is_wanted ? expected : 0) << "batch entry " << b << " head " << head;
      }
    }
  }
  for (const CpuUnit& unit : schedule.units) {
    EXPECT_TRUE(unit.grad_query || unit.grad_key_value || adds_parameters(unit, wanted));
    EXPECT_LE(unit.grad_query, wanted.query);
    EXPECT_LE(unit.grad_key_value, wanted.key || wanted.value);
    EXPECT_TRUE(wanted.query || unit.query_sum < 0);
    EXPECT_TRUE(wanted.key || wanted.value || unit.key_sum < 0);
  }
  const bool has_partial_sums = wanted.key || wanted.value || example.problem.shares_queries();
  EXPECT_TRUE(has_partial_sums || schedule.partial_elements == 0);
}

void expect_gradients_covered_once(const Example& example) {
  for (const WantedGradients& wanted : choices_of_gradients()) {
    SCOPED_TRACE(testing::Message() << "wanted: dQ " << wanted.query << ", dK " << wanted.key << ", dV " << wanted.value
                                    << ", tensors " << wanted.parameters);
    expect_gradients_covered_once(example, wanted);
  }
}

TEST(CpuSchedule, forward_units_own_every_query_row_once) {
  for (int64_t group : {1, 3, 20}) {
    const std::vector<int64_t> lengths = {0, 1, 63, 64, 65, 500, 513, 2000, 0};
    const Example example(Direction::forward, lengths, lengths, 2, group, 128);
    Coverage coverage;
    for (const CpuUnit& unit : example.schedule().units) {
      for (int64_t head = unit.heads.begin; head < unit.heads.end; ++head) {
        EXPECT_EQ(unit.key_head, head / group);
        for (int64_t b = unit.batch.begin; b < unit.batch.end; ++b) {
          if (example.params.queries.size(b) > 0)
            cover(coverage, b, head, unit.queries, example.params.queries.size(b));
        }
      }
    }
    EXPECT_EQ(coverage.size(), 7u * 2u * static_cast<std::size_t>(group));
    expect_each_once(coverage);
  }
}

TEST(CpuSchedule, small_entries_share_a_unit_and_the_list_stays_short) {
  const std::vector<int64_t> lengths(100'000, 2);
  for (Direction direction : {Direction::forward, Direction::backward}) {
    const Example example(direction, lengths, lengths, 2, 1, 64);
    EXPECT_LT(example.plan().units, 20'000);
  }
  const Example longest(Direction::forward, {100'000'000}, {100'000'000}, 1, 1, 64);
  EXPECT_LE(longest.plan().units, 2 * 50'000);
}

TEST(CpuSchedule, every_score_contributes_to_each_gradient_once) {
  const std::vector<int64_t> lengths = {5, 0, 700, 64, 3000};
  expect_gradients_covered_once(Example(Direction::backward, lengths, lengths, 2, 2, 128));
  expect_gradients_covered_once(Example(Direction::backward, {0, 3, 9}, {4, 0, 5}, 1, 1, 16));
  expect_gradients_covered_once(Example(Direction::backward, {16384}, {16384}, 1, 1, 128, Mask::causal()));
  expect_gradients_covered_once(Example(Direction::backward, {300'000}, {300'000}, 1, 2, 128));
  Example pooling(Direction::backward, random_lengths(50, 700), random_lengths(50, 700), 4, 1, 64);
  pooling.share_queries(4);
  expect_gradients_covered_once(pooling);
  Example feed_forward(Direction::backward, random_lengths(50, 700), random_lengths(50, 700), 4, 1, 64);
  feed_forward.share_keys(32);
  expect_gradients_covered_once(feed_forward);
}

TEST(CpuSchedule, an_operand_shared_by_the_batch_is_covered_once_even_where_partial_sums_do_not_fit) {
  Example keys(Direction::backward, {50, 70, 0, 90}, {0, 0, 0, 0}, 2, 1, 128);
  keys.share_keys(200'000);
  expect_gradients_covered_once(keys);
  EXPECT_EQ(keys.schedule().cut, CpuCut::separate);
  Example queries(Direction::backward, {0, 0, 0, 0}, {50, 70, 0, 90}, 2, 1, 128);
  queries.share_queries(400'000);
  expect_gradients_covered_once(queries);
  EXPECT_EQ(queries.schedule().cut, CpuCut::separate);
}

TEST(CpuSchedule, one_long_entry_among_many_short_ones_is_cut_where_the_batch_shares_an_operand) {
  std::vector<int64_t> lengths(40, 50);
  lengths[17] = 20'000;
  Example feed_forward(Direction::backward, lengths, lengths, 1, 1, 64);
  feed_forward.share_keys(64);
  expect_gradients_covered_once(feed_forward);
  const CpuSchedule schedule = feed_forward.schedule();
  double total = 0;
  for (const CpuUnit& unit : schedule.units) total += unit.cost;
  EXPECT_LT(schedule.units.front().cost, 0.5 * total);
}

TEST(CpuSchedule, units_that_share_a_gradient_have_sums_of_their_own) {
  const Example example(Direction::backward, {2048}, {2048}, 1, 1, 128);
  const CpuSchedule schedule = example.schedule();
  EXPECT_EQ(schedule.cut, CpuCut::partial);
  std::vector<int64_t> sums;
  for (const CpuUnit& unit : schedule.units) sums.push_back(unit.key_sum);
  std::sort(sums.begin(), sums.end());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], static_cast<int64_t>(i) * 2048 * 256);
  }
  int64_t rows = 0;
  for (const CpuReduction& reduction : schedule.reductions) {
    EXPECT_EQ(reduction.count, static_cast<int64_t>(sums.size()));
    rows += reduction.rows.size();
  }
  EXPECT_EQ(rows, 2048);
  EXPECT_EQ(schedule.partial_elements, static_cast<int64_t>(sums.size()) * 2048 * 256);
}

TEST(CpuSchedule, partial_sums_have_room_for_the_wanted_gradients_only) {
  const auto elements = [](WantedGradients wanted, bool shares_keys) {
    const std::vector<int64_t> lengths(shares_keys ? 4 : 1, 2048);
    Example example(Direction::backward, lengths, lengths, 1, 1, 128);
    example.problem.head_dim_v = example.params.head_dim_v = 64;
    example.problem.wanted = wanted;
    if (shares_keys) example.share_keys(2048);
    const CpuSchedule schedule = example.schedule();
    EXPECT_EQ(schedule.cut, CpuCut::partial);
    int64_t sums = 0;
    for (const CpuUnit& unit : schedule.units) sums += unit.key_sum >= 0 ? 1 : 0;
    return schedule.partial_elements / sums;
  };
  for (const bool shares_keys : {false, true}) {
    EXPECT_EQ(elements({true, true, true}, shares_keys), 2048 * (128 + 64));
    EXPECT_EQ(elements({true, true, false}, shares_keys), 2048 * 128);
    EXPECT_EQ(elements({false, false, true}, shares_keys), 2048 * 64);
  }
}

TEST(CpuSchedule, partial_sums_stay_within_their_memory_if_the_heads_of_a_group_have_sums_of_their_own) {
  for (const int64_t length : {256, 1000, 3000, 10'000, 40'000}) {
    for (const int64_t group : {1, 8, 64}) {
      const Processor many_threads{64, 1 << 20};
      const CpuSchedule schedule =
          Example(Direction::backward, {length}, {length}, 1, group, 128).schedule(many_threads);
      EXPECT_LE(schedule.partial_elements * 8, schedule.threads * many_threads.partial_bytes)
          << "length " << length << " group " << group;
    }
  }
}

TEST(CpuSchedule, buffers_of_a_thread_lie_one_after_the_other) {
  for (const auto& [head_dim, head_dim_v] : {std::pair<int64_t, int64_t>{128, 128}, {16, 200}, {200, 16}}) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      Example example(direction, {300}, {300}, 1, 3, head_dim);
      example.problem.head_dim_v = example.params.head_dim_v = head_dim_v;
      const CpuSchedule schedule = example.schedule();
      const CpuBuffers& at = schedule.buffers;
      const CpuTiles& tiles = schedule.tiles;
      const int64_t width_q = round_up(head_dim, cpu_vector), width_v = round_up(head_dim_v, cpu_vector);
      const int64_t scores = tiles.queries * tiles.keys;
      std::vector<std::pair<int64_t, int64_t>> buffers = {{at.keys_transposed, tiles.keys * width_q},
                                                          {at.scores, scores}};
      if (direction == Direction::forward) {
        buffers.insert(buffers.end(), {{at.values, tiles.keys * width_v},
                                       {at.query, tiles.block_queries * width_q},
                                       {at.output, tiles.block_queries * width_v},
                                       {at.product, tiles.queries * width_v}});
      } else {
        buffers.insert(buffers.end(), {{at.values_transposed, tiles.keys * width_v},
                                       {at.keys, tiles.keys * width_q},
                                       {at.derivatives, scores},
                                       {at.grad_scores, scores},
                                       {at.query, tiles.queries * width_q},
                                       {at.grad_output, tiles.queries * width_v},
                                       {at.product, tiles.queries * width_q},
                                       {at.grad_keys, tiles.keys * width_q},
                                       {at.grad_values, tiles.keys * width_v},
                                       {at.key_totals, 2 * tiles.keys * (width_q + width_v)},
                                       {at.grad_query, 3 * tiles.block_queries * width_q}});
      }
      std::sort(buffers.begin(), buffers.end());
      buffers.emplace_back(at.total, 0);
      for (std::size_t i = 0; i + 1 < buffers.size(); ++i) {
        EXPECT_LE(buffers[i].first + buffers[i].second, buffers[i + 1].first) << "buffer " << i;
      }
    }
  }
}

TEST(CpuSchedule, heads_that_read_the_same_keys_cost_about_what_heads_of_their_own_keys_cost) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const auto cost = [&](int64_t heads_k, int64_t group) {
      double total = 0;
      for (const CpuUnit& unit : Example(direction, {2000, 900}, {2000, 900}, heads_k, group, 64).schedule().units) {
        total += unit.cost;
      }
      return total;
    };
    EXPECT_NEAR(cost(1, 16), cost(16, 1), 0.3 * cost(16, 1));
    EXPECT_NEAR(cost(2, 8), cost(16, 1), 0.3 * cost(16, 1));
  }
}

TEST(CpuPlan, the_workspace_has_the_buffers_of_each_thread) {
  const Processor sixteen{16, 1 << 20};
  const std::vector<int64_t> lengths(64, 512);
  for (const DType dtype : {DType::float32, DType::float64}) {
    Example example(Direction::forward, lengths, lengths, 4, 1, 128);
    example.problem.dtype = dtype;
    const CpuSchedule schedule = example.schedule(sixteen);
    ASSERT_EQ(schedule.threads, 16);
    const int64_t buffers = 16 * schedule.buffers.total * (dtype == DType::float64 ? 8 : 4);
    EXPECT_GE(example.plan(sixteen).workspace_bytes, buffers);
    EXPECT_LT(example.plan(sixteen).workspace_bytes, buffers + mebibyte);
  }
}

TEST(CpuPlan, the_workspace_counts_partial_sums_as_the_doubles_that_they_are) {
  const Example example(Direction::backward, {4096}, {4096}, 1, 1, 64);
  const CpuSchedule schedule = example.schedule();
  ASSERT_GT(schedule.partial_elements, 0);
  EXPECT_GT(example.plan().workspace_bytes, 8 * schedule.partial_elements);
  EXPECT_LT(example.plan().workspace_bytes, 8 * schedule.partial_elements + 2 * 4 * schedule.buffers.total + mebibyte);
}

TEST(CpuSchedule, units_come_largest_first_and_fill_the_threads_evenly) {
  const Processor eight_threads{8, 1 << 20};
  const std::vector<std::vector<int64_t>> batches = {
      random_lengths(200, 800), {16384}, {512, 512, 512}, {4000, 30, 30}};
  for (const std::vector<int64_t>& lengths : batches) {
    for (Direction direction : {Direction::forward, Direction::backward}) {
      const Example example(direction, lengths, lengths, 3, 1, 128, Mask::causal());
      const CpuSchedule schedule = example.schedule(eight_threads);
      std::vector<double> loads(8, 0.0);
      double total = 0;
      double last = schedule.units.front().cost;
      for (const CpuUnit& unit : schedule.units) {
        EXPECT_LE(unit.cost, last);
        last = unit.cost;
        total += unit.cost;
        *std::min_element(loads.begin(), loads.end()) += unit.cost;
      }
      EXPECT_LE(*std::max_element(loads.begin(), loads.end()), 1.25 * total / 8) << lengths.size();
    }
  }
}

TEST(CpuSchedule, memory_stays_below_64_MiB_a_thread_at_any_length) {
  for (Direction direction : {Direction::forward, Direction::backward}) {
    for (int64_t length : {1000, 16384, 100'000, 1'000'000, 50'000'000}) {
      for (int64_t group : {1, 16}) {
        for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
          for (int sharing : {0, 1, 2}) {
            const std::vector<int64_t> lengths(3, length);
            Example example(direction, lengths, lengths, 2, group, 256);
            example.problem.dtype = dtype;
            if (sharing == 1) example.share_queries(length);
            if (sharing == 2) example.share_keys(length);
            const Plan plan = example.plan();
            EXPECT_LT(plan.workspace_bytes, plan.threads * 64 * mebibyte)
                << "length " << length << " group " << group << " " << name(dtype) << " sharing " << sharing;
          }
        }
      }
    }
  }
}

TEST(CpuSchedule, a_problem_of_one_row_wakes_nobody) {
  for (Direction direction : {Direction::forward, Direction::backward}) {
    const Example example(direction, {1}, {1}, 4, 1, 128);
    EXPECT_EQ(example.plan().threads, 1);
  }
}

TEST(CpuSchedule, no_more_threads_than_asked_for_or_than_there_are) {
  Example example(Direction::forward, std::vector<int64_t>(64, 512), std::vector<int64_t>(64, 512), 4, 1, 128);
  const Processor sixteen{16, 1 << 20};
  EXPECT_EQ(example.plan(sixteen).threads, 16);
  example.problem.threads = 3;
  EXPECT_EQ(example.plan(sixteen).threads, 3);
  EXPECT_EQ(example.plan(two_threads).threads, 2);
}

TEST(CpuSchedule, empty_problems_have_no_units_but_shared_gradients_are_still_written) {
  EXPECT_TRUE(Example(Direction::forward, {0, 0}, {5, 0}, 1, 1, 8).schedule().units.empty());
  EXPECT_EQ(Example(Direction::backward, {0, 0}, {5, 0}, 1, 1, 8).schedule().units.size(), 1u);
  Example nobody(Direction::backward, {}, {}, 2, 1, 8);
  nobody.share_keys(7);
  const CpuSchedule schedule = nobody.schedule();
  EXPECT_TRUE(schedule.units.empty());
  ASSERT_EQ(schedule.reductions.size(), 2u);
  EXPECT_EQ(schedule.reductions[0].count, 0);
  EXPECT_EQ(schedule.reductions[0].rows.size(), 7);
}

TEST(CpuSchedule, wide_heads_get_tiles_that_fit_the_cache) {
  const Example narrow(Direction::backward, {512}, {512}, 4, 1, 64);
  const Example wide(Direction::backward, {512}, {512}, 4, 1, 512);
  EXPECT_GT(narrow.schedule().tiles.keys, wide.schedule().tiles.keys);
}

TEST(KeptScores, counts_the_pairs_of_the_mask) {
  for (Diagonal diagonal : {Diagonal::bottom_right, Diagonal::upper_left}) {
    for (int64_t left : {-1, 0, 3, 40}) {
      for (int64_t right : {-1, 0, 2, 50}) {
        for (int64_t length_q : {1, 10, 64, 130}) {
          for (int64_t length_k : {0, 1, 33, 100}) {
            const Mask mask{left, right, diagonal};
            const Range queries{length_q / 5, length_q};
            double expected = 0;
            for (int64_t i = queries.begin; i < queries.end; ++i) {
              expected += static_cast<double>(mask.keys({i, i + 1}, length_q, length_k).size());
            }
            EXPECT_EQ(kept_scores(mask, queries, length_q, length_k), expected)
                << left << " " << right << " " << length_q << " " << length_k;
          }
        }
      }
    }
  }
}

TEST(CpuPlan, counts_the_products_and_the_traffic_of_the_definition) {
  const Example forward(Direction::forward, {100, 50}, {100, 50}, 2, 1, 64);
  EXPECT_EQ(forward.plan().flops, 2.0 * (64 + 64) * 2 * (100 * 100 + 50 * 50));
  EXPECT_EQ(forward.plan().bytes, 4.0 * 4 * 150 * 2 * 64);
  const Example causal(Direction::backward, {100}, {100}, 1, 1, 64, Mask::causal());
  EXPECT_EQ(causal.plan().flops, 2.0 * 5 * 64 * (100 * 101 / 2));
}

TEST(CpuPlan, counts_each_operand_with_its_own_heads_rows_and_columns) {
  constexpr double scores = 6 * (100 * 30 + 50 * 70), q = 150 * 6 * 64, k = 100 * 2 * 64, v = 100 * 2 * 40,
                   o = 150 * 6 * 40;
  Example example(Direction::forward, {100, 50}, {30, 70}, 2, 3, 64);
  example.problem.head_dim_v = example.params.head_dim_v = 40;
  EXPECT_EQ(example.plan().flops, 2.0 * scores * (64 + 40));
  EXPECT_EQ(example.plan().bytes, 4.0 * (q + k + v + o));
  example.problem.direction = Direction::backward;
  for (const WantedGradients& wanted : choices_of_gradients()) {
    example.problem.wanted = wanted;
    const bool needs_dp = wanted.query || wanted.key || wanted.parameters != 0;
    const double columns = 64 * (1 + wanted.query + wanted.key) + 40 * (needs_dp + wanted.value);
    EXPECT_EQ(flops_of(example.problem, example.params), 2.0 * scores * columns);
    EXPECT_EQ(traffic_of(example.problem, example.params),
              4.0 * (q + k + v + o + wanted.query * q + wanted.key * k + wanted.value * v));
  }
}

TEST(CpuPlan, says_which_schedule_and_why) {
  const Plan many =
      Example(Direction::backward, std::vector<int64_t>(100, 200), std::vector<int64_t>(100, 200), 4, 1, 64).plan();
  EXPECT_EQ(many.schedule, "whole sequences");
  const Plan one = Example(Direction::backward, {4096}, {4096}, 1, 1, 64).plan();
  EXPECT_EQ(one.schedule, "partial sums");
  const Plan longest = Example(Direction::backward, {2'000'000}, {2'000'000}, 1, 1, 64).plan();
  EXPECT_EQ(longest.schedule, "separate gradients");
  for (const Plan& plan : {many, one, longest}) {
    EXPECT_NE(to_string(plan).find(plan.reason), std::string::npos);
    EXPECT_NE(to_string(plan).find(plan.schedule), std::string::npos);
  }
}

TEST(CpuPlan, the_reason_names_the_gradients_that_are_wanted) {
  const auto reason = [](WantedGradients wanted, std::size_t batch, int64_t length) {
    Example example(Direction::backward, std::vector<int64_t>(batch, length), std::vector<int64_t>(batch, length), 4, 1,
                    64);
    example.problem.wanted = wanted;
    return example.plan().reason;
  };
  const auto ends_with = [](const std::string& text, const std::string& end) { return text.ends_with(end); };
  EXPECT_PRED2(ends_with, reason({true, true, true}, 100, 200), "each unit computes dQ, dK and dV of one");
  EXPECT_PRED2(ends_with, reason({false, true, true}, 100, 200), "each unit computes dK and dV of one");
  EXPECT_PRED2(ends_with, reason({true, false, false}, 100, 200), "each unit computes dQ of some queries");
  EXPECT_PRED2(ends_with, reason({true, true, true}, 1, 2'000'000),
               "some units own dQ and others dK and dV, and scores are computed twice");
  EXPECT_PRED2(ends_with, reason({true, false, true}, 1, 2'000'000),
               "some units own dQ and others dV, and scores are computed twice");
  EXPECT_PRED2(ends_with, reason({false, true, false}, 1, 2'000'000), "each unit alone computes dK of its rows");
}

}  // namespace
}  // namespace gdpa::plan
