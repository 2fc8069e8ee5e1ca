// The GPU plan: which kernels a call gets, how many CTAs, and where the sums lie. No GPU is needed.
#include "gpu/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/window_mask.cuh"
#include "expression/function.h"
#include "gdpa/attention.h"
#include "gdpa/error.h"
#include "gpu_calls.h"
#include "hopper/key_tile.cuh"

namespace gdpa::gpu {
namespace {

using Names = std::vector<std::string>;

Problem problem_of(Direction direction, DType dtype = DType::bfloat16, int64_t head_dim = 128) {
  Problem problem;
  problem.direction = direction;
  problem.dtype = dtype;
  problem.batch = 10;
  problem.heads_q = 4;
  problem.heads_k = 2;
  problem.head_dim = problem.head_dim_v = head_dim;
  problem.rows_q = 1000;
  problem.rows_k = 3000;
  return problem;
}

/// The plan of the portable kernels.
GpuPlan plan_of(const Problem& problem, const char* function = plain) {
  return TestCall{.problem = problem, .activation = Activation(function), .has_tensor_maps = false}.plan();
}

TEST(GpuPlan, ForwardIsOneKernelWithoutMemory) {
  const GpuPlan plan = plan_of(problem_of(Direction::forward));
  EXPECT_EQ(names_of(plan), Names{"forward"});
  EXPECT_EQ(plan.workspace.bytes(), 0);
  EXPECT_TRUE(plan.deterministic);
}

TEST(GpuPlan, JaggedWorkIsBoundedByTheRowsAndTheBatch) {
  const GpuPlan plan = plan_of(problem_of(Direction::forward));
  EXPECT_EQ(launch_of<PortableForward>(plan).ctas(), 4 * (1000 / plan.tile_queries + 10 + 2));
}

TEST(GpuPlan, BackwardNeedsOneFp32SumOfDQ) {
  const Problem problem = problem_of(Direction::backward);
  const GpuPlan plan = plan_of(problem);
  EXPECT_EQ(names_of(plan), (Names{"backward", "reduce"}));
  EXPECT_EQ(plan.grad_query.offset, 0);
  EXPECT_EQ(plan.workspace.bytes(), 1000 * 4 * 128 * 4);
  EXPECT_EQ(end_of_cleared(plan, problem), plan.workspace.bytes());
  EXPECT_FALSE(plan.deterministic);
}

TEST(GpuPlan, DeterministicModeNeedsNoSumsAndAddsAKernel) {
  Problem problem = problem_of(Direction::backward);
  problem.deterministic = true;
  const GpuPlan plan = plan_of(problem);
  EXPECT_EQ(names_of(plan), (Names{"backward", "backward_query"}));
  EXPECT_FALSE(kernel_of<PortableBackward>(plan).reduce_grad_query);
  EXPECT_EQ(plan.workspace.bytes(), 0);
  EXPECT_TRUE(plan.deterministic);
}

TEST(GpuPlan, SharedKeysAreSummedInSlabsThatFillTheDevice) {
  Problem problem = problem_of(Direction::backward);
  problem.key_form = Form::shared;
  problem.rows_k = 64;
  const GpuPlan plan = plan_of(problem);
  EXPECT_EQ(plan.splits, 10);  // the number of entries: 2 heads of 1 tile would leave most of the device idle
  EXPECT_GE(plan.grad_key.offset, end_of_cleared(plan, problem));
  EXPECT_EQ(plan.workspace.bytes() - plan.grad_key.offset, 2 * 10 * 64 * 2 * 128 * 4);
}

TEST(GpuPlan, ASharedQueryIsSummedInSlabsWithoutAdditionsThatWaitForEachOther) {
  Problem problem = problem_of(Direction::backward);
  problem.query_form = Form::shared;
  problem.rows_q = 4;
  const GpuPlan plan = plan_of(problem);
  EXPECT_EQ(names_of(plan), (Names{"backward", "backward_query", "reduce"}));
  EXPECT_TRUE(kernel_of<PortableBackwardQuery>(plan).queries_shared);
  EXPECT_EQ(end_of_cleared(plan, problem), 0);
  EXPECT_TRUE(plan.deterministic);
}

/// GPUs that differ in shared memory or in the decisions of the planner.
std::vector<Gpu> gpus() {
  return {{108, 80, 163 * 1024}, {84, 86, 99 * 1024}, {132, 90, 227 * 1024}, {148, 100, 227 * 1024}};
}

/// Calls visit(gpu, kernel) for the portable attention kernels of every plan: each type, pair of head dims, direction
/// and mode.
template <class Visit>
void visit_kernels(Visit visit) {
  for (const char* const function : {plain, with_long_steps}) {
    const Activation activation(function);
    const Expressions expressions(activation.function());
    for (const Gpu& gpu : gpus()) {
      for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
        for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
          for (int64_t head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
            for (const bool deterministic : {false, true}) {
              for (const Direction direction : {Direction::forward, Direction::backward}) {
                Problem problem = problem_of(direction, dtype, head_dim);
                problem.head_dim_v = head_dim_v;
                problem.deterministic = deterministic;
                for (const Form key_form : {Form::jagged, Form::shared}) {
                  problem.key_form = key_form;
                  const Params params;
                  const GpuPlan plan = plan_call({problem, params, expressions, gpu, true, false});
                  for (const Launch* const launch : kernels_of(plan)) {
                    visit_portable(launch->kernel(), [&](const auto& kernel) { visit(gpu, kernel); });
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(GpuPlan, EveryProblemHasDeterministicKernels) {
  const std::vector<Form> forms = {Form::jagged, Form::dense, Form::shared};
  for (const Gpu& gpu : gpus()) {
    for (const int64_t head_dim : {64, 128, 256}) {
      for (const Form query_form : forms) {
        for (const Form key_form : forms) {
          for (const Mask& mask : {Mask::all(), Mask::causal()}) {
            for (const bool has_tensor_maps : {true, false}) {
              Problem problem = problem_of(Direction::backward, DType::bfloat16, head_dim);
              problem.query_form = query_form;
              problem.key_form = key_form;
              problem.mask = mask;
              problem.deterministic = true;
              const TestCall call{.problem = problem, .gpu = gpu, .has_tensor_maps = has_tensor_maps};
              EXPECT_TRUE(call.plan().deterministic);
            }
          }
        }
      }
    }
  }
}

TEST(GpuPlan, TilesAreMultiplesOfWhatTheirWarpsTake) {
  visit_kernels([]<class Spec>(const Gpu&, const Spec& kernel) {
    const bool owns_keys = std::same_as<Spec, PortableBackward>;
    ASSERT_EQ((owns_keys ? kernel.tile_keys : kernel.tile_queries) % (16 * kernel.warps), 0);
    ASSERT_EQ((owns_keys ? kernel.tile_queries : kernel.tile_keys) % 16, 0);
  });
}

/// The registers of a thread for accumulators alone.
template <class Spec>
int accumulator_registers(Spec kernel) {
  if constexpr (std::same_as<Spec, PortableBackward>) kernel.keys_shared = false;  // out_scale of each entry
  return kernel.needs().registers;
}

TEST(GpuPlan, EveryTileFitsTheSharedMemoryOfItsGpuAndTheRegistersOfAThread) {
  visit_kernels([](const Gpu& gpu, const auto& kernel) {
    constexpr int64_t reserved = 1024;
    const int64_t bytes = kernel.needs().shared_bytes + portable_static_shared_bytes;
    ASSERT_LE(bytes, gpu.shared_bytes);
    ASSERT_LE(kernel.ctas * (bytes + reserved), gpu.shared_bytes + reserved);
    ASSERT_LE(accumulator_registers(kernel), 192);
    ASSERT_LE(kernel.ctas * kernel.warps * kernel.column_warps, 8);  // 255 registers for each thread
  });
}

TEST(GpuPlan, TheMeasuredTilesOfHopperStay) {
  for (const int64_t head_dim : {64, 128}) {
    Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
    const auto forward = kernel_of<PortableForward>(plan_of(problem));
    EXPECT_EQ(forward.tile_queries, 128);
    EXPECT_EQ(forward.tile_keys, head_dim == 64 ? 64 : 32);
    EXPECT_EQ(forward.warps, 4);
    EXPECT_EQ(forward.ctas, 2);
    problem.direction = Direction::backward;
    const auto backward = kernel_of<PortableBackward>(plan_of(problem));
    EXPECT_EQ(backward.tile_queries, 64);
    EXPECT_EQ(backward.tile_keys, 128);
    EXPECT_EQ(backward.warps * backward.column_warps, 8);
    EXPECT_EQ(backward.column_warps, head_dim == 64 ? 1 : 2);
  }
}

TEST(GpuPlan, AFunctionThatTakesManyRegistersGetsANarrowerTile) {
  const Problem problem = problem_of(Direction::backward);
  EXPECT_LT(plan_of(problem, with_long_steps).tile_queries, plan_of(problem, plain).tile_queries);
}

TEST(GpuPlan, AFunctionNeedsManyRegistersForLongStepsOfTheAccuracyOfTheCallAndForReads) {
  const auto needs_many = [](const Activation& activation, Accuracy accuracy) {
    Problem problem = problem_of(Direction::backward);
    problem.accuracy = accuracy;
    return needs_many_registers({problem, {}, activation.function(), {}});
  };
  EXPECT_TRUE(needs_many(Activation("gelu"), Accuracy::exact)) << "erf";
  EXPECT_FALSE(needs_many(Activation("gelu"), Accuracy::fast));
  EXPECT_FALSE(needs_many(Activation("silu"), Accuracy::exact));
  EXPECT_TRUE(needs_many(Activation("abs(s)^1.7"), Accuracy::fast));
  EXPECT_TRUE(needs_many(Activation("silu(s + t[kv_idx])", {}, {"t"}), Accuracy::fast));
  EXPECT_FALSE(needs_many(Activation("silu(t * s)", {}, {"t"}), Accuracy::fast)) << "one number for each head";
}

TEST(GpuPlan, AnEmptyBatchHasANumberForTheCtaOfTheFirstPass) {
  Problem problem = problem_of(Direction::forward);
  problem.batch = problem.rows_q = 0;
  problem.query_form = Form::dense;
  problem.rows_k = 100'000;
  problem.deterministic = true;  // a call of few scores has one pass otherwise
  const GpuPlan plan = TestCall{.problem = problem, .activation = Activation(with_guards)}.plan();
  ASSERT_EQ(names_of(plan), (Names{"forward", "forward"})) << plan.reason;
  EXPECT_GE(plan.workspace.bytes(), static_cast<int64_t>(sizeof(int)));
}

TEST(GpuPlan, ACallOfFewScoresIsExact) {
  Problem problem = problem_of(Direction::forward, DType::float16);
  problem.heads_q = problem.heads_k = 4;
  problem.batch = 8;
  const auto accuracy_of_rows = [&](Form queries, Form keys, int64_t rows_q, int64_t rows_k) {
    problem.query_form = queries;
    problem.key_form = keys;
    problem.rows_q = rows_q;
    problem.rows_k = rows_k;
    return accuracy_of(problem);
  };
  EXPECT_EQ(accuracy_of_rows(Form::jagged, Form::jagged, 32, 32), Accuracy::exact);
  EXPECT_EQ(accuracy_of_rows(Form::jagged, Form::jagged, 32, 33), Accuracy::fast) << "one sequence may have all keys";
  EXPECT_EQ(accuracy_of_rows(Form::dense, Form::dense, 32, 256), Accuracy::exact) << "32 keys for each query";
  EXPECT_EQ(accuracy_of_rows(Form::dense, Form::dense, 32, 264), Accuracy::fast);
  EXPECT_EQ(accuracy_of_rows(Form::shared, Form::jagged, 4, 32), Accuracy::exact) << "4 queries for each entry";
  EXPECT_EQ(accuracy_of_rows(Form::shared, Form::jagged, 5, 32), Accuracy::fast);
  EXPECT_EQ(accuracy_of_rows(Form::jagged, Form::shared, 32, 32), Accuracy::exact);
  EXPECT_EQ(accuracy_of_rows(Form::jagged, Form::jagged, int64_t{1} << 40, int64_t{1} << 40), Accuracy::fast);
  problem.deterministic = true;
  EXPECT_EQ(accuracy_of_rows(Form::jagged, Form::jagged, 1, 1), Accuracy::fast) << "as in a larger batch";
  problem.accuracy = Accuracy::exact;
  EXPECT_EQ(accuracy_of_rows(Form::jagged, Form::jagged, 100, 100), Accuracy::exact);
  problem.accuracy = Accuracy::fast;
  problem.dtype = DType::float32;
  EXPECT_EQ(accuracy_of(problem), Accuracy::exact);
}

TEST(GpuPlan, AGpuWithTooLittleSharedMemoryIsAnErrorThatSaysHowMuch) {
  const Problem problem = problem_of(Direction::backward, DType::float32, 256);
  try {
    TestCall{.problem = problem, .gpu = {.shared_bytes = 48 * 1024}}.plan();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("at least 67 KB of shared memory, got 48 KB"), std::string::npos)
        << error.what();
  }
}

TEST(GpuPlan, Float32TakesOneProductWhereAllowed) {
  Problem problem = problem_of(Direction::forward, DType::float32);
  EXPECT_EQ(kernel_of<PortableForward>(plan_of(problem)).element, GpuElement::float32);
  problem.allow_tf32 = true;
  EXPECT_EQ(kernel_of<PortableForward>(plan_of(problem)).element, GpuElement::tensor_float32);
}

GpuPlan hopper_plan_of(const Problem& problem, const char* function = plain) {
  return TestCall{.problem = problem, .activation = Activation(function)}.plan();
}

TEST(GpuPlan, HopperGetsItsOwnForwardOfOneCtaForEachMultiprocessor) {
  Problem problem = problem_of(Direction::forward);
  problem.rows_q = 100'000;
  const GpuPlan plan = hopper_plan_of(problem);
  ASSERT_EQ(names_of(plan).size(), 1U);
  EXPECT_EQ(launch_of<HopperForward>(plan).ctas(), Gpu{}.multiprocessors);
  problem.rows_q = 100;
  problem.batch = 1;
  EXPECT_EQ(launch_of<HopperForward>(hopper_plan_of(problem)).ctas(), problem.heads_q * 3);
}

/// Expects portable kernels where the Hopper kernels cannot compute a problem.
void expect_portable(const GpuPlan& plan, const char* why) {
  EXPECT_EQ(main_family(plan), "portable") << why;
  expect_family(plan, "portable");
  EXPECT_NE(plan.reason.find(why), std::string::npos) << plan.reason;
}

TEST(GpuPlan, WhatTheHopperForwardDoesNotTakeIsPortableAndThePlanSaysWhy) {
  const Problem problem = problem_of(Direction::forward);
  expect_portable(TestCall{.problem = problem, .gpu = {.capability = 100}}.plan(), "compute capability 9.0, not 10.0");
  expect_portable(TestCall{.problem = problem, .aligned = false}.plan(), "16 bytes");
  expect_portable(TestCall{.problem = problem, .has_tensor_maps = false}.plan(), "strides");
  expect_portable(hopper_plan_of(problem_of(Direction::forward, DType::float32)), "bfloat16 and float16");
}

/// Keys in pages of `page_rows` rows, whose table has 960 rows for each batch entry.
Problem paged_problem(int64_t page_rows, int64_t head_dim = 128) {
  Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
  problem.key_form = Form::dense;
  problem.page_rows = page_rows;
  problem.rows_k = 960 * problem.batch;
  return problem;
}

TEST(GpuPlan, HopperLoadsKeysInPagesInTheLargestBoxesThatDividePagesAndTiles) {
  struct Boxes {
    int64_t page_rows, head_dim;
    int tile_keys, box_keys;
  };
  for (const Boxes& boxes : {Boxes{64, 128, 128, 64}, Boxes{256, 128, 128, 128}, Boxes{16, 128, 128, 16},
                             Boxes{48, 128, 128, 16}, Boxes{48, 64, 192, 48}, Boxes{256, 64, 192, 64},
                             // 12 boxes of 16 keys would need too many registers.
                             Boxes{16, 64, 128, 16}, Boxes{64, 256, 80, 16}}) {
    const GpuPlan plan = hopper_plan_of(paged_problem(boxes.page_rows, boxes.head_dim));
    const auto& kernel = kernel_of<HopperForward>(plan);
    EXPECT_EQ(kernel.tile_keys, boxes.tile_keys) << boxes.page_rows << ", " << boxes.head_dim;
    EXPECT_EQ(kernel.box_keys, boxes.box_keys) << boxes.page_rows << ", " << boxes.head_dim;
    EXPECT_NE(
        plan.reason.find(fmt::format("TMA loads {} keys at a time from pages of {}", boxes.box_keys, boxes.page_rows)),
        std::string::npos)
        << plan.reason;
  }
  EXPECT_EQ(kernel_of<HopperForward>(hopper_plan_of(problem_of(Direction::forward))).box_keys, 0);
}

hopper::ForwardArguments forward_arguments(const Problem& problem, const char* function = plain) {
  return arguments_of<HopperForward>(hopper_plan_of(problem, function), problem);
}

/// The tile order finds ranges of equal cost by cumulative lengths, which pages do not have.
TEST(GpuPlan, ACtaTakesTilesFromTheWholeBatchIfKeysAreInPages) {
  Problem problem = paged_problem(64);
  problem.query_form = Form::dense;
  problem.rows_q = 64 * problem.batch;
  EXPECT_NE(forward_arguments(problem).tiles.order, pipeline::TileOrder::contiguous);
  problem.page_rows = 0;
  EXPECT_EQ(forward_arguments(problem).tiles.order, pipeline::TileOrder::contiguous);
}

TEST(GpuPlan, PagesThatTmaCannotAddressArePortableAndThePlanSaysWhy) {
  const GpuPlan plan = TestCall{.problem = paged_problem(64), .has_tensor_maps = false}.plan();
  EXPECT_TRUE(kernel_of<PortableForward>(plan).has_pages);
  EXPECT_NE(plan.reason.find("two pages have to be a whole number of rows apart"), std::string::npos) << plan.reason;
}

/// The part of a plan of backward on Hopper that its kernels find in their arguments.
HopperBackwardPlan part_of(const GpuPlan& plan, const Problem& problem) {
  const auto arguments = arguments_of<KeySchedule>(plan, problem);
  HopperBackwardPlan part;
  part.slot_counter = offset_of(arguments.slots_taken);
  part.key_tiles = offset_of(arguments.key_tiles);
  part.slots = arguments.slots;
  part.segments = offset_of(arguments.segments);
  part.most_key_tiles = arguments.most_key_tiles;
  part.dq_semaphores = offset_of(arguments.dq_semaphores);
  part.semaphores_per_head = arguments.semaphores_per_head;
  part.heads_per_group = arguments.heads_per_group;
  part.grad_query = offset_of(arguments.grad_query_accumulators);
  part.whole_keys = arguments.whole_keys;
  part.direct_keys = arguments.direct_keys;
  part.prepares_grad_query = arguments.prepares_grad_query;
  return part;
}
HopperBackwardPlan hopper_part_of(const Problem& problem) { return part_of(hopper_plan_of(problem), problem); }

TEST(GpuPlan, HopperGetsItsOwnBackwardBehindAScheduleOfItsTilesOfKeys) {
  Problem problem = problem_of(Direction::backward);
  const GpuPlan plan = hopper_plan_of(problem);
  ASSERT_EQ(names_of(plan), (Names{"key_schedule", "backward"}));
  expect_family(plan, "hopper");
  for (const HopperBackwardKernel& kernel : hopper_backward_kernels(plan)) {
    EXPECT_EQ(kernel.tile_queries, 64);
    EXPECT_EQ(kernel.tile_keys, 128);
  }
  EXPECT_FALSE(plan.deterministic);

  // A CTA of the schedule kernel handles 64 slots of the table, and prepares dQ of 64 tiles of queries.
  const auto ctas = [](int64_t places) { return (places + 63) / 64; };
  const int64_t slots = part_of(plan, problem).slots;
  EXPECT_EQ(slots, 2 * (3000 / 128 + 10 + 2));  // no more tiles than these, however the rows are cut
  EXPECT_EQ(launch_of<KeySchedule>(plan).ctas(), ctas(4 * (1000 / 64 + 10 + 2)));
  EXPECT_EQ(launch_of<HopperBackward>(plan).ctas(), slots);
  problem.rows_q = 100;
  EXPECT_EQ(launch_of<KeySchedule>(hopper_plan_of(problem)).ctas(), ctas(slots));
  problem.rows_k = 100'000;
  EXPECT_EQ(launch_of<HopperBackward>(hopper_plan_of(problem)).ctas(), Gpu{}.multiprocessors);
}

/// All kernels of the call have the same arguments, in particular the same table and accumulators.
TEST(GpuPlan, TheKernelsOfTheHopperBackwardShareTheirPartsOfTheWorkspace) {
  Problem problem = problem_of(Direction::backward);
  problem.query_form = Form::shared;
  const GpuPlan plan = hopper_plan_of(problem);
  const HopperBackwardPlan part = part_of(plan, problem);
  EXPECT_GE(part.grad_query, 0);
  for (const auto& of : {arguments_of<HopperBackward>(plan, problem), arguments_of<RoundGradQuery>(plan, problem)}) {
    EXPECT_EQ(offset_of(of.key_tiles), part.key_tiles);
    EXPECT_EQ(offset_of(of.slots_taken), part.slot_counter);
    EXPECT_EQ(offset_of(of.grad_query_accumulators), part.grad_query);
    EXPECT_TRUE(of.queries_shared);
  }
}

TEST(GpuPlan, TheHopperBackwardTakesTwiceAsManyQueriesAtOnceWhereSequencesAreLongAndHeadDimsSmall) {
  Problem problem = problem_of(Direction::backward, DType::bfloat16, 64);
  problem.rows_q = 512 * problem.batch;
  const auto expect_tile = [](const Problem& of, int tile_queries) {
    const GpuPlan plan = hopper_plan_of(of);
    for (const HopperBackwardKernel& kernel : hopper_backward_kernels(plan)) {
      EXPECT_EQ(kernel.tile_queries, tile_queries) << plan.reason;
    }
    const int64_t tiles = of.rows_q / tile_queries + of.batch + 2;
    if (kernel_of<KeySchedule>(plan).has_dq_semaphores) {
      EXPECT_EQ(part_of(plan, of).semaphores_per_head, tiles);
    }
  };
  expect_tile(problem, 128);
  EXPECT_EQ(kernel_of<HopperBackward>(hopper_plan_of(problem, with_long_steps)).tile_queries, 64);
  Problem deterministic = problem;
  deterministic.deterministic = true;
  expect_tile(deterministic, 128);
  Problem shorter = problem;
  shorter.rows_q -= 1;
  expect_tile(shorter, 64);
  Problem shares_keys = shorter;  // its queries are one long stream
  shares_keys.key_form = Form::shared;
  expect_tile(shares_keys, 128);
  Problem masked = problem;
  masked.mask = Mask::causal();
  expect_tile(masked, 64);
  for (const auto& [head_dim, head_dim_v] : {std::pair{72, 64}, std::pair{64, 72}, std::pair{128, 128}}) {
    Problem wider = problem;
    wider.head_dim = head_dim;
    wider.head_dim_v = head_dim_v;
    expect_tile(wider, 64);
  }
}

TEST(GpuPlan, SumsOfDQAreBegunAndEndedByTilesOfKeysUnlessTheBatchSharesTheQueries) {
  const auto expect_begun = [](const Problem& problem, bool begun) {
    const GpuPlan plan = hopper_plan_of(problem);
    const HopperBackwardPlan part = part_of(plan, problem);
    EXPECT_GE(part.grad_query, 0);
    EXPECT_EQ(kernel_of<KeySchedule>(plan).has_dq_semaphores, begun);
    EXPECT_EQ(kernel_of<HopperBackward>(plan).has_dq_semaphores, begun);
    EXPECT_EQ(count_of<RoundGradQuery>(plan), begun ? 0U : 1U);
    EXPECT_EQ(part.dq_semaphores >= 0, begun);
  };
  Problem problem = problem_of(Direction::backward);
  problem.rows_k = 100'000;
  for (const bool deterministic : {false, true}) {
    problem.deterministic = deterministic;
    for (const Mask& mask : {Mask{}, Mask::causal()}) {
      problem.mask = mask;
      expect_begun(problem, true);
    }
  }
  problem = problem_of(Direction::backward);
  problem.query_form = Form::shared;  // other sequences add to the same sums
  expect_begun(problem, false);
  problem = problem_of(Direction::backward);
  problem.key_form = Form::shared;
  problem.rows_k = 600;
  for (const bool deterministic : {false, true}) {
    problem.deterministic = deterministic;
    expect_begun(problem, true);
  }
}

/// Dense sequences of so many keys, of 2 heads.
Problem dense_keys(int64_t batch, int64_t length) {
  Problem problem = problem_of(Direction::backward);
  problem.batch = batch;
  problem.query_form = problem.key_form = Form::dense;
  problem.rows_q = batch * 100;
  problem.rows_k = batch * length;
  return problem;
}

TEST(GpuPlan, ABackwardTileHas64KeysWhereTheHostKnowsThatNoSequenceHasMore) {
  const auto expect_keys = [](const Problem& problem, int tile_keys) {
    const GpuPlan plan = hopper_plan_of(problem);
    EXPECT_EQ(count_of<HopperBackward>(plan), 1U) << plan.reason;
    for (const HopperBackwardKernel& kernel : hopper_backward_kernels(plan)) EXPECT_EQ(kernel.tile_keys, tile_keys);
  };
  expect_keys(dense_keys(10, 64), 64);
  expect_keys(dense_keys(10, 65), 128);
  Problem jagged = dense_keys(10, 64);
  jagged.key_form = Form::jagged;
  expect_keys(jagged, 128);
  Problem mapped = dense_keys(10, 64);
  mapped.has_batch_map = true;
  mapped.mapped_entries = 5;
  mapped.rows_k = 5 * 64;
  expect_keys(mapped, 64);
  mapped.rows_k = 5 * 65;
  expect_keys(mapped, 128);
}

TEST(GpuPlan, SumsOfDQFollowTheLengthOfTheMappedSequencesOfKeys) {
  Problem problem = dense_keys(10, 100);
  problem.has_batch_map = true;
  problem.mapped_entries = 5;  // of 200 keys each, which are two tiles
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_TRUE(kernel_of<HopperBackward>(plan).has_dq_semaphores) << plan.reason;
}

/// A CTA with 64 query tiles would leave multiprocessors idle if query tiles are few.
TEST(GpuPlan, AllMultiprocessorsClearAndRoundTheAccumulators) {
  const auto ctas_with = [](int64_t batch, int64_t head_dim) {
    // 100 queries, and therefore two query tiles of 64 for each head.
    Problem problem = dense_keys(batch, 64);
    problem.head_dim = problem.head_dim_v = head_dim;
    const GpuPlan plan = hopper_plan_of(problem);
    return std::array{launch_of<KeySchedule>(plan).ctas(), launch_of<RoundGradQuery>(plan).ctas()};
  };
  const int64_t heads = dense_keys(1, 64).heads_q;
  EXPECT_EQ(ctas_with(16, 256), (std::array{16 * heads * 2 / 8, 16 * heads * 2 / 8})) << "a query tile for each warp";
  EXPECT_EQ(ctas_with(1000, 256), (std::array{int64_t{2 * 132}, int64_t{2 * 132}}));
  EXPECT_EQ(ctas_with(64 * 264, 256), (std::array{264 * heads * 2, 264 * heads * 2})) << "64 query tiles for each CTA";
}

TEST(GpuPlan, HeadDimsAbove128HaveABackwardOfTheirOwnWhichAddsDQToSumsHoweverFewKeysThereAre) {
  struct Case {
    int64_t head_dim, head_dim_v;
    int stages;  ///< of Q and dO that fit
  };
  for (const auto& [head_dim, head_dim_v, stages] :
       {Case{192, 128, 3}, Case{128, 256, 3}, Case{136, 136, 3}, Case{192, 256, 2}, Case{256, 256, 2}}) {
    Problem problem = dense_keys(70, 64);
    problem.head_dim = head_dim;
    problem.head_dim_v = head_dim_v;
    const GpuPlan plan = hopper_plan_of(problem);
    ASSERT_EQ(names_of(plan), (Names{"key_schedule", "wide_backward", "round_grad_query"}));
    for (const HopperBackwardKernel& kernel : hopper_backward_kernels(plan)) {
      EXPECT_EQ(kernel.tile_keys, 64);
      EXPECT_EQ(kernel.stages, stages);
    }
    const HopperBackwardPlan part = part_of(plan, problem);
    EXPECT_EQ(part.slots, 2 * 70);
    EXPECT_EQ(part.whole_keys, 0);
    EXPECT_EQ(part.direct_keys, 0);
    EXPECT_FALSE(plan.deterministic);
    const int64_t columns = (head_dim + 15) / 16 * 16;
    EXPECT_EQ(plan.workspace.bytes() - part.grad_query,
              (problem.rows_q * problem.heads_q * columns * 4 + 255) / 256 * 256);
  }
}

TEST(GpuPlan, DQOfUpTo512DenseKeysIsSummedInItsTypeWithSemaphores) {
  const auto problem_with = [](int64_t keys, const Mask& mask, bool deterministic = false) {
    Problem problem = dense_keys(70, keys);
    problem.mask = mask;
    problem.deterministic = deterministic;
    return problem;
  };
  for (const Mask& mask : {Mask{}, Mask::causal()}) {
    for (const int64_t keys : {129, 256, 512}) {
      const Problem problem = problem_with(keys, mask);
      const GpuPlan plan = hopper_plan_of(problem);
      EXPECT_EQ(names_of(plan), (Names{"key_schedule", "backward"})) << plan.reason;
      const HopperBackwardPlan part = part_of(plan, problem);
      EXPECT_EQ(part.grad_query, -1);
      EXPECT_EQ(part.direct_keys, 512);
      EXPECT_GE(part.dq_semaphores, 0);
      EXPECT_TRUE(part.prepares_grad_query) << "semaphores";
      EXPECT_EQ(plan.deterministic, keys <= 256) << "of two tiles of keys, one stores";
      EXPECT_TRUE(hopper_plan_of(problem_with(keys, mask, true)).deterministic);
    }
    EXPECT_GE(hopper_part_of(problem_with(513, mask)).grad_query, 0) << "more than four tiles of keys";
  }
  Problem jagged = dense_keys(70, 256);
  jagged.key_form = Form::jagged;
  EXPECT_GE(hopper_part_of(jagged).grad_query, 0) << "a sequence may be longer than the mean";
  EXPECT_EQ(hopper_part_of(jagged).direct_keys, 512);
}

TEST(GpuPlan, OneTileOfDenseKeysNeedsNoSemaphoreWithoutAMask) {
  Problem problem = dense_keys(70, 128);
  const GpuPlan plan = hopper_plan_of(problem);
  const HopperBackwardPlan part = part_of(plan, problem);
  EXPECT_EQ(part.dq_semaphores, -1);
  EXPECT_EQ(part.direct_keys, 0);
  EXPECT_FALSE(part.prepares_grad_query);
  EXPECT_EQ(part.grad_query, -1);
  EXPECT_TRUE(plan.deterministic);
  problem.mask = Mask::causal();
  EXPECT_GE(hopper_part_of(problem).dq_semaphores, 0) << "queries that attend to no key";
}

TEST(GpuPlan, OneCtaTakesAllTilesOfKeysOfManyShortSequences) {
  // Two query heads, with 128 columns of Q, dO and dQ in 2 bytes.
  constexpr int64_t most_queries = (128 << 10) / (2 * 3 * 128 * 2);
  const auto whole_keys = [](int64_t batch, int64_t queries, int64_t heads_k = 2) {
    Problem problem = dense_keys(batch, 512);
    problem.rows_q = batch * queries;
    problem.heads_k = heads_k;
    return hopper_part_of(problem).whole_keys;
  };
  constexpr int64_t few = 527, many = 528;  // of two heads each, for 132 CTAs
  EXPECT_EQ(whole_keys(many, most_queries), 512);
  EXPECT_EQ(whole_keys(many, most_queries + 1), 128) << "the queries of all CTAs do not stay in the L2 cache";
  EXPECT_EQ(whole_keys(many, 2 * most_queries, 4), 512) << "half as many query heads for each key head";
  EXPECT_EQ(whole_keys(few, most_queries), 256);
  EXPECT_EQ(whole_keys(65, most_queries), 128) << "fewer sequences than CTAs";
  Problem problem = dense_keys(many, 512);
  problem.rows_q = many * most_queries;
  EXPECT_TRUE(hopper_plan_of(problem).deterministic) << "one CTA adds all tiles of a sequence";
}

TEST(GpuPlan, RowsThatNoSequenceHasGetTheirZerosWhereNothingIsSummed) {
  Problem problem = dense_keys(70, 128);
  EXPECT_FALSE(hopper_part_of(problem).prepares_grad_query);
  problem.query_form = Form::jagged;
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_EQ(names_of(plan), (Names{"key_schedule", "backward"}));
  EXPECT_TRUE(part_of(plan, problem).prepares_grad_query);
  EXPECT_EQ(part_of(plan, problem).grad_query, -1);
  EXPECT_TRUE(plan.deterministic);
}

TEST(GpuPlan, WhatTheHopperBackwardDoesNotTakeIsPortableAndThePlanSaysWhy) {
  const Problem problem = problem_of(Direction::backward);
  expect_portable(TestCall{.problem = problem, .gpu = {.capability = 100}}.plan(),
                  "it needs compute capability 9.0, not 10.0");
  expect_portable(TestCall{.problem = problem, .aligned = false}.plan(),
                  "some row does not begin at a multiple of 16 bytes");
  expect_portable(TestCall{.problem = problem, .has_tensor_maps = false}.plan(), "strides");
  expect_portable(hopper_plan_of(problem_of(Direction::backward, DType::float32)), "it takes bfloat16 and float16");
  expect_portable(TestCall{.problem = problem, .gpu = {.shared_bytes = 163 * 1024}}.plan(),
                  "it needs 227 KB of shared memory, not 163");

  const auto changed = [&](auto change) {
    Problem other = problem;
    change(other);
    return hopper_plan_of(other);
  };
  expect_portable(changed([](Problem& other) {
                    other.head_dim_v = 256;
                    other.key_form = Form::shared;
                  }),
                  "the batch shares keys, and a head dim is above 128");
  expect_portable(changed([](Problem& other) {
                    other.head_dim = 136;
                    other.deterministic = true;
                  }),
                  "dQ has to be summed in one order, and a head dim is above 128");
  const auto with_shared_keys = [&](auto change) {
    return changed([&](Problem& other) {
      other.key_form = Form::shared;
      change(other);
    });
  };
  expect_portable(with_shared_keys([](Problem& other) { other.query_form = Form::dense; }),
                  "the batch shares keys, and queries are not packed");
  expect_portable(with_shared_keys([](Problem& other) { other.mask = Mask::causal(); }),
                  "the batch shares keys, and there is a mask");
  for (const OutScale::Kind kind : {OutScale::Kind::reciprocal_length_q, OutScale::Kind::per_batch}) {
    expect_portable(with_shared_keys([kind](Problem& other) { other.out_scale = kind; }),
                    "the batch shares keys, and its entries differ in out_scale");
  }
  expect_portable(changed([](Problem& other) {
                    other.has_batch_map = true;
                    other.mapped_entries = 5;
                    other.head_dim = 192;
                  }),
                  "several batch entries may have the same keys, and a head dim is above 128");
  expect_portable(changed([](Problem& other) {
                    other.query_form = Form::shared;
                    other.deterministic = true;
                  }),
                  "the batch shares the queries, and dQ has to be summed in one order");
}

/// 40 batch entries that have 5 sequences of keys.
Problem problem_with_map() {
  Problem problem = problem_of(Direction::backward);
  problem.has_batch_map = true;
  problem.batch = 40;
  problem.mapped_entries = 5;
  return problem;
}

TEST(GpuPlan, EntriesInTheOrderOfTheirKeysHaveMemoryForAllEntriesAndForTheEndOfTheLastSequence) {
  for (const int64_t batch : {1, 64, 65, 500}) {  // 64 numbers fill the alignment
    for (const int64_t sequences : {1, 64, 500}) {
      Problem problem = problem_with_map();
      problem.batch = batch;
      problem.mapped_entries = sequences;
      const GpuPlan of_call = plan_of(problem);
      const SequencesPlan& plan = of_call.sequences;
      EXPECT_GE(plan.first_entry - plan.entries, 4 * batch) << batch << ", " << sequences;
      EXPECT_GE(plan.merged_entries - plan.first_entry, 4 * (sequences + 1)) << batch << ", " << sequences;
      EXPECT_GE(of_call.workspace.bytes() - plan.merged_entries, 4 * batch) << batch << ", " << sequences;
    }
  }
}

TEST(GpuPlan, BackwardWithABatchMapHasTheTilesOfTheSequencesOfKeysAndNoSumsOfDKAndDV) {
  const Problem problem = problem_with_map();
  for (const GpuPlan& plan : {plan_of(problem), hopper_plan_of(problem)}) {
    EXPECT_FALSE(plan.grad_key.exist());
    EXPECT_FALSE(plan.grad_value.exist());
  }
  const GpuPlan portable = plan_of(problem);
  const auto& kernel = kernel_of<PortableBackward>(portable);
  EXPECT_TRUE(kernel.has_batch_map);
  EXPECT_EQ(launch_of<PortableBackward>(portable).ctas(), 2 * (3000 / kernel.tile_keys + 5 + 2));
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_EQ(main_family(plan), "hopper") << plan.reason;
  for (const HopperBackwardKernel& of : hopper_backward_kernels(plan)) EXPECT_TRUE(of.has_batch_map);
  EXPECT_EQ(part_of(plan, problem).slots, 2 * (3000 / 128 + 5 + 2));
  EXPECT_GE(part_of(plan, problem).segments, end_of_cleared(plan, problem)) << "the table of segments is not cleared";
}

TEST(GpuPlan, TheHopperBackwardScalesScoresWhereTheEntriesOfASequenceOfKeysDifferInOutScale) {
  const auto scales_entries = [](const Problem& problem) {
    return kernel_of<HopperBackward>(hopper_plan_of(problem)).scales_entries;
  };
  for (const OutScale::Kind kind : {OutScale::Kind::number, OutScale::Kind::reciprocal_length_k,
                                    OutScale::Kind::reciprocal_length_q, OutScale::Kind::per_batch}) {
    Problem problem = problem_with_map();
    problem.out_scale = kind;
    const bool differs = kind == OutScale::Kind::reciprocal_length_q || kind == OutScale::Kind::per_batch;
    EXPECT_EQ(scales_entries(problem), differs);
    problem.has_batch_map = false;
    EXPECT_FALSE(scales_entries(problem));
  }
}

/// The kernels of backward, without the reduce kernel, that run only if sequences of keys overlap (true), only if they
/// do not (false), or always (none).
Names backward_kernels_for(const GpuPlan& plan, std::optional<bool> overlap) {
  Names names;
  for (const Launch* const launch : kernels_of(plan)) {
    const Kernel& kernel = launch->kernel();
    const auto add = [&](const auto&) { names.emplace_back(kernel.names().name); };
    if (kernel.wanted_overlap() != overlap) continue;
    visit_portable(kernel, add);
    visit_hopper_backward(kernel, add);
  }
  return names;
}

TEST(GpuPlan, KeysWithGapsHavePortableKernelsForTheCaseThatTheyOverlap) {
  Problem problem = problem_of(Direction::backward);
  for (const bool has_map : {false, true}) {
    problem.has_batch_map = has_map;
    problem.mapped_entries = 5;
    problem.has_key_gaps = false;
    EXPECT_EQ(backward_kernels_for(hopper_plan_of(problem), true), Names{});
    EXPECT_EQ(backward_kernels_for(hopper_plan_of(problem), std::nullopt), (Names{"key_schedule", "backward"}));
    problem.has_key_gaps = true;
    for (const GpuPlan& plan : {plan_of(problem), hopper_plan_of(problem)}) {
      EXPECT_NE(plan.reason.find("where sequences of keys overlap, portable kernels compute"), std::string::npos);
      EXPECT_EQ(backward_kernels_for(plan, std::nullopt), Names{});
      EXPECT_EQ(backward_kernels_for(plan, true), (Names{"backward", "backward_query"}));
      const auto& of_rows = kernel_of<PortableBackward>(plan, count_of<PortableBackward>(plan) - 1);
      EXPECT_TRUE(of_rows.owns_rows);
      EXPECT_FALSE(of_rows.reduce_grad_query);
      const CommonArguments arguments = arguments_of<PortableBackwardQuery>(plan, problem);
      EXPECT_NE(arguments.keys_overlap, nullptr);
      EXPECT_EQ(arguments.key_sequences.count, 1) << "all rows of the operand are one sequence";
      EXPECT_EQ(arguments.key_sequences.side.length, problem.rows_k);
    }
    EXPECT_EQ(backward_kernels_for(plan_of(problem), false), Names{"backward"});
    EXPECT_EQ(backward_kernels_for(hopper_plan_of(problem), false), (Names{"key_schedule", "backward"}));
    EXPECT_EQ(main_family(hopper_plan_of(problem)), "hopper");
  }
}

TEST(GpuPlan, TheEpilogueAddsTheQueryUnlessOtherKernelsWriteRowsOfTheResult) {
  const auto adds_in_epilogue = [](const Problem& problem) {
    const GpuPlan plan = hopper_plan_of(problem);
    EXPECT_EQ(main_family(plan), "hopper");
    const bool adds_after = names_of(plan).back() == "add_rows";
    EXPECT_NE(adds_after, plan.attention_adds);
    return !adds_after;
  };
  Problem forward = problem_of(Direction::forward);
  forward.add_query = true;
  EXPECT_TRUE(adds_in_epilogue(forward));
  EXPECT_EQ(kernel_of<HopperForward>(hopper_plan_of(forward)).epilogue, Epilogue::addend);
  forward.has_query_gaps = true;
  EXPECT_FALSE(adds_in_epilogue(forward)) << "clear_gaps writes the rows of gaps";

  Problem backward = problem_of(Direction::backward);
  backward.add_query = true;
  EXPECT_TRUE(adds_in_epilogue(backward));
  for (const HopperBackwardKernel& kernel : hopper_backward_kernels(hopper_plan_of(backward))) {
    EXPECT_EQ(kernel.epilogue, Epilogue::addend);
  }
  Problem wide = backward;
  wide.head_dim = wide.head_dim_v = 192;
  EXPECT_FALSE(adds_in_epilogue(wide)) << "round_grad_query writes dQ";
  backward.has_key_gaps = true;
  EXPECT_FALSE(adds_in_epilogue(backward)) << "portable kernels write dQ where keys overlap";
  backward.wanted.query = false;
  EXPECT_NE(names_of(hopper_plan_of(backward)).back(), "add_rows");
}

TEST(GpuPlan, KernelsDifferInTheirSpecificationAndInTheCaseThatTheyAreFor) {
  PortableForward wide;
  wide.head_dim = 256;
  Kernel if_apart((PortableForward())), if_overlap((PortableForward()));
  if_apart.run_only_if_keys_overlap(false);
  if_overlap.run_only_if_keys_overlap(true);
  const std::vector<Kernel> kernels = {Kernel(PortableForward()), Kernel(wide), Kernel(PortableBackward()), if_apart,
                                       if_overlap};
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    for (std::size_t j = 0; j < kernels.size(); ++j) {
      EXPECT_EQ(kernels[i] == kernels[j], i == j) << kernels[i].description() << "; " << kernels[j].description();
    }
  }
  EXPECT_EQ(Kernel(wide), Kernel(wide));
}

TEST(GpuPlan, KernelsThatOwnQueriesRunWhetherOrNotKeysOverlap) {
  Problem problem = problem_of(Direction::backward);
  problem.has_key_gaps = problem.deterministic = true;
  const GpuPlan plan = plan_of(problem);
  EXPECT_TRUE(plan.deterministic);
  EXPECT_EQ(backward_kernels_for(plan, std::nullopt), Names{"backward_query"});
  EXPECT_EQ(backward_kernels_for(plan, false), Names{"backward"});
  EXPECT_EQ(backward_kernels_for(plan, true), Names{"backward"});

  problem.wanted = {true, false, false};
  for (const GpuPlan& of_query : {plan_of(problem), hopper_plan_of(problem)}) {
    EXPECT_EQ(backward_kernels_for(of_query, true), Names{}) << "dQ of a sequence has one kernel in every batch";
    EXPECT_EQ(backward_kernels_for(of_query, std::nullopt), Names{"backward_query"});
  }
  problem.deterministic = false;
  EXPECT_EQ(backward_kernels_for(hopper_plan_of(problem), true), Names{"backward_query"})
      << "its dQ has tiles of keys as owners";

  problem.wanted = {};
  problem.query_form = Form::shared;
  expect_portable(hopper_plan_of(problem), "the batch shares queries, and keys may overlap");
}

TEST(GpuPlan, AMaskWithABatchMapIsPortableWhereItsTilesNeedTooMuchMemory) {
  Problem problem = problem_with_map();
  problem.batch = 20'000;
  problem.rows_k = 128'000;
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "hopper");
  problem.mask = Mask::causal();
  expect_portable(hopper_plan_of(problem), "the tiles that a mask keeps need too much memory");
  problem.deterministic = true;
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "hopper") << "as in a smaller batch";
  problem.deterministic = false;
  problem.key_form = Form::dense;  // the host knows the lengths
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "hopper");
}

TEST(GpuPlan, TheHopperBackwardTakesEveryHeadDimAndASideThatABatchOfOneShares) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    Problem problem = problem_of(Direction::backward, dtype);
    for (problem.head_dim = 8; problem.head_dim <= 256; problem.head_dim += 8) {
      for (problem.head_dim_v = 8; problem.head_dim_v <= 256; problem.head_dim_v += 8) {
        expect_family(hopper_plan_of(problem), "hopper");
      }
    }
  }
  Problem problem = problem_of(Direction::backward);
  problem.batch = 1;
  problem.key_form = problem.query_form = Form::shared;
  expect_family(hopper_plan_of(problem), "hopper");
}

TEST(GpuPlan, TheHopperBackwardSumsTheGradientsOfSharedKeysForPartsOfTheBatch) {
  Problem problem = problem_of(Direction::backward);
  problem.batch = 1152;
  problem.rows_q = 1'000'000;
  problem.key_form = Form::shared;
  problem.rows_k = 200;
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_EQ(names_of(plan), (Names{"key_schedule", "backward", "reduce", "reduce"}));
  EXPECT_TRUE(kernel_of<KeySchedule>(plan).keys_shared);
  EXPECT_TRUE(kernel_of<HopperBackward>(plan).keys_shared);
  // Two heads of two key tiles, each in its own CTA: as many parts as make a piece of work for each multiprocessor.
  EXPECT_EQ(plan.splits, 33);
  EXPECT_EQ(part_of(plan, problem).slots, 2 * 2 * plan.splits);
  EXPECT_EQ(plan.grad_value.offset - plan.grad_key.offset, plan.splits * 200 * 2 * 128 * 4);
  EXPECT_EQ(plan.workspace.bytes() - plan.grad_value.offset, plan.splits * 200 * 2 * 128 * 4);
  EXPECT_EQ(part_of(plan, problem).grad_query, -1);
  EXPECT_TRUE(plan.deterministic);

  problem.rows_k = 600;
  const GpuPlan with_sums = hopper_plan_of(problem);
  EXPECT_EQ(names_of(with_sums), (Names{"key_schedule", "backward", "reduce", "reduce"}));
  EXPECT_GE(part_of(with_sums, problem).grad_query, 0);
  EXPECT_FALSE(with_sums.deterministic);
}

TEST(GpuPlan, PartsOfTheQueriesFillTheMultiprocessorsAndAreNotShort) {
  Problem problem = problem_of(Direction::backward);
  problem.batch = 1152;
  problem.rows_q = 1'000'000;
  problem.key_form = Form::shared;
  problem.rows_k = 128;
  const auto parts = [&](int64_t heads) {
    problem.heads_q = problem.heads_k = heads;
    return hopper_plan_of(problem).splits;
  };
  EXPECT_EQ(parts(4), 33);
  EXPECT_EQ(parts(5), 26) << "130 of 132 are enough";
  EXPECT_EQ(parts(50), 5) << "two rounds of 132 leave 14 idle, and one 32";
  EXPECT_EQ(parts(1000), 1);
  problem.rows_q = 1000;
  EXPECT_EQ(parts(4), 3);
}

TEST(GpuPlan, TheHopperBackwardAddsAllOfTheGradientOfSharedQueriesToOneSum) {
  Problem problem = problem_of(Direction::backward);
  problem.query_form = Form::shared;
  problem.rows_q = 100;
  problem.rows_k = 40 * problem.batch;
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_EQ(names_of(plan), (Names{"key_schedule", "backward", "round_grad_query"}));
  const HopperBackwardPlan part = part_of(plan, problem);
  EXPECT_EQ(part.whole_keys, 0) << "no sequence stores dQ to which others add";
  EXPECT_EQ(plan.workspace.bytes() - part.grad_query, 100 * 4 * 128 * 4);
  EXPECT_FALSE(plan.deterministic);
}

TEST(GpuPlan, DeterministicModeOfTheHopperBackwardTakesTheSameTurnsInOneOrder) {
  Problem problem = problem_of(Direction::backward);
  const GpuPlan any_order = hopper_plan_of(problem);
  problem.deterministic = true;
  const GpuPlan one_order = hopper_plan_of(problem);
  EXPECT_EQ(names_of(one_order), names_of(any_order));
  EXPECT_FALSE(any_order.deterministic);
  EXPECT_TRUE(one_order.deterministic);
  for (const HopperBackwardKernel& kernel : hopper_backward_kernels(any_order)) EXPECT_FALSE(kernel.ordered);
  for (const HopperBackwardKernel& kernel : hopper_backward_kernels(one_order)) EXPECT_TRUE(kernel.ordered);
  const HopperBackwardPlan part = part_of(one_order, problem);
  EXPECT_EQ(part.semaphores_per_head, 1000 / 64 + 10 + 2);
  EXPECT_EQ(one_order.workspace.bytes(), any_order.workspace.bytes());
  EXPECT_GE(part.grad_query - part.dq_semaphores, 4 * part.semaphores_per_head * 4) << "of 4 heads";
}

TEST(GpuPlan, ACtaHasGoneTwoStepsOrFourInDeterministicModeWhenItsHeadsNextTileOfKeysIsBegun) {
  Problem problem = dense_keys(64, 2048);
  const auto heads_per_group = [&](int64_t queries) {
    problem.rows_q = problem.batch * queries;
    return hopper_part_of(problem).heads_per_group;
  };
  EXPECT_EQ(heads_per_group(1024), 8) << "16 tiles of two heads, of 132 CTAs";
  EXPECT_EQ(heads_per_group(512), 16);
  EXPECT_EQ(heads_per_group(4096), 2);
  EXPECT_EQ(heads_per_group(8192), 1);
  problem.deterministic = true;
  EXPECT_EQ(heads_per_group(1024), 16);
  EXPECT_EQ(heads_per_group(512), 33);
  EXPECT_EQ(heads_per_group(1), 256);
  EXPECT_EQ(heads_per_group(8192), 2);
  EXPECT_EQ(heads_per_group(100'000), 1);
  problem.mask = Mask::window(256, 0);
  EXPECT_EQ(heads_per_group(8192), 37) << "7 tiles of two heads";
  EXPECT_EQ(heads_per_group(64), 256);
  problem.mask = Mask::causal();
  EXPECT_EQ(heads_per_group(8192), 2);
  problem.mask = {};
  problem.head_dim = problem.head_dim_v = 64;
  EXPECT_EQ(heads_per_group(1024), 33) << "8 tiles of two heads";
}

TEST(GpuPlan, OfTheHopperBackwardOnlyTheCounterAndATableOfTurnsAreClearedBeforeIt) {
  Problem shared = problem_of(Direction::backward);
  shared.query_form = Form::shared;
  EXPECT_LE(end_of_cleared(hopper_plan_of(shared), shared), 256) << "the schedule clears sums, and writes the table";

  for (const auto& [head_dim, columns] :
       {std::pair{40, 64}, std::pair{64, 64}, std::pair{72, 128}, std::pair{128, 128}}) {
    const Problem problem = problem_of(Direction::backward, DType::bfloat16, head_dim);
    const GpuPlan plan = hopper_plan_of(problem);
    const HopperBackwardPlan part = part_of(plan, problem);
    const int64_t cleared = end_of_cleared(plan, problem);
    EXPECT_EQ(part.slot_counter, 0);
    EXPECT_GE(cleared, static_cast<int64_t>(sizeof(unsigned)));
    const int64_t table_end = part.key_tiles + part.slots * static_cast<int64_t>(sizeof(hopper::KeyTile<WindowMask>));
    EXPECT_GE(cleared, table_end);
    EXPECT_LT(cleared - table_end, 256) << "tiles stand where they have to, and sums are begun";
    EXPECT_GE(part.dq_semaphores, cleared);
    EXPECT_GT(part.grad_query, part.dq_semaphores);
    const int64_t sums = int64_t{1000} * 4 * columns * 4;  // whole halves of 32 or 64 columns
    EXPECT_GE(plan.workspace.bytes(), part.grad_query + sums) << head_dim;
    for (const int64_t at : {part.key_tiles, part.grad_query, plan.workspace.bytes()}) EXPECT_EQ(at % 256, 0);
    EXPECT_FALSE(plan.grad_key.exist());
    EXPECT_FALSE(plan.grad_value.exist());
  }
}

/// Calls visit(kernel) for the Hopper forward of every pair of head dims, with few keys and with many, and of any
/// number of queries or few.
template <class Visit>
void visit_hopper_kernels(Visit visit) {
  Problem problem = problem_of(Direction::forward);
  for (problem.head_dim = 8; problem.head_dim <= 256; problem.head_dim += 8) {
    for (problem.head_dim_v = 8; problem.head_dim_v <= 256; problem.head_dim_v += 8) {
      for (const int64_t mean_keys : {50, 100, 2048}) {
        problem.rows_k = mean_keys * problem.batch;
        for (const Form queries : {Form::jagged, Form::shared}) {
          problem.query_form = queries;
          problem.rows_q = queries == Form::shared ? 20 : 1000;
          visit(kernel_of<HopperForward>(hopper_plan_of(problem)));
        }
      }
    }
  }
}

int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

TEST(GpuPlan, EveryHopperTileFitsSharedMemory) {
  visit_hopper_kernels([](const HopperForward& kernel) {
    constexpr int ring_and_barriers = 2816 + 128;
    const int row = round_up(kernel.head_dim, 64) * 2, row_v = round_up(kernel.head_dim_v, 64) * 2;
    const int query = kernel.query_in_registers ? std::max(row, row_v) : row;
    const int bytes = kernel.query_stages * kernel.tile_queries * query +
                      kernel.stages * kernel.tile_keys * (row + row_v) + ring_and_barriers;
    ASSERT_LE(bytes, Gpu{}.shared_bytes) << kernel.head_dim << " x " << kernel.head_dim_v;
  });
}

/// 224 registers, of which the compiler needs 32 for all else.
TEST(GpuPlan, EveryHopperTileFitsTheRegistersOfAThread) {
  visit_hopper_kernels([](const HopperForward& kernel) {
    const int query = kernel.query_in_registers ? round_up(kernel.head_dim, 16) / 4 : 0;
    const int scores = kernel.tile_keys / 2, weights = kernel.tile_keys / 4;
    const int output = std::max(32, round_up(kernel.head_dim_v, 32) / 2);
    ASSERT_LE(query + scores + weights + output, 192) << kernel.head_dim << " x " << kernel.head_dim_v;
  });
}

TEST(GpuPlan, WideHeadsKeepQueriesInRegistersWhereThereIsRoomForSixtyFourKeys) {
  const auto expect_tile = [](int64_t head_dim, int64_t head_dim_v, bool query_in_registers, int tile_keys) {
    Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
    problem.head_dim_v = head_dim_v;
    problem.rows_k = 2048 * problem.batch;
    const auto kernel = kernel_of<HopperForward>(hopper_plan_of(problem));
    EXPECT_EQ(kernel.query_in_registers, query_in_registers) << head_dim << " x " << head_dim_v;
    EXPECT_EQ(kernel.tile_keys, tile_keys) << head_dim << " x " << head_dim_v;
  };
  expect_tile(192, 192, true, 64);
  expect_tile(192, 128, true, 96);
  expect_tile(256, 128, true, 80);
  expect_tile(256, 256, false, 80);
  expect_tile(128, 256, false, 80);
}

TEST(GpuPlan, ASecondWarpgroupIsThereWhereTheSequencesMayHaveQueriesForIt) {
  Problem problem = problem_of(Direction::forward);
  const auto tile_queries = [&](Form form, int64_t queries) {
    problem.query_form = form;
    problem.rows_q = form == Form::shared ? queries : queries * problem.batch;
    const auto kernel = kernel_of<HopperForward>(hopper_plan_of(problem));
    EXPECT_EQ(kernel.warps * 16, kernel.tile_queries);
    return kernel.tile_queries;
  };
  for (const Form form : {Form::dense, Form::shared}) {
    EXPECT_EQ(tile_queries(form, 1), 64);
    EXPECT_EQ(tile_queries(form, 64), 64);
    EXPECT_EQ(tile_queries(form, 65), 128);
  }
  EXPECT_EQ(tile_queries(Form::jagged, 10), 128) << "one of them may have more";
  problem.head_dim = 192;
  EXPECT_EQ(tile_queries(Form::dense, 64), 128);
}

TEST(GpuPlan, KeysThatFitSharedMemoryAreMetInRuns) {
  Problem problem = problem_of(Direction::forward);
  problem.rows_k = 256 * problem.batch;
  EXPECT_EQ(forward_arguments(problem).tiles.order, pipeline::TileOrder::contiguous);
  const auto stages_with = [&](int64_t keys) {
    problem.rows_k = keys * problem.batch;
    const auto kernel = kernel_of<HopperForward>(hopper_plan_of(problem));
    return std::array{kernel.stages, kernel.query_stages};
  };
  EXPECT_EQ(stages_with(256), (std::array{2, 3}));
  EXPECT_EQ(stages_with(257), (std::array{3, 1}));
  EXPECT_EQ(stages_with(384), (std::array{3, 1}));
  EXPECT_EQ(forward_arguments(problem).tiles.order, pipeline::TileOrder::contiguous);
  EXPECT_EQ(stages_with(385), (std::array{2, 3}));
  EXPECT_NE(forward_arguments(problem).tiles.order, pipeline::TileOrder::contiguous);
  problem.key_form = Form::shared;
  problem.rows_k = 256;
  EXPECT_EQ(forward_arguments(problem).tiles.order, pipeline::TileOrder::contiguous);
}

/// The tiles of a head belong to one CTA. With few heads, a CTA with one more head would end late.
TEST(GpuPlan, CtasTakeTheTilesOfHeadsFromACounterIfTheyHaveManyHeadsWithFewKeys) {
  const auto tiles_of = [](const Problem& problem) { return forward_arguments(problem).tiles; };
  Problem problem = problem_of(Direction::forward);
  problem.heads_q = problem.heads_k = 4;
  problem.batch = 1200;
  problem.rows_q = 256 * problem.batch;
  problem.rows_k = 200 * problem.batch;
  EXPECT_EQ(tiles_of(problem).order, pipeline::TileOrder::dynamic);
  EXPECT_EQ(tiles_of(problem).taken_at_once, 2U);
  Problem grouped = problem;
  grouped.heads_q = 8;
  EXPECT_EQ(tiles_of(grouped).taken_at_once, 4U) << "both query heads have the same keys";
  Problem long_queries = problem;
  long_queries.rows_q = 10000 * problem.batch;
  EXPECT_EQ(tiles_of(long_queries).taken_at_once, 16U);
  Problem one_key_tile = long_queries;
  one_key_tile.rows_k = 100 * problem.batch;
  EXPECT_EQ(tiles_of(one_key_tile).taken_at_once, 16U);

  Problem short_heads = problem;
  short_heads.rows_q = short_heads.rows_k = 100 * problem.batch;
  EXPECT_EQ(tiles_of(short_heads).order, pipeline::TileOrder::dynamic);
  EXPECT_EQ(tiles_of(short_heads).taken_at_once, 4U) << "of four heads";
  Problem very_short = problem;
  very_short.rows_q = very_short.rows_k = 48 * problem.batch;
  EXPECT_EQ(tiles_of(very_short).order, pipeline::TileOrder::contiguous);
  very_short.rows_k = 49 * problem.batch;
  EXPECT_EQ(tiles_of(very_short).order, pipeline::TileOrder::dynamic);

  Problem few = problem;
  few.batch = 200;
  few.rows_q = 256 * few.batch;
  few.rows_k = 200 * few.batch;
  EXPECT_EQ(tiles_of(few).order, pipeline::TileOrder::contiguous);
  Problem shared = problem;
  shared.key_form = Form::shared;
  shared.rows_k = 200;
  EXPECT_EQ(tiles_of(shared).order, pipeline::TileOrder::contiguous);

  Problem pooling = problem;
  pooling.query_form = Form::shared;
  pooling.rows_q = 32;
  pooling.rows_k = 1000 * problem.batch;
  pooling.batch = 2000;
  EXPECT_EQ(tiles_of(pooling).order, pipeline::TileOrder::dynamic);
  EXPECT_EQ(tiles_of(pooling).taken_at_once, 1U);
}

/// A launch that clears the counter costs more than it saves if CTAs have few key tiles, or if all query tiles are
/// equal or short.
TEST(GpuPlan, CtasTakeTilesFromACounterIfTheyHaveManyThatDiffer) {
  const auto order_of = [](const Problem& problem) { return forward_arguments(problem).tiles.order; };
  Problem problem = problem_of(Direction::forward);
  problem.batch = 66;
  problem.rows_q = 1024 * problem.batch;
  problem.rows_k = 2048 * problem.batch;
  EXPECT_EQ(order_of(problem), pipeline::TileOrder::dynamic);

  Problem many_short = problem;
  many_short.batch = 1056;
  many_short.rows_q = many_short.rows_k = 512 * many_short.batch;
  EXPECT_EQ(order_of(many_short), pipeline::TileOrder::strided);
  many_short.mask = Mask::causal();
  EXPECT_EQ(order_of(many_short), pipeline::TileOrder::dynamic);

  Problem few = problem;
  few.heads_q = few.heads_k = 1;
  few.rows_q = 128 * problem.batch;
  EXPECT_EQ(order_of(few), pipeline::TileOrder::strided);
  EXPECT_EQ(end_of_cleared(hopper_plan_of(few), few), 0) << "nothing has to be cleared";

  Problem equal = problem;
  equal.query_form = equal.key_form = Form::dense;
  EXPECT_EQ(order_of(equal), pipeline::TileOrder::strided);
  equal.mask = Mask::causal();
  EXPECT_EQ(order_of(equal), pipeline::TileOrder::dynamic);
}

TEST(GpuPlan, ThePassesOfForwardHaveCountersOfTheirOwnThatAreCleared) {
  Problem problem = problem_of(Direction::forward);
  problem.batch = 66;
  problem.rows_q = 1024 * problem.batch;
  problem.rows_k = 2048 * problem.batch;
  const GpuPlan plan = hopper_plan_of(problem, with_guards);
  ASSERT_EQ(count_of<HopperForward>(plan), 2U);
  const auto first = arguments_of<HopperForward>(plan, problem, 0),
             second = arguments_of<HopperForward>(plan, problem, 1);
  ASSERT_EQ(first.tiles.order, pipeline::TileOrder::dynamic);
  EXPECT_EQ(second.tiles_taken, first.tiles_taken + 1);
  EXPECT_EQ(second.found_nan, first.found_nan);
  EXPECT_GE(offset_of(first.tiles_taken), 0);
  EXPECT_GE(offset_of(first.found_nan), 0);
  EXPECT_GT(end_of_cleared(plan, problem), std::max(offset_of(second.tiles_taken), offset_of(first.found_nan)));
}

GpuPlan plan_with_scale(const Problem& problem, const char* function, double scale, bool has_tensor_maps = false) {
  TestCall call{.problem = problem, .activation = Activation(function), .has_tensor_maps = has_tensor_maps};
  call.params.scale = scale;
  return call.plan();
}

TEST(GpuPlan, TheOutputTakesTheScaleOfHomogeneousFunctions) {
  const Problem problem = problem_of(Direction::forward);
  for (const auto& [function, factor] : {std::pair{"relu", 0.25}, std::pair{"leaky_relu", 0.25},
                                         std::pair{"relu2", 0.0625}, std::pair{"sqrt(abs(s))", 0.5}}) {
    const GpuPlan portable = plan_with_scale(problem, function, 0.25);
    EXPECT_FALSE(kernel_of<PortableForward>(portable).scales_scores) << function;
    EXPECT_EQ(portable.output_factor, factor) << function;
    const GpuPlan hopper = plan_with_scale(problem, function, 0.25, true);
    EXPECT_FALSE(kernel_of<HopperForward>(hopper).scales_scores) << function;
    EXPECT_EQ(arguments_of<HopperForward>(hopper, problem).common.output_factor, static_cast<float>(factor));
  }
}

TEST(GpuPlan, ScoresAreScaledWhereTheOutputCannotTakeTheScale) {
  const auto scales_scores = [](const Problem& problem, const char* function, double scale) {
    const GpuPlan plan = plan_with_scale(problem, function, scale);
    const bool is_scaled = kernel_of<PortableForward>(plan).scales_scores;
    EXPECT_EQ(plan.output_factor, is_scaled ? 1 : std::fabs(scale));
    return is_scaled;
  };
  const Problem problem = problem_of(Direction::forward);
  EXPECT_FALSE(scales_scores(problem, "relu", 1e-3));
  EXPECT_TRUE(scales_scores(problem, "gelu", 1e-3));
  EXPECT_TRUE(scales_scores(problem, "relu", -1e-3));  // relu(-s) is no multiple of relu(s)
  EXPECT_TRUE(scales_scores(problem, "relu2", -1e-3));
  EXPECT_TRUE(scales_scores(problem, "relu", 0));
  EXPECT_TRUE(scales_scores(problem, "relu", 1e-12));  // unscaled weights may overflow
  EXPECT_TRUE(scales_scores(problem, "relu", 1e12));   // or vanish
  const Problem float16 = problem_of(Direction::forward, DType::float16);
  EXPECT_TRUE(scales_scores(float16, "relu", 1e-3));
  EXPECT_TRUE(kernel_of<HopperForward>(plan_with_scale(float16, "relu", 1e-3, true)).scales_scores);
  const GpuPlan backward = plan_with_scale(problem_of(Direction::backward), "relu", 1e-3);
  EXPECT_TRUE(kernel_of<PortableBackward>(backward).scales_scores);
  EXPECT_EQ(backward.output_factor, 1);
}

TEST(GpuPlan, HopperBackwardHasConstantFactorsWhereEveryResultTakesThem) {
  const auto takes_factors = [](const Problem& problem) {
    const GpuPlan plan = hopper_plan_of(problem, with_guards);
    return count_of<HopperWideBackward>(plan) > 0 ? kernel_of<HopperWideBackward>(plan).takes_constant_factors
                                                  : kernel_of<HopperBackward>(plan).takes_constant_factors;
  };
  Problem problem = problem_of(Direction::backward, DType::bfloat16, 64);
  EXPECT_TRUE(takes_factors(problem));
  problem.head_dim = problem.head_dim_v = 256;
  EXPECT_TRUE(takes_factors(problem));
  problem.head_dim = problem.head_dim_v = 64;
  problem.accuracy = Accuracy::exact;
  EXPECT_FALSE(takes_factors(problem));
  EXPECT_FALSE(takes_factors(problem_of(Direction::backward, DType::float16, 64))) << "the range of fp16";
  problem.accuracy = Accuracy::fast;
  problem.query_form = Form::shared;
  EXPECT_FALSE(takes_factors(problem)) << "round_grad_query has no factor";
}

TEST(GpuPlan, HopperBackwardDoesNotScaleTheScoresOfHomogeneousFunctions) {
  const auto scales_scores = [](const char* function, double scale, DType dtype = DType::bfloat16) {
    return kernel_of<HopperBackward>(plan_with_scale(problem_of(Direction::backward, dtype), function, scale, true))
        .scales_scores;
  };
  EXPECT_FALSE(scales_scores("relu", 0.125));
  EXPECT_FALSE(scales_scores("relu2", 0.125));
  EXPECT_TRUE(scales_scores("tanh", 0.125));
  EXPECT_TRUE(scales_scores("relu", -0.125)) << "relu(-s) is no multiple of relu(s)";
  EXPECT_TRUE(scales_scores("relu", 1e-12)) << "unscaled weights may overflow";
  EXPECT_TRUE(scales_scores("relu", 0.125, DType::float16));
  const Problem wide = problem_of(Direction::backward, DType::bfloat16, 256);
  EXPECT_FALSE(kernel_of<HopperWideBackward>(plan_with_scale(wide, "relu", 0.125, true)).scales_scores);
}

/// The kernels that may start before the previous kernel of the call has ended.
std::vector<std::size_t> overlapping_kernels(const GpuPlan& plan) {
  std::vector<std::size_t> positions;
  const std::vector<const Launch*> kernels = kernels_of(plan);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i]->overlaps_previous()) positions.push_back(i);
  }
  return positions;
}

TEST(GpuPlan, AStepThatFollowsAnotherHopperKernelOverlapsIt) {
  const std::vector<std::size_t> second = {1};
  const GpuPlan forward = hopper_plan_of(problem_of(Direction::forward), with_guards);
  ASSERT_EQ(names_of(forward), (Names{"forward", "forward"})) << "the second pass";
  EXPECT_EQ(overlapping_kernels(forward), second);
  const GpuPlan backward = hopper_plan_of(problem_of(Direction::backward));
  ASSERT_EQ(names_of(backward), (Names{"key_schedule", "backward"}));
  EXPECT_EQ(overlapping_kernels(backward), second);
  EXPECT_EQ(overlapping_kernels(plan_of(problem_of(Direction::backward))), std::vector<std::size_t>{})
      << "portable kernels do not wait";
}

TEST(GpuPlan, AFunctionWithBoundsHasASecondPassOfTheHopperBackwardBehindTheFirst) {
  Problem problem;
  problem.direction = Direction::backward;
  problem.dtype = DType::bfloat16;
  problem.batch = 10;
  problem.heads_q = problem.heads_k = 4;
  problem.head_dim = problem.head_dim_v = 64;
  problem.rows_q = problem.rows_k = 10000;
  problem.query_form = Form::shared;  // its accumulators are rounded by a later kernel
  const GpuPlan plan = hopper_plan_of(problem, with_guards);
  using hopper::Pass;
  ASSERT_EQ(names_of(plan), (Names{"key_schedule", "backward", "key_schedule", "backward", "round_grad_query"}));
  EXPECT_EQ(kernel_of<KeySchedule>(plan, 0).pass, Pass::only);
  EXPECT_EQ(kernel_of<HopperBackward>(plan, 0).pass, Pass::first);
  EXPECT_EQ(kernel_of<KeySchedule>(plan, 1).pass, Pass::second);
  EXPECT_EQ(kernel_of<HopperBackward>(plan, 1).pass, Pass::second);
  EXPECT_EQ(launch_of<KeySchedule>(plan, 1).ctas(), launch_of<KeySchedule>(plan, 0).ctas());
  EXPECT_EQ(launch_of<HopperBackward>(plan, 1).ctas(), launch_of<HopperBackward>(plan, 0).ctas());
  EXPECT_EQ(overlapping_kernels(plan), (std::vector<std::size_t>{1, 2, 3}))
      << "the step before round_grad_query does not allow it to start early";
  EXPECT_EQ(names_of(plan_of(problem, with_guards)), names_of(plan_of(problem, plain)));
}

// --- functions that read tensors -------------------------------------------------------------------------------------

BoundTensor contiguous(std::initializer_list<int64_t> sizes, NumberType type = NumberType::float32) {
  BoundTensor tensor;
  tensor.type = type;
  tensor.rank = static_cast<int32_t>(sizes.size());
  std::ranges::copy(sizes, tensor.sizes);
  int64_t stride = 1;
  for (int axis = tensor.rank; axis-- > 0; stride *= tensor.sizes[axis]) tensor.strides[axis] = stride;
  return tensor;
}

/// A call of a function that reads tensors, which have the names "a", "b" and so on.
TestCall reading_call(const Problem& problem, const char* function, const std::vector<BoundTensor>& tensors) {
  Names names;
  for (std::size_t i = 0; i < tensors.size(); ++i) names.emplace_back(1, static_cast<char>('a' + i));
  TestCall call{.problem = problem, .activation = Activation(function, {}, names)};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    call.params.parameters[i] = tensors[i];
    call.problem.tensor_types |= static_cast<unsigned>(tensors[i].type) << (4 * i);
  }
  return call;
}

/// A function with `count` reads of one number for each pair of a query and a key. Adjacent queries have adjacent
/// numbers, so that kernels load single numbers.
TestCall call_of_pairs(const Problem& problem, int count) {
  const int64_t length = std::max(problem.rows_q, problem.rows_k);
  BoundTensor pairs = contiguous({length, length});
  std::swap(pairs.strides[0], pairs.strides[1]);
  const char* const functions[] = {"silu(s)", "silu(s + a[q_idx, kv_idx])",
                                   "silu(s + a[q_idx, kv_idx] * b[q_idx, kv_idx])"};
  return reading_call(problem, functions[count], std::vector<BoundTensor>(static_cast<std::size_t>(count), pairs));
}

/// Hopper's backward computes a split of the batch as one sequence where the batch shares the keys.
TEST(GpuPlan, SharedKeysAndAFunctionOfTheQueryPositionTakeThePortableBackward) {
  Problem problem = problem_of(Direction::backward);
  problem.key_form = Form::shared;
  problem.rows_k = 500;
  EXPECT_EQ(main_family(hopper_plan_of(problem, "silu(s) + kv_idx")), "hopper");
  expect_portable(hopper_plan_of(problem, "silu(s) + q_idx"), "f depends on the position of a query");
}

TEST(GpuPlan, HopperForwardOfSeveralReadsHasNarrowTilesOfKeys) {
  for (const auto& [head_dim, tile_keys] : {std::pair{64, 96}, std::pair{128, 112}, std::pair{256, 64}}) {
    Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
    problem.rows_q = problem.rows_k = 20000;
    const GpuPlan plan = call_of_pairs(problem, 2).plan();
    EXPECT_EQ(kernel_of<HopperForward>(plan).tile_keys, tile_keys);
    EXPECT_NE(plan.reason.find("tiles of keys are narrow: f reads 2 elements"), std::string::npos) << plan.reason;
    const int otherwise = kernel_of<HopperForward>(call_of_pairs(problem, 0).plan()).tile_keys;
    EXPECT_GT(otherwise, tile_keys);
    EXPECT_EQ(kernel_of<HopperForward>(call_of_pairs(problem, 1).plan()).tile_keys, otherwise);
  }
}

/// The inputs of the keys and differences of a tile need shared memory.
TEST(GpuPlan, HopperForwardWithStagedInputsHasFewerStages) {
  for (const int64_t length : {50, 100, 300, 5000}) {
    Problem problem = problem_of(Direction::forward, DType::bfloat16, 128);
    problem.rows_q = problem.rows_k = length * problem.batch;
    const GpuPlan plan = reading_call(problem, "silu(s + a[head, q_idx - kv_idx])", {contiguous({4, 64})}).plan();
    const auto& kernel = kernel_of<HopperForward>(plan);
    const int rows = kernel.query_stages * kernel.tile_queries + 2 * kernel.stages * kernel.tile_keys;
    const int inputs = kernel.warps * (2 * kernel.tile_keys + 15) * 4;
    EXPECT_LE(rows * 128 * 2 + inputs, 224 * 1024) << length;
    EXPECT_EQ(kernel.tile_keys, kernel_of<HopperForward>(call_of_pairs(problem, 1).plan()).tile_keys) << length;
    EXPECT_GE(kernel.stages, 2) << length;
  }
}

/// A tile of a dense bias needs shared memory, which stages of Q give up.
TEST(GpuPlan, HopperForwardStagesADenseBiasIfItFits) {
  struct Bias {
    NumberType type;
    int64_t key_stride;
    int64_t row_stride;
    BiasTile tile;
  };
  for (const int64_t head_dim : {64, 128, 192, 256}) {
    for (const int64_t length : {50, 100, 300, 5000}) {
      for (const Bias& of : {Bias{NumberType::bfloat16, 2, 16384, BiasTile::none},
                             {NumberType::bfloat16, 1, 8192, BiasTile::aligned},
                             {NumberType::bfloat16, 1, 8191, BiasTile::unaligned},
                             {NumberType::float32, 1, 8192, BiasTile::aligned},
                             {NumberType::float32, 1, 8191, BiasTile::unaligned}}) {
        const int element_bytes = of.type == NumberType::float32 ? 4 : 2;
        SCOPED_TRACE(testing::Message() << head_dim << ", " << length << " keys, " << element_bytes << " bytes, stride "
                                        << of.row_stride);
        Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
        problem.rows_q = problem.rows_k = length * problem.batch;
        BoundTensor bias = contiguous({length, length}, of.type);
        bias.strides[0] = of.row_stride;
        bias.strides[1] = of.key_stride;
        const GpuPlan plan = reading_call(problem, "silu(s + a[q_idx, kv_idx])", {bias}).plan();
        const auto& kernel = kernel_of<HopperForward>(plan);
        EXPECT_TRUE(head_dim > 128 || kernel.bias_tile == of.tile);
        EXPECT_TRUE(kernel.bias_tile == of.tile || kernel.bias_tile == BiasTile::none);
        const bool has_bias = kernel.bias_tile != BiasTile::none;
        EXPECT_EQ(plan.reason.find("dense bias is copied to shared memory") != std::string::npos, has_bias);
        const int64_t bytes =
            kernel.tile_queries * staged_row_bytes(kernel.bias_tile, kernel.tile_keys * element_bytes);
        const int64_t rows = kernel.query_stages * kernel.tile_queries + 2 * kernel.stages * kernel.tile_keys;
        EXPECT_LE(rows * head_dim * 2 + bytes, 224 * 1024);
        EXPECT_GE(kernel.stages, 2);
        EXPECT_TRUE(!has_bias || head_dim > 128 || kernel.query_stages >= 2) << "for three stages of K and V";
      }
    }
  }
}

/// So do the elements of lookups.
TEST(GpuPlan, HopperForwardStagesLookupsIfTheyFit) {
  const char* const functions[] = {"silu(s + a[q_idx] - b[kv_idx])",
                                   "silu(s + c[head, clamp(a[q_idx] - b[kv_idx], 0, 99)])",
                                   "silu(s * c[head, clamp(a[q_idx] - b[kv_idx], 0, 99)] + "
                                   "d[head, clamp(a[q_idx] - b[kv_idx], 0, 99)])"};
  const BoundTensor times = contiguous({5000}, NumberType::int32), table = contiguous({4, 100});
  for (const int64_t head_dim : {64, 128, 192, 256}) {
    for (const int64_t length : {50, 100, 300, 5000}) {
      for (const int lookups : {0, 1, 2}) {
        SCOPED_TRACE(testing::Message() << head_dim << ", " << length << " keys, " << lookups << " lookups");
        Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
        problem.rows_q = problem.rows_k = length * problem.batch;
        std::vector<BoundTensor> tensors = {times, times};
        tensors.resize(static_cast<std::size_t>(2 + lookups), table);
        const TestCall call = reading_call(problem, functions[lookups], tensors);
        EXPECT_EQ(call.activation.function().facts().reads, 2 + lookups);
        EXPECT_EQ(call.activation.function().facts().reads_of_lines(), 1);
        const GpuPlan plan = call.plan();
        const auto& kernel = kernel_of<HopperForward>(plan);
        EXPECT_TRUE(head_dim > 128 || kernel.stages_lookups == (lookups > 0));
        EXPECT_EQ(plan.reason.find("lookups are copied to shared memory") != std::string::npos, kernel.stages_lookups);
        const int64_t elements = kernel.stages_lookups ? kernel.warps * lookup_bytes(lookups, kernel.tile_keys) : 0;
        const int64_t rows = kernel.query_stages * kernel.tile_queries + 2 * kernel.stages * kernel.tile_keys;
        EXPECT_LE(rows * head_dim * 2 + elements, 224 * 1024);
        EXPECT_GE(kernel.stages, 2);
      }
    }
  }
}

// --- wanted gradients ------------------------------------------------------------------------------------------------

/// The Hopper plan of backward for keys long enough for sums of dQ, of a function with guards.
GpuPlan hopper_plan_wanting(const Problem& problem, WantedGradients wanted) {
  Problem wanting = problem;
  wanting.wanted = wanted;
  return hopper_plan_of(wanting, with_guards);
}

TEST(GpuPlan, HopperBackwardWithoutDQHasNoSumsAndNoOrderToKeep) {
  Problem problem = problem_of(Direction::backward);
  for (const bool deterministic : {false, true}) {
    problem.deterministic = deterministic;
    const GpuPlan plan = hopper_plan_wanting(problem, {false, true, true});
    EXPECT_TRUE(plan.deterministic);
    const HopperBackwardPlan part = part_of(plan, problem);
    EXPECT_EQ(part.grad_query, -1);
    EXPECT_EQ(part.dq_semaphores, -1);
    EXPECT_FALSE(part.prepares_grad_query);
    for (const HopperBackwardKernel& kernel : hopper_backward_kernels(plan)) {
      EXPECT_FALSE(kernel.has_dq_semaphores || kernel.ordered || kernel.wants_grad_query);
    }
  }
}

TEST(GpuPlan, HopperBackwardLeavesGuardsOutOnlyWhereInfinitiesShowInDKOrDV) {
  const auto has_two_passes = [](WantedGradients wanted) {
    const GpuPlan plan = hopper_plan_wanting(problem_of(Direction::backward), wanted);
    return kernel_of<HopperBackward>(plan).pass == hopper::Pass::first;
  };
  EXPECT_TRUE(has_two_passes({true, true, true}));
  EXPECT_TRUE(has_two_passes({true, true, false}));
  EXPECT_TRUE(has_two_passes({false, true, false}));
  EXPECT_TRUE(has_two_passes({false, false, true}));
  EXPECT_FALSE(has_two_passes({true, false, false}));
  EXPECT_FALSE(has_two_passes({true, false, true}));  // an infinity of f' is in dQ alone
}

/// All choices of at least one gradient.
std::vector<WantedGradients> choices_of_gradients() {
  std::vector<WantedGradients> choices;
  for (int bits = 1; bits < 8; ++bits) choices.push_back({(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
  return choices;
}

TEST(GpuPlan, PortableBackwardHasKernelsAndMemoryForTheWantedGradientsOnly) {
  for (const WantedGradients& wanted : choices_of_gradients()) {
    for (const bool deterministic : {false, true}) {
      for (const bool shares_keys : {false, true}) {
        SCOPED_TRACE(testing::Message() << "wanted: dQ " << wanted.query << ", dK " << wanted.key << ", dV "
                                        << wanted.value << ", deterministic " << deterministic << ", shared keys "
                                        << shares_keys);
        Problem problem = problem_of(Direction::backward);
        problem.wanted = wanted;
        problem.deterministic = deterministic;
        if (shares_keys) problem.key_form = Form::shared;
        const GpuPlan plan = plan_of(problem);
        const bool wants_keys = wanted.key || wanted.value;
        // The kernel that owns tiles of keys adds to dQ in any order. Otherwise dQ has its own kernel.
        const bool adds_to_query = wanted.query && wants_keys && !deterministic;
        const bool sums_key = shares_keys && wanted.key, sums_value = shares_keys && wanted.value;
        Names expected;
        if (wants_keys) expected.push_back("backward");
        if (wanted.query && !adds_to_query) expected.push_back("backward_query");
        for (const bool is_reduced : {adds_to_query, sums_key, sums_value}) {
          if (is_reduced) expected.push_back("reduce");
        }
        EXPECT_EQ(names_of(plan), expected);
        if (wants_keys) {
          const auto& kernel = kernel_of<PortableBackward>(plan);
          EXPECT_EQ(kernel.reduce_grad_query, adds_to_query);
          EXPECT_EQ(kernel.wants_grad_key, wanted.key);
          EXPECT_EQ(kernel.wants_grad_value, wanted.value);
        }
        EXPECT_EQ(plan.deterministic, !adds_to_query);
        const int64_t row = int64_t{4} * 128;  // bytes of a row of one head in fp32
        const int64_t partial = shares_keys ? plan.splits * 3000 * 2 * row : 0;
        EXPECT_EQ(plan.workspace.bytes(),
                  (adds_to_query ? 1000 * 4 * row : 0) + (wanted.key ? partial : 0) + (wanted.value ? partial : 0));
        EXPECT_EQ(plan.grad_query.exist(), adds_to_query);
        EXPECT_EQ(plan.grad_key.exist(), sums_key);
        EXPECT_EQ(plan.grad_value.exist(), sums_value);
      }
    }
  }
}

TEST(GpuPlan, HopperBackwardKernelsComputeTheWantedGradientsOnly) {
  for (const WantedGradients& wanted : choices_of_gradients()) {
    for (const bool shares_keys : {false, true}) {
      for (const int64_t head_dim : {128, 256}) {
        if (shares_keys && head_dim > 128) continue;  // the portable kernels compute this problem
        SCOPED_TRACE(testing::Message() << "wanted: dQ " << wanted.query << ", dK " << wanted.key << ", dV "
                                        << wanted.value << ", shared keys " << shares_keys << ", " << head_dim);
        Problem problem = problem_of(Direction::backward, DType::bfloat16, head_dim);
        problem.wanted = wanted;
        if (shares_keys) problem.key_form = Form::shared;
        const GpuPlan plan = hopper_plan_of(problem);
        int count = 0;
        for (const Launch* const launch : kernels_of(plan)) {
          visit_as<HopperBackward, HopperWideBackward>(launch->kernel(), [&](const HopperBackwardKernel& kernel) {
            ++count;
            EXPECT_EQ(kernel.wants_grad_query, wanted.query);
            EXPECT_EQ(kernel.wants_grad_key, wanted.key);
            EXPECT_EQ(kernel.wants_grad_value, wanted.value);
          });
        }
        EXPECT_EQ(count, 1);
        const HopperBackwardPlan part = part_of(plan, problem);
        EXPECT_TRUE(wanted.query || part.whole_keys == 0) << "only dQ needs all keys in one CTA";
        EXPECT_EQ(part.grad_query >= 0, wanted.query);
        EXPECT_EQ(plan.grad_key.exist(), shares_keys && wanted.key);
        EXPECT_EQ(plan.grad_value.exist(), shares_keys && wanted.value);
      }
    }
  }
}

TEST(GpuPlan, DeterministicModeWithoutDQKeepsTheHopperKernels) {
  const auto expect_hopper_kernels = [](auto change) {
    Problem problem = problem_of(Direction::backward);
    problem.deterministic = true;
    problem.wanted = {false, true, true};
    change(problem);
    const GpuPlan plan = hopper_plan_of(problem);
    EXPECT_TRUE(plan.deterministic);
    EXPECT_EQ(main_family(plan), "hopper") << plan.reason;
  };
  expect_hopper_kernels([](Problem& problem) { problem.head_dim = 136; });
  expect_hopper_kernels([](Problem& problem) { problem.key_form = Form::shared; });
  expect_hopper_kernels([](Problem& problem) { problem.query_form = Form::shared; });
}

// --- gradients of tensors --------------------------------------------------------------------------------------------

/// A call that wants the gradient of w alone, a tensor of `elements` numbers for each of four heads.
TestCall table_call(const Problem& problem, int64_t elements = 64) {
  TestCall call = reading_call(problem, "silu(s + a[head, abs(q_idx - kv_idx) + kv_idx])", {contiguous({4, elements})});
  call.problem.wanted = {false, false, false, 1};
  call.params.grad_parameters[0] = call.params.parameters[0];
  return call;
}

TEST(GpuPlan, TheGradientsOfTensorsHaveAHopperKernelOfOneCtaForEachMultiprocessor) {
  Problem problem = problem_of(Direction::backward);
  problem.rows_q = 100'000;
  const GpuPlan plan = table_call(problem).plan();
  EXPECT_EQ(names_of(plan), (Names{"parameter_gradients", "round_parameters"}));
  EXPECT_EQ(launch_of<HopperParameterGradients>(plan).ctas(), Gpu{}.multiprocessors);
  problem.rows_q = 100;
  problem.batch = 1;
  EXPECT_EQ(launch_of<HopperParameterGradients>(table_call(problem).plan()).ctas(), problem.heads_q * 3);
}

TEST(GpuPlan, TheGradientsOfTensorsArePortableWhereHopperKernelsAreNotAndThePlanSaysWhy) {
  TestCall call = table_call(problem_of(Direction::backward));
  call.gpu.capability = 100;
  expect_portable(call.plan(), "compute capability 9.0, not 10.0");
  call = table_call(call.problem);
  call.aligned = false;
  expect_portable(call.plan(), "16 bytes");
  call = table_call(call.problem);
  call.has_tensor_maps = false;
  expect_portable(call.plan(), "strides");
  expect_portable(table_call(problem_of(Direction::backward, DType::float32)).plan(), "bfloat16 and float16");
}

TEST(GpuPlan, TheHopperKernelOfGradientsOfTensorsTakesWhatTheHopperBackwardDoesNot) {
  Problem problem = problem_of(Direction::backward, DType::bfloat16, 256);
  problem.deterministic = true;
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "portable");
  EXPECT_EQ(main_family(table_call(problem).plan()), "hopper");
  problem = problem_of(Direction::backward);
  problem.key_form = Form::shared;
  problem.mask = Mask::causal();
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "portable");
  EXPECT_EQ(main_family(table_call(problem).plan()), "hopper");
}

TEST(GpuPlan, GradientsOfTensorsHaveTheAccuracyOfTheCallAndAreExactInDeterministicMode) {
  Problem problem = problem_of(Direction::backward);
  const auto kernel = [&] { return kernel_of<HopperParameterGradients>(table_call(problem).plan()); };
  EXPECT_EQ(kernel().accuracy, Accuracy::fast);
  EXPECT_EQ(kernel().sum, ParameterSum::float64) << "few elements may have many terms";
  problem.deterministic = true;
  EXPECT_EQ(kernel().accuracy, Accuracy::exact);
  EXPECT_EQ(kernel().sum, ParameterSum::exact);
  problem.deterministic = false;
  problem.accuracy = Accuracy::exact;
  EXPECT_EQ(kernel().accuracy, Accuracy::exact);
}

TEST(GpuPlan, EachThreadHasSumsOfTheElementsOfAHeadWhereTheseAreFew) {
  const auto sums = [](int64_t elements) {
    const GpuPlan plan = table_call(problem_of(Direction::backward), elements).plan();
    return kernel_of<HopperParameterGradients>(plan).sum_elements;
  };
  EXPECT_EQ(sums(1), 16);
  EXPECT_EQ(sums(64), 64);
  EXPECT_EQ(sums(65), 80);
  EXPECT_EQ(sums(128), 128);
  EXPECT_EQ(sums(129), 0);
  EXPECT_EQ(sums(int64_t{1} << 40), 0);
}

TEST(GpuPlan, AWarpOfThePortableKernelOfGradientsOfTensorsHasAllColumnsOnEveryGpu) {
  for (const int kilobytes : {99, 163, 227}) {
    for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
      for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
        TestCall call = table_call(problem_of(Direction::backward, dtype, head_dim));
        call.gpu.capability = 80;
        call.gpu.shared_bytes = kilobytes * 1024;
        const auto kernel = kernel_of<PortableParameterGradients>(call.plan());
        EXPECT_EQ(kernel.column_warps, 1) << head_dim;
        EXPECT_EQ(kernel.tile_queries % (16 * kernel.warps), 0) << head_dim;
        EXPECT_LE(kernel.needs().shared_bytes, kilobytes * 1024) << head_dim;
      }
    }
  }
}

TEST(GpuPlan, EveryTileOfTheHopperKernelOfGradientsOfTensorsFitsSharedMemory) {
  for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (int64_t head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
      for (const int64_t elements : {16, 64, 128, 1000}) {
        Problem problem = problem_of(Direction::backward, DType::bfloat16, head_dim);
        problem.head_dim_v = head_dim_v;
        const auto kernel = kernel_of<HopperParameterGradients>(table_call(problem, elements).plan());
        const int columns = round_up(kernel.head_dim, 64) + round_up(kernel.head_dim_v, 64);
        const int rows = kernel.query_stages * kernel.tile_queries + kernel.stages * kernel.tile_keys;
        const int terms = 8 * (round_up(kernel.tile_keys + 15, 32) + 8) * 4;  // of a warp
        const int sums = kernel.warps * 32 * kernel.sum_elements * 4;
        constexpr int ring_and_barriers = 2816 + 128;
        ASSERT_LE(2 * rows * columns + kernel.warps * terms + sums + ring_and_barriers, Gpu{}.shared_bytes)
            << head_dim << " x " << head_dim_v << ", " << elements;
        ASSERT_EQ(kernel.tile_queries, kernel.warps * 16);
      }
    }
  }
}

TEST(GpuPlan, GradientsOfTensorsAreTheSameEveryTimeOnlyIfTheirSumsAreExact) {
  Problem problem = problem_of(Direction::backward);
  EXPECT_FALSE(table_call(problem).plan().deterministic);
  problem.deterministic = true;
  const GpuPlan plan = table_call(problem).plan();
  EXPECT_EQ(plan.parameters.sum, ParameterSum::exact);
  EXPECT_TRUE(plan.deterministic);
}

TEST(GpuPlan, CopiesOfTheSumsOfATensorAreAPowerOfTwoUpTo32AndHaveAtMost4MiBTogether) {
  for (const int64_t elements : {1, 100, 5000, 20'000, 33'000, 100'000, 1'000'000}) {
    const TestCall call = table_call(problem_of(Direction::backward), elements);
    const GpuPlan plan = call.plan();
    const ParameterSumsPlan& sums = plan.parameters;
    EXPECT_EQ(sums.bytes, 4 * elements * 8);
    EXPECT_EQ(sums.copies & (sums.copies - 1), 0) << sums.copies;
    EXPECT_LE(sums.copies, 32);
    EXPECT_TRUE(sums.copies == 1 || sums.copies * sums.bytes <= 4 << 20) << sums.copies << " of " << elements;
    EXPECT_TRUE(sums.copies == 32 || 2 * sums.copies * sums.bytes > 4 << 20) << sums.copies << " of " << elements;
    EXPECT_GE(plan.workspace.bytes(), sums.offset + sums.copies * sums.bytes);
    EXPECT_EQ(end_of_cleared(plan, call.problem), sums.offset + sums.copies * sums.bytes);
  }
}

TEST(GpuPlan, SumsOfTensorsAreClearedBeforeTheMainKernelAndRoundedAfterIt) {
  Problem problem = problem_of(Direction::backward);
  problem.has_query_gaps = true;  // kernels find the sequences first
  const GpuPlan plan = table_call(problem).plan();
  Names steps;
  for (const Launch& launch : plan.launches) {
    steps.emplace_back(launch.clears() ? "clear" : launch.kernel().names().name);
  }
  EXPECT_EQ(steps, (Names{"locate_sequences", "clear", "parameter_gradients", "round_parameters"}));
  EXPECT_EQ(plan.main_launch, 2U);
}

TEST(GpuPlan, AContiguousFp32GradientWithFewTermsHasNoMemoryOfItsOwn) {
  Problem problem = problem_of(Direction::backward);
  problem.heads_q = 2;
  const auto has_memory = [&](NumberType type, std::initializer_list<int64_t> strides) {
    BoundTensor bias = contiguous({10, 1, 100, 300}, type);
    std::ranges::copy(strides, bias.strides);
    TestCall call = reading_call(problem, "silu(s + a[batch, head, q_idx, kv_idx])", {bias});
    call.problem.wanted = {false, false, false, 1};
    call.params.grad_parameters[0] = bias;
    const GpuPlan plan = call.plan();
    EXPECT_EQ(plan.parameters.sum, ParameterSum::float32);
    EXPECT_EQ(plan.parameters.adds_to_gradients, plan.workspace.bytes() == 0);
    return plan.workspace.bytes() > 0;
  };
  EXPECT_FALSE(has_memory(NumberType::float32, {30'000, 30'000, 300, 1}));
  EXPECT_FALSE(has_memory(NumberType::float32, {30'000, 7, 300, 1})) << "the stride of one element has no effect";
  EXPECT_TRUE(has_memory(NumberType::float32, {30'000, 30'000, 1, 100}));
  EXPECT_TRUE(has_memory(NumberType::bfloat16, {30'000, 30'000, 300, 1}));
}

TEST(GpuPlan, SumsOfTensorsAreFp32IfAnElementHasAtMost4096TermsOnAverage) {
  const auto sum = [](int64_t rows, int64_t elements, bool deterministic = false) {
    Problem problem = problem_of(Direction::backward);
    problem.rows_q = rows;
    problem.deterministic = deterministic;
    TestCall call = reading_call(problem, "silu(s + a[kv_idx])", {contiguous({elements})});
    call.problem.wanted = {false, false, false, 1};
    call.params.grad_parameters[0] = call.params.parameters[0];
    return call.plan().parameters.sum;
  };
  // Each of the rows has 300 keys on average, in each of four heads.
  EXPECT_EQ(sum(4096, 1200), ParameterSum::float32);
  EXPECT_EQ(sum(4097, 1200), ParameterSum::float64);
  EXPECT_EQ(sum(4096, 300), ParameterSum::float64);
  EXPECT_EQ(sum(10, 100'000), ParameterSum::float32);
  EXPECT_EQ(sum(10, 100'000, true), ParameterSum::exact);
}

TEST(GpuPlan, BackwardComputesGradientsOfTensorsOnlyIfEachTileOfKeysHasOneEntry) {
  Problem problem = problem_of(Direction::backward, DType::bfloat16, 64);
  const auto fused = [&] {
    TestCall call = reading_call(problem, "silu(s + a[head, q_idx - kv_idx])", {contiguous({4, 64})});
    call.problem.wanted.parameters = 1;
    call.params.grad_parameters[0] = call.params.parameters[0];
    const GpuPlan plan = call.plan();
    const bool is_fused = kernel_of<HopperBackward>(plan).gradients != FusedGradients::none;
    EXPECT_EQ(count_of<HopperParameterGradients>(plan), is_fused ? 0U : 1U) << plan.reason;
    return is_fused;
  };
  EXPECT_TRUE(fused());
  problem.has_key_gaps = true;
  EXPECT_FALSE(fused()) << "sequences may overlap, and another kernel then computes";
  problem.has_key_gaps = false;
  problem.has_batch_map = true;
  problem.mapped_entries = 5;
  EXPECT_FALSE(fused());
}

TEST(GpuPlan, EachCtaHasAFlagOfItsOwnUnlessAllShareACounter) {
  for (const int64_t rows : {1'000, 1'000'000}) {
    Problem problem = problem_of(Direction::forward);
    problem.rows_q = problem.rows_k = rows;
    const GpuPlan plan = hopper_plan_of(problem, with_guards);
    ASSERT_EQ(count_of<HopperForward>(plan), 2U);
    const auto arguments = arguments_of<HopperForward>(plan, problem);
    const bool shares = arguments.tiles.order == pipeline::TileOrder::dynamic;
    EXPECT_EQ(shares, rows == 1'000'000);
    const int64_t flags = shares ? 1 : launch_of<HopperForward>(plan).ctas();
    EXPECT_GE(plan.workspace.bytes() - offset_of(arguments.found_nan), flags * 4);
  }
}

TEST(GpuPlan, QueriesAndOutputGradientsOfWideHeadsHaveTheStagesThatFitBesideKAndVAndTheScores) {
  for (int64_t head_dim = 136; head_dim <= 256; head_dim += 8) {
    for (const int64_t head_dim_v : {int64_t{64}, head_dim, int64_t{256}}) {
      Problem problem = problem_of(Direction::backward, DType::bfloat16, head_dim);
      problem.head_dim_v = head_dim_v;
      const auto wide = kernel_of<HopperWideBackward>(hopper_plan_of(problem));
      const int64_t columns = round_up(static_cast<int>(head_dim), 64) + round_up(static_cast<int>(head_dim_v), 64);
      const int64_t rows = 64 * (1 + wide.stages);
      EXPECT_LE(rows * columns * 2 + 64 * 64 * (4 + 2 * 2) + 512, Gpu{}.shared_bytes) << head_dim << " " << head_dim_v;
      EXPECT_GE(wide.stages, 2);
    }
  }
}

TEST(GpuPlan, EachSplitOfTheBatchHasItsOwnSumsOfTheColumnsOfAGradient) {
  Problem problem = problem_of(Direction::backward, DType::float32, 64);
  problem.head_dim_v = 128;
  problem.key_form = Form::shared;
  problem.rows_k = 64;
  const GpuPlan of_keys = plan_of(problem);
  ASSERT_GT(of_keys.splits, 1);
  EXPECT_EQ(of_keys.grad_value.offset - of_keys.grad_key.offset, of_keys.splits * 64 * 2 * 64 * 4);
  EXPECT_EQ(of_keys.workspace.bytes() - of_keys.grad_value.offset, of_keys.splits * 64 * 2 * 128 * 4);
  problem.key_form = Form::jagged;
  problem.query_form = Form::shared;
  problem.rows_q = 64;
  const GpuPlan of_queries = plan_of(problem);
  ASSERT_GT(of_queries.splits, 1);
  EXPECT_EQ(of_queries.workspace.bytes() - of_queries.grad_query.offset, of_queries.splits * 64 * 4 * 64 * 4);
}

TEST(GpuPlan, EveryPartOfTheWorkspaceOfPortableKernelsIsAligned) {
  Problem problem = problem_of(Direction::backward, DType::float32, 8);
  problem.key_form = Form::shared;
  problem.rows_q = 3;
  problem.rows_k = 5;
  problem.heads_q = problem.heads_k = 1;
  const GpuPlan plan = plan_of(problem);
  for (const int64_t offset : {plan.grad_query.offset, plan.grad_key.offset, plan.grad_value.offset}) {
    EXPECT_GE(offset, 0);
    EXPECT_EQ(offset % Workspace::alignment, 0);
  }
}

}  // namespace
}  // namespace gdpa::gpu
