// The GPU plan: which kernels a problem gets, how many CTAs, and where the sums lie. No GPU is needed.
#include "gpu/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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
  ASSERT_EQ(kernels_of(plan).size(), 1U);
  EXPECT_EQ(plan.steps[0].kernel.kind, "forward");
  EXPECT_EQ(plan.workspace.bytes(), 0);
  EXPECT_TRUE(plan.deterministic);
}

TEST(GpuPlan, JaggedWorkIsBoundedByTheRowsAndTheBatch) {
  const GpuPlan plan = plan_of(problem_of(Direction::forward));
  EXPECT_EQ(plan.steps[0].work, 4 * (1000 / plan.steps[0].kernel.tile_queries + 10 + 2));
}

TEST(GpuPlan, BackwardNeedsOneFp32SumOfDQ) {
  const GpuPlan plan = plan_of(problem_of(Direction::backward));
  EXPECT_EQ(plan.workspace.grad_query, 0);
  EXPECT_EQ(plan.workspace.bytes(), 1000 * 4 * 128 * 4);
  EXPECT_EQ(plan.workspace.zeroed_bytes, plan.workspace.bytes());
  EXPECT_FALSE(plan.deterministic);
}

TEST(GpuPlan, DeterministicModeNeedsNoSumsAndAddsAKernel) {
  Problem problem = problem_of(Direction::backward);
  problem.deterministic = true;
  const GpuPlan plan = plan_of(problem);
  ASSERT_EQ(kernels_of(plan).size(), 2U);
  EXPECT_FALSE(plan.steps[0].kernel.portable().reduce_grad_query);
  EXPECT_EQ(plan.steps[1].kernel.kind, "backward_query");
  EXPECT_EQ(plan.workspace.bytes(), 0);
  EXPECT_TRUE(plan.deterministic);
}

TEST(GpuPlan, SharedKeysAreSummedInSlabsThatFillTheDevice) {
  Problem problem = problem_of(Direction::backward);
  problem.key_form = Form::shared;
  problem.rows_k = 64;
  const GpuPlan plan = plan_of(problem);
  EXPECT_EQ(plan.splits, 10);  // the number of entries: 2 heads of 1 tile would leave most of the device idle
  EXPECT_GE(plan.grad_key.offset, plan.workspace.zeroed_bytes);
  EXPECT_EQ(plan.workspace.bytes() - plan.grad_key.offset, 2 * 10 * 64 * 2 * 128 * 4);
}

TEST(GpuPlan, ASharedQueryIsSummedInSlabsWithoutAdditionsThatWaitForEachOther) {
  Problem problem = problem_of(Direction::backward);
  problem.query_form = Form::shared;
  problem.rows_q = 4;
  const GpuPlan plan = plan_of(problem);
  ASSERT_EQ(kernels_of(plan).size(), 2U);
  EXPECT_TRUE(plan.steps[1].kernel.portable().queries_shared);
  EXPECT_EQ(plan.workspace.zeroed_bytes, 0);
  EXPECT_TRUE(plan.deterministic);
}

/// GPUs that differ in shared memory or in the decisions of the planner.
std::vector<Gpu> gpus() {
  return {{108, 80, 163 * 1024}, {84, 86, 99 * 1024}, {132, 90, 227 * 1024}, {148, 100, 227 * 1024}};
}

/// Calls visit(gpu, kernel) for the kernels of every plan: each type, pair of head dims, direction and mode.
template <class Visit>
void visit_kernels(Visit visit) {
  for (const Gpu& gpu : gpus()) {
    for (const FunctionRegisters function : {FunctionRegisters::few, FunctionRegisters::many}) {
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
                  const GpuPlan plan = gpu_plan({problem, gpu, function, true, Float32Products::three});
                  for (const GpuStep& step : plan.steps) visit(gpu, step.kernel);
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
            for (const TensorMaps maps : {TensorMaps::available, TensorMaps::unavailable}) {
              Problem problem = problem_of(Direction::backward, DType::bfloat16, head_dim);
              problem.query_form = query_form;
              problem.key_form = key_form;
              problem.mask = mask;
              problem.deterministic = true;
              EXPECT_TRUE(
                  gpu_plan({problem, gpu, FunctionRegisters::few, true, Float32Products::three, maps}).deterministic);
            }
          }
        }
      }
    }
  }
}

TEST(GpuPlan, TilesAreMultiplesOfWhatTheirWarpsTake) {
  visit_kernels([](const Gpu&, const KernelSpec& kernel) {
    const bool owns_keys = kernel.kind == "backward";
    ASSERT_EQ((owns_keys ? kernel.tile_keys : kernel.tile_queries) % (16 * kernel.warps), 0);
    ASSERT_EQ((owns_keys ? kernel.tile_queries : kernel.tile_keys) % 16, 0);
  });
}

TEST(GpuPlan, EveryTileFitsTheSharedMemoryOfItsGpuAndTheRegistersOfAThread) {
  visit_kernels([](const Gpu& gpu, const KernelSpec& kernel) {
    constexpr int64_t reserved = 1024;
    const int64_t bytes = families::shared_bytes(kernel) + families::static_shared_bytes;
    ASSERT_LE(bytes, gpu.shared_bytes);
    ASSERT_LE(kernel.ctas * (bytes + reserved), gpu.shared_bytes + reserved);
    ASSERT_LE(families::accumulator_registers(kernel), 192);
    ASSERT_LE(kernel.ctas * kernel.warps * kernel.portable().column_warps, 8);  // 255 registers for each thread
  });
}

TEST(GpuPlan, TheMeasuredTilesOfHopperStay) {
  for (const int64_t head_dim : {64, 128}) {
    Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
    const KernelSpec forward = plan_of(problem).steps[0].kernel;
    EXPECT_EQ(forward.tile_queries, 128);
    EXPECT_EQ(forward.tile_keys, head_dim == 64 ? 64 : 32);
    EXPECT_EQ(forward.warps, 4);
    EXPECT_EQ(forward.ctas, 2);
    problem.direction = Direction::backward;
    const KernelSpec backward = plan_of(problem).steps[0].kernel;
    EXPECT_EQ(backward.tile_queries, 64);
    EXPECT_EQ(backward.tile_keys, 128);
    EXPECT_EQ(backward.warps * backward.portable().column_warps, 8);
    EXPECT_EQ(backward.portable().column_warps, head_dim == 64 ? 1 : 2);
  }
}

TEST(GpuPlan, AFunctionThatTakesManyRegistersGetsANarrowerTile) {
  const Problem problem = problem_of(Direction::backward);
  const auto tile_queries = [&](FunctionRegisters function) {
    return gpu_plan({problem, Gpu{}, function, true, Float32Products::three}).steps[0].kernel.tile_queries;
  };
  EXPECT_LT(tile_queries(FunctionRegisters::many), tile_queries(FunctionRegisters::few));
}

TEST(GpuPlan, ErfTakesManyRegistersAtFullPrecisionOnly) {
  const auto registers = [](const char* text, Accuracy accuracy) {
    return registers_of(Activation(text).function().value_and_derivative(), accuracy);
  };
  EXPECT_EQ(registers("gelu", Accuracy::exact), FunctionRegisters::many);
  EXPECT_EQ(registers("gelu", Accuracy::fast), FunctionRegisters::few);
  EXPECT_EQ(registers("silu", Accuracy::exact), FunctionRegisters::few);
  EXPECT_EQ(registers("abs(s)^1.7", Accuracy::fast), FunctionRegisters::many);
}

TEST(GpuPlan, AnEmptyBatchHasANumberForTheCtaOfTheFirstPass) {
  Problem problem = problem_of(Direction::forward);
  problem.batch = problem.rows_q = 0;
  problem.query_form = Form::dense;
  problem.rows_k = 100'000;
  problem.deterministic = true;  // a call of few scores has one pass otherwise
  const GpuPlan plan = gpu_plan({.problem = problem,
                                 .gpu = Gpu{},
                                 .function = FunctionRegisters::few,
                                 .aligned = true,
                                 .products = Float32Products::three,
                                 .tensor_maps = TensorMaps::available,
                                 .bounds_scores = true});
  ASSERT_EQ(kernels_of(plan).size(), 2U) << plan.reason;
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
  Gpu gpu;
  gpu.shared_bytes = 48 * 1024;
  const Problem problem = problem_of(Direction::backward, DType::float32, 256);
  try {
    gpu_plan({problem, gpu, FunctionRegisters::few, true, Float32Products::three});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("at least 67 KB of shared memory, got 48 KB"), std::string::npos)
        << error.what();
  }
}

TEST(GpuPlan, Float32TakesOneProductWhereAllowed) {
  const Problem problem = problem_of(Direction::forward, DType::float32);
  EXPECT_EQ(gpu_plan({problem, Gpu{}, FunctionRegisters::few, true, Float32Products::one}).steps[0].kernel.element,
            GpuElement::tensor_float32);
  EXPECT_EQ(gpu_plan({problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three}).steps[0].kernel.element,
            GpuElement::float32);
}

GpuPlan hopper_plan_of(const Problem& problem, const char* function = plain) {
  return TestCall{.problem = problem, .activation = Activation(function)}.plan();
}

TEST(GpuPlan, HopperGetsItsOwnForwardOfOneCtaForEachMultiprocessor) {
  Problem problem = problem_of(Direction::forward);
  problem.rows_q = 100'000;
  const GpuPlan plan = hopper_plan_of(problem);
  ASSERT_EQ(kernels_of(plan).size(), 1U);
  EXPECT_EQ(main_family(plan), "hopper");
  EXPECT_EQ(plan.steps[0].work, Gpu{}.multiprocessors);
  problem.rows_q = 100;
  problem.batch = 1;
  EXPECT_EQ(hopper_plan_of(problem).steps[0].work, problem.heads_q * 3);
}

TEST(GpuPlan, WhatTheHopperForwardDoesNotTakeIsPortableAndThePlanSaysWhy) {
  const Problem problem = problem_of(Direction::forward);
  const auto expect_portable = [](const GpuPlan& plan, const char* why) {
    EXPECT_EQ(main_family(plan), "portable");
    EXPECT_NE(plan.reason.find(why), std::string::npos) << plan.reason;
  };
  expect_portable(hopper_plan_of(problem, 100), "compute capability 9.0, not 10.0");
  expect_portable(hopper_plan_of(problem, 90, false), "16 bytes");
  expect_portable(hopper_plan_of(problem, 90, true, TensorMaps::unavailable), "strides");
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
    const KernelSpec& kernel = plan.steps[0].kernel;
    ASSERT_EQ(kernel.family(), "hopper") << plan.reason;
    EXPECT_TRUE(kernel.has_pages);
    EXPECT_EQ(kernel.tile_keys, boxes.tile_keys) << boxes.page_rows << ", " << boxes.head_dim;
    EXPECT_EQ(kernel.hopper().box_keys, boxes.box_keys) << boxes.page_rows << ", " << boxes.head_dim;
    EXPECT_NE(
        plan.reason.find(fmt::format("TMA loads {} keys at a time from pages of {}", boxes.box_keys, boxes.page_rows)),
        std::string::npos)
        << plan.reason;
  }
  EXPECT_EQ(hopper_plan_of(problem_of(Direction::forward)).steps[0].kernel.hopper().box_keys, 0);
}

/// The tile order finds ranges of equal cost by cumulative lengths, which pages do not have.
TEST(GpuPlan, ACtaTakesTilesFromTheWholeBatchIfKeysAreInPages) {
  Problem problem = paged_problem(64);
  problem.query_form = Form::dense;
  problem.rows_q = 64 * problem.batch;
  EXPECT_NE(hopper_plan_of(problem).hopper().tiles.order, hopper::TileOrder::contiguous);
  problem.page_rows = 0;
  EXPECT_EQ(hopper_plan_of(problem).hopper().tiles.order, hopper::TileOrder::contiguous);
}

TEST(GpuPlan, PagesThatTmaCannotAddressArePortableAndThePlanSaysWhy) {
  const GpuPlan plan = hopper_plan_of(paged_problem(64), 90, true, TensorMaps::unavailable);
  EXPECT_EQ(main_family(plan), "portable");
  EXPECT_NE(plan.reason.find("two pages have to be a whole number of rows apart"), std::string::npos) << plan.reason;
}

TEST(GpuPlan, HopperGetsItsOwnBackwardBehindAScheduleOfItsTilesOfKeys) {
  Problem problem = problem_of(Direction::backward);
  const GpuPlan plan = hopper_plan_of(problem);
  ASSERT_EQ(names_of(plan), (std::vector<std::string>{"key_schedule", "backward"}));
  for (const GpuStep& step : plan.steps) {
    EXPECT_EQ(step.kernel.family(), "hopper") << plan.reason;
    EXPECT_EQ(step.kernel.tile_queries, 64);
    EXPECT_EQ(step.kernel.tile_keys, 128);
  }
  EXPECT_FALSE(plan.deterministic);

  // A CTA of the schedule kernel handles 64 slots of the table, and prepares dQ of 64 tiles of queries.
  const auto ctas = [](int64_t places) { return (places + 63) / 64; };
  EXPECT_EQ(part_of(plan, problem).slots, 2 * (3000 / 128 + 10 + 2));  // no more tiles than these, however the rows are cut
  EXPECT_EQ(plan.steps[0].work, ctas(4 * (1000 / 64 + 10 + 2)));
  EXPECT_EQ(plan.steps[1].work, part_of(plan, problem).slots);
  problem.rows_q = 100;
  EXPECT_EQ(hopper_plan_of(problem).steps[0].work, ctas(part_of(plan, problem).slots));
  problem.rows_k = 100'000;
  EXPECT_EQ(hopper_plan_of(problem).steps[1].work, Gpu{}.multiprocessors);
}

TEST(GpuPlan, TheHopperBackwardTakesTwiceAsManyQueriesAtOnceWhereSequencesAreLongAndHeadDimsSmall) {
  Problem problem = problem_of(Direction::backward, DType::bfloat16, 64);
  problem.rows_q = 512 * problem.batch;
  const auto expect_tile = [](const Problem& of, int tile_queries) {
    const GpuPlan plan = hopper_plan_of(of);
    for (const GpuStep& step : plan.steps) EXPECT_EQ(step.kernel.tile_queries, tile_queries) << plan.reason;
    const int64_t tiles = of.rows_q / tile_queries + of.batch + 2;
    if (plan.steps[0].kernel.hopper().has_dq_semaphores) {
      EXPECT_EQ(part_of(plan, problem).semaphores_per_head, tiles);
    }
  };
  expect_tile(problem, 128);
  const GpuPlan of_long_function =
      gpu_plan({problem, Gpu{}, FunctionRegisters::many, true, Float32Products::three, TensorMaps::available});
  EXPECT_EQ(of_long_function.steps[1].kernel.tile_queries, 64);
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
    ASSERT_EQ(main_family(plan), "hopper") << plan.reason;
    EXPECT_GE(plan.workspace.grad_query, 0);
    EXPECT_EQ(plan.steps[0].kernel.hopper().has_dq_semaphores, begun);
    EXPECT_EQ(plan.steps[1].kernel.hopper().has_dq_semaphores, begun);
    EXPECT_EQ(names_of(plan).back() == "round_grad_query", !begun);
    EXPECT_EQ(part_of(plan, problem).dq_semaphores >= 0, begun);
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
    EXPECT_EQ(plan.steps[1].kernel.kind, "backward") << plan.reason;
    for (const GpuStep& step : plan.steps) EXPECT_EQ(step.kernel.tile_keys, tile_keys);
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
  EXPECT_TRUE(plan.steps[1].kernel.hopper().has_dq_semaphores) << plan.reason;
}

/// A CTA with 64 query tiles would leave multiprocessors idle if query tiles are few.
TEST(GpuPlan, AllMultiprocessorsClearAndRoundTheAccumulators) {
  const auto ctas_with = [](int64_t batch, int64_t head_dim) {
    // 100 queries, and therefore two query tiles of 64 for each head.
    Problem problem = dense_keys(batch, 64);
    problem.head_dim = problem.head_dim_v = head_dim;
    const GpuPlan plan = hopper_plan_of(problem);
    return std::array{plan.steps.front().work, plan.steps.back().work};
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
    ASSERT_EQ(names_of(plan),
              (std::vector<std::string>{"key_schedule", "wide_backward", "round_grad_query"}));
    for (const GpuStep& step : plan.steps) {
      EXPECT_EQ(step.kernel.tile_keys, 64);
      EXPECT_EQ(step.kernel.stages, stages);
    }
    EXPECT_EQ(part_of(plan, problem).slots, 2 * 70);
    EXPECT_EQ(part_of(plan, problem).whole_keys, 0);
    EXPECT_EQ(part_of(plan, problem).direct_keys, 0);
    EXPECT_FALSE(plan.deterministic);
    const int64_t columns = (head_dim + 15) / 16 * 16;
    EXPECT_EQ(plan.workspace.bytes() - plan.workspace.grad_query,
              (problem.rows_q * problem.heads_q * columns * 4 + 255) / 256 * 256);
  }
}

TEST(GpuPlan, DQOfUpTo512DenseKeysIsSummedInItsTypeWithSemaphores) {
  const auto plan_of_keys = [](int64_t keys, const Mask& mask, bool deterministic = false) {
    Problem problem = dense_keys(70, keys);
    problem.mask = mask;
    problem.deterministic = deterministic;
    return hopper_plan_of(problem);
  };
  for (const Mask& mask : {Mask{}, Mask::causal()}) {
    for (const int64_t keys : {129, 256, 512}) {
      const GpuPlan plan = plan_of_keys(keys, mask);
      EXPECT_EQ(names_of(plan), (std::vector<std::string>{"key_schedule", "backward"})) << plan.reason;
      EXPECT_EQ(plan.workspace.grad_query, -1);
      EXPECT_EQ(part_of(plan, problem).direct_keys, 512);
      EXPECT_GE(part_of(plan, problem).dq_semaphores, 0);
      EXPECT_TRUE(part_of(plan, problem).prepares_grad_query) << "semaphores";
      EXPECT_EQ(plan.deterministic, keys <= 256) << "of two tiles of keys, one stores";
      EXPECT_TRUE(plan_of_keys(keys, mask, true).deterministic);
    }
    EXPECT_GE(plan_of_keys(513, mask).workspace.grad_query, 0) << "more than four tiles of keys";
  }
  Problem jagged = dense_keys(70, 256);
  jagged.key_form = Form::jagged;
  EXPECT_GE(hopper_plan_of(jagged).workspace.grad_query, 0) << "a sequence may be longer than the mean";
  EXPECT_EQ(part_of(hopper_plan_of(jagged), jagged).direct_keys, 512);
}

TEST(GpuPlan, OneTileOfDenseKeysNeedsNoSemaphoreWithoutAMask) {
  Problem problem = dense_keys(70, 128);
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_EQ(part_of(plan, problem).dq_semaphores, -1);
  EXPECT_EQ(part_of(plan, problem).direct_keys, 0);
  EXPECT_FALSE(part_of(plan, problem).prepares_grad_query);
  EXPECT_EQ(plan.workspace.grad_query, -1);
  EXPECT_TRUE(plan.deterministic);
  problem.mask = Mask::causal();
  EXPECT_GE(part_of(hopper_plan_of(problem), problem).dq_semaphores, 0) << "queries that attend to no key";
}

TEST(GpuPlan, OneCtaTakesAllTilesOfKeysOfManyShortSequences) {
  // Two query heads, with 128 columns of Q, dO and dQ in 2 bytes.
  constexpr int64_t most_queries = (128 << 10) / (2 * 3 * 128 * 2);
  const auto whole_keys = [](int64_t batch, int64_t queries, int64_t heads_k = 2) {
    Problem problem = dense_keys(batch, 512);
    problem.rows_q = batch * queries;
    problem.heads_k = heads_k;
    return part_of(hopper_plan_of(problem), problem).whole_keys;
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
  EXPECT_FALSE(part_of(hopper_plan_of(problem), problem).prepares_grad_query);
  problem.query_form = Form::jagged;
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_TRUE(part_of(plan, problem).prepares_grad_query);
  EXPECT_EQ(names_of(plan), (std::vector<std::string>{"key_schedule", "backward"}));
  EXPECT_EQ(plan.workspace.grad_query, -1);
  EXPECT_TRUE(plan.deterministic);
}

TEST(GpuPlan, WhatTheHopperBackwardDoesNotTakeIsPortableAndThePlanSaysWhy) {
  const Problem problem = problem_of(Direction::backward);
  const auto expect_portable = [](const GpuPlan& plan, const char* why) {
    for (const GpuStep& step : plan.steps) EXPECT_EQ(step.kernel.family(), "portable") << why;
    EXPECT_NE(plan.reason.find(why), std::string::npos) << plan.reason;
  };
  expect_portable(hopper_plan_of(problem, 100), "it needs compute capability 9.0, not 10.0");
  expect_portable(hopper_plan_of(problem, 90, false), "some row does not begin at a multiple of 16 bytes");
  expect_portable(hopper_plan_of(problem, 90, true, TensorMaps::unavailable), "strides");
  expect_portable(hopper_plan_of(problem_of(Direction::backward, DType::float32)), "it takes bfloat16 and float16");
  Gpu gpu;
  gpu.shared_bytes = 163 * 1024;
  expect_portable(gpu_plan({problem, gpu, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available}),
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

TEST(GpuPlan, BackwardWithABatchMapHasTheTilesOfTheSequencesOfKeysAndNoSumsOfDKAndDV) {
  const Problem problem = problem_with_map();
  for (const GpuPlan& plan : {plan_of(problem), hopper_plan_of(problem)}) {
    EXPECT_TRUE(plan.steps[0].kernel.has_batch_map);
    EXPECT_EQ(plan.grad_key.offset, -1);
    EXPECT_EQ(plan.grad_value.offset, -1);
  }
  EXPECT_EQ(plan_of(problem).steps[0].work, 2 * (3000 / plan_of(problem).steps[0].kernel.tile_keys + 5 + 2));
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_EQ(main_family(plan), "hopper") << plan.reason;
  EXPECT_EQ(part_of(plan, problem).slots, 2 * (3000 / 128 + 5 + 2));
  EXPECT_GE(part_of(plan, problem).segments, plan.workspace.zeroed_bytes) << "the table of segments is not cleared";
}

TEST(GpuPlan, TheHopperBackwardScalesScoresWhereTheEntriesOfASequenceOfKeysDifferInOutScale) {
  for (const OutScale::Kind kind : {OutScale::Kind::number, OutScale::Kind::reciprocal_length_k,
                                    OutScale::Kind::reciprocal_length_q, OutScale::Kind::per_batch}) {
    Problem problem = problem_with_map();
    problem.out_scale = kind;
    const bool differs = kind == OutScale::Kind::reciprocal_length_q || kind == OutScale::Kind::per_batch;
    EXPECT_EQ(hopper_plan_of(problem).steps[1].kernel.hopper().scales_entries, differs);
    problem.has_batch_map = false;
    EXPECT_FALSE(hopper_plan_of(problem).steps[1].kernel.hopper().scales_entries);
  }
}

TEST(GpuPlan, KeysWithGapsHavePortableKernelsForTheCaseThatTheyOverlap) {
  Problem problem = problem_of(Direction::backward);
  for (const bool has_map : {false, true}) {
    problem.has_batch_map = has_map;
    problem.mapped_entries = 5;
    problem.has_key_gaps = false;
    EXPECT_TRUE(hopper_plan_of(problem).overlap_steps.empty());
    problem.has_key_gaps = true;
    for (const GpuPlan& plan : {plan_of(problem), hopper_plan_of(problem)}) {
      EXPECT_NE(plan.reason.find("where sequences of keys overlap, portable kernels compute"), std::string::npos);
      for (const GpuStep& step : plan.steps) EXPECT_EQ(step.kernel.for_overlap, KeyOverlap::none);
      ASSERT_EQ(plan.overlap_steps.size(), 2U);
      EXPECT_TRUE(plan.overlap_steps[0].kernel.owns_rows);
      EXPECT_FALSE(plan.overlap_steps[0].kernel.portable().reduce_grad_query);
      EXPECT_EQ(plan.overlap_steps[1].kernel.kind, "backward_query");
      for (const GpuStep& step : plan.overlap_steps) EXPECT_EQ(step.kernel.for_overlap, KeyOverlap::some);
    }
    EXPECT_EQ(main_family(hopper_plan_of(problem)), "hopper");
  }
}

TEST(GpuPlan, KernelsThatOwnQueriesRunWhetherOrNotKeysOverlap) {
  Problem problem = problem_of(Direction::backward);
  problem.has_key_gaps = problem.deterministic = true;
  const GpuPlan plan = plan_of(problem);
  EXPECT_TRUE(plan.deterministic);
  EXPECT_EQ(plan.steps[1].kernel.kind, "backward_query");
  EXPECT_EQ(plan.steps[1].kernel.for_overlap, KeyOverlap::any);
  EXPECT_EQ(plan.overlap_steps.size(), 1U);

  problem.wanted = {true, false, false};
  EXPECT_TRUE(plan_of(problem).overlap_steps.empty());
  EXPECT_TRUE(hopper_plan_of(problem).overlap_steps.empty()) << "dQ of a sequence has one kernel in every batch";
  EXPECT_EQ(hopper_plan_of(problem).steps[0].kernel.for_overlap, KeyOverlap::any);
  problem.deterministic = false;
  ASSERT_EQ(hopper_plan_of(problem).overlap_steps.size(), 1U) << "its dQ has tiles of keys as owners";
  EXPECT_EQ(hopper_plan_of(problem).overlap_steps[0].kernel.kind, "backward_query");

  problem.wanted = {};
  problem.query_form = Form::shared;
  const GpuPlan shared = hopper_plan_of(problem);
  EXPECT_EQ(shared.steps[0].kernel.family(), "portable");
  EXPECT_NE(shared.reason.find("the batch shares queries, and keys may overlap"), std::string::npos) << shared.reason;
}

TEST(GpuPlan, AMaskWithABatchMapIsPortableWhereItsTilesNeedTooMuchMemory) {
  Problem problem = problem_with_map();
  problem.batch = 20'000;
  problem.rows_k = 128'000;
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "hopper");
  problem.mask = Mask::causal();
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_EQ(main_family(plan), "portable");
  EXPECT_NE(plan.reason.find("the tiles that a mask keeps need too much memory"), std::string::npos) << plan.reason;
  problem.deterministic = true;
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "hopper") << "as in a smaller batch";
  problem.deterministic = false;
  problem.key_form = Form::dense;  // the host knows the lengths
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "hopper");
}

TEST(GpuPlan, TheHopperBackwardTakesEveryHeadDimAndASideThatABatchOfOneShares) {
  const auto expect_hopper = [](const Problem& problem) {
    const GpuPlan plan = hopper_plan_of(problem);
    expect_family(plan, "hopper");
  };
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    Problem problem = problem_of(Direction::backward, dtype);
    for (problem.head_dim = 8; problem.head_dim <= 256; problem.head_dim += 8) {
      for (problem.head_dim_v = 8; problem.head_dim_v <= 256; problem.head_dim_v += 8) expect_hopper(problem);
    }
  }
  Problem problem = problem_of(Direction::backward);
  problem.batch = 1;
  problem.key_form = problem.query_form = Form::shared;
  expect_hopper(problem);
}

TEST(GpuPlan, TheHopperBackwardSumsTheGradientsOfSharedKeysForPartsOfTheBatch) {
  Problem problem = problem_of(Direction::backward);
  problem.batch = 1152;
  problem.rows_q = 1'000'000;
  problem.key_form = Form::shared;
  problem.rows_k = 200;
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_EQ(names_of(plan), (std::vector<std::string>{"key_schedule", "backward"}));
  EXPECT_TRUE(plan.steps[0].kernel.keys_shared);
  EXPECT_TRUE(plan.steps[1].kernel.keys_shared);
  // Two heads of two key tiles, each in its own CTA: as many parts as make a piece of work for each multiprocessor.
  EXPECT_EQ(plan.splits, 33);
  EXPECT_EQ(part_of(plan, problem).slots, 2 * 2 * plan.splits);
  EXPECT_EQ(plan.grad_value.offset - plan.grad_key.offset, plan.splits * 200 * 2 * 128 * 4);
  EXPECT_EQ(plan.workspace.bytes() - plan.grad_value.offset, plan.splits * 200 * 2 * 128 * 4);
  EXPECT_EQ(plan.workspace.grad_query, -1);
  EXPECT_TRUE(plan.deterministic);

  problem.rows_k = 600;
  const GpuPlan with_sums = hopper_plan_of(problem);
  EXPECT_EQ(names_of(with_sums), (std::vector<std::string>{"key_schedule", "backward"}));
  EXPECT_GE(with_sums.workspace.grad_query, 0);
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
  EXPECT_EQ(names_of(plan),
            (std::vector<std::string>{"key_schedule", "backward", "round_grad_query"}));
  EXPECT_EQ(part_of(plan, problem).whole_keys, 0) << "no sequence stores dQ to which others add";
  EXPECT_EQ(plan.workspace.bytes() - plan.workspace.grad_query, 100 * 4 * 128 * 4);
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
  for (std::size_t step = 0; step < 2; ++step) {
    EXPECT_FALSE(any_order.steps[step].kernel.hopper().ordered);
    EXPECT_TRUE(one_order.steps[step].kernel.hopper().ordered);
  }
  EXPECT_EQ(one_order.hopper().semaphores_per_head, 1000 / 64 + 10 + 2);
  EXPECT_EQ(one_order.workspace.bytes, any_order.workspace.bytes);
  EXPECT_GE(one_order.workspace.grad_query - one_order.hopper().dq_semaphores,
            4 * one_order.hopper().semaphores_per_head * 4)
      << "of 4 heads";
}

TEST(GpuPlan, ACtaHasGoneTwoStepsOrFourInDeterministicModeWhenItsHeadsNextTileOfKeysIsBegun) {
  Problem problem = dense_keys(64, 2048);
  const auto heads_per_group = [&](int64_t queries) {
    problem.rows_q = problem.batch * queries;
    return part_of(hopper_plan_of(problem), problem).heads_per_group;
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
  EXPECT_LE(hopper_plan_of(shared).workspace.zeroed_bytes, 256) << "the schedule clears sums, and writes the table";

  for (const auto& [head_dim, columns] :
       {std::pair{40, 64}, std::pair{64, 64}, std::pair{72, 128}, std::pair{128, 128}}) {
    const GpuPlan plan = hopper_plan_of(problem_of(Direction::backward, DType::bfloat16, head_dim));
    const GpuWorkspace& workspace = plan.workspace;
    EXPECT_EQ(part_of(plan, problem).slot_counter, 0);
    EXPECT_GE(workspace.zeroed_bytes, static_cast<int64_t>(sizeof(unsigned)));
    const int64_t table_end =
        part_of(plan, problem).key_tiles + part_of(plan, problem).slots * static_cast<int64_t>(sizeof(hopper::KeyTile<WindowMask>));
    EXPECT_LT(workspace.zeroed_bytes - table_end, 256) << "tiles stand where they have to, and sums are begun";
    EXPECT_GE(part_of(plan, problem).dq_semaphores, workspace.zeroed_bytes);
    EXPECT_GT(workspace.grad_query, part_of(plan, problem).dq_semaphores);
    const int64_t sums = int64_t{1000} * 4 * columns * 4;  // whole halves of 32 or 64 columns
    EXPECT_GE(workspace.bytes, workspace.grad_query + sums) << head_dim;
    for (const int64_t at : {part_of(plan, problem).key_tiles, workspace.grad_query, workspace.bytes}) EXPECT_EQ(at % 256, 0);
    EXPECT_EQ(grad_key.offset, -1);
    EXPECT_EQ(grad_value.offset, -1);
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
          const KernelSpec kernel = hopper_plan_of(problem).steps[0].kernel;
          ASSERT_EQ(kernel.family(), "hopper");
          visit(kernel);
        }
      }
    }
  }
}

int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

TEST(GpuPlan, EveryHopperTileFitsSharedMemory) {
  visit_hopper_kernels([](const KernelSpec& kernel) {
    constexpr int ring_and_barriers = 2816 + 128;
    const int row = round_up(kernel.head_dim, 64) * 2, row_v = round_up(kernel.head_dim_v, 64) * 2;
    const int query = kernel.hopper().query_in_registers ? std::max(row, row_v) : row;
    const int bytes = kernel.hopper().query_stages * kernel.tile_queries * query +
                      kernel.stages * kernel.tile_keys * (row + row_v) + ring_and_barriers;
    ASSERT_LE(bytes, Gpu{}.shared_bytes) << kernel.head_dim << " x " << kernel.head_dim_v;
  });
}

/// 224 registers, of which the compiler needs 32 for all else.
TEST(GpuPlan, EveryHopperTileFitsTheRegistersOfAThread) {
  visit_hopper_kernels([](const KernelSpec& kernel) {
    const int query = kernel.hopper().query_in_registers ? round_up(kernel.head_dim, 16) / 4 : 0;
    const int scores = kernel.tile_keys / 2, weights = kernel.tile_keys / 4;
    const int output = std::max(32, round_up(kernel.head_dim_v, 32) / 2);
    ASSERT_LE(query + scores + weights + output, 192) << kernel.head_dim << " x " << kernel.head_dim_v;
  });
}

TEST(GpuPlan, WideHeadsKeepQueriesInRegistersWhereThereIsRoomForSixtyFourKeys) {
  const auto kernel_of = [](int64_t head_dim, int64_t head_dim_v) {
    Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
    problem.head_dim_v = head_dim_v;
    problem.rows_k = 2048 * problem.batch;
    return hopper_plan_of(problem).steps[0].kernel;
  };
  const auto expect_tile = [&](int64_t head_dim, int64_t head_dim_v, bool query_in_registers, int tile_keys) {
    const KernelSpec kernel = kernel_of(head_dim, head_dim_v);
    EXPECT_EQ(kernel.hopper().query_in_registers, query_in_registers) << head_dim << " x " << head_dim_v;
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
    const KernelSpec kernel = hopper_plan_of(problem).steps[0].kernel;
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
  EXPECT_EQ(hopper_plan_of(problem).hopper().tiles.order, hopper::TileOrder::contiguous);
  const auto stages_with = [&](int64_t keys) {
    problem.rows_k = keys * problem.batch;
    const KernelSpec kernel = hopper_plan_of(problem).steps[0].kernel;
    return std::array{kernel.stages, kernel.hopper().query_stages};
  };
  EXPECT_EQ(stages_with(256), (std::array{2, 3}));
  EXPECT_EQ(stages_with(257), (std::array{3, 1}));
  EXPECT_EQ(stages_with(384), (std::array{3, 1}));
  EXPECT_EQ(hopper_plan_of(problem).hopper().tiles.order, hopper::TileOrder::contiguous);
  EXPECT_EQ(stages_with(385), (std::array{2, 3}));
  EXPECT_NE(hopper_plan_of(problem).hopper().tiles.order, hopper::TileOrder::contiguous);
  problem.key_form = Form::shared;
  problem.rows_k = 256;
  EXPECT_EQ(hopper_plan_of(problem).hopper().tiles.order, hopper::TileOrder::contiguous);
}

/// The tiles of a head belong to one CTA. With few heads, a CTA with one more head would end late.
TEST(GpuPlan, CtasTakeTheTilesOfHeadsFromACounterIfTheyHaveManyHeadsWithFewKeys) {
  const auto hopper_of = [](const Problem& problem) { return hopper_plan_of(problem).hopper(); };
  Problem problem = problem_of(Direction::forward);
  problem.heads_q = problem.heads_k = 4;
  problem.batch = 1200;
  problem.rows_q = 256 * problem.batch;
  problem.rows_k = 200 * problem.batch;
  EXPECT_EQ(hopper_of(problem).tiles.order, hopper::TileOrder::dynamic);
  EXPECT_EQ(hopper_of(problem).tiles.taken_at_once, 2U);
  EXPECT_EQ(hopper_of(problem).tiles.ctas_per_range, 1);
  Problem grouped = problem;
  grouped.heads_q = 8;
  EXPECT_EQ(hopper_of(grouped).tiles.taken_at_once, 4U) << "both query heads have the same keys";
  Problem long_queries = problem;
  long_queries.rows_q = 10000 * problem.batch;
  EXPECT_EQ(hopper_of(long_queries).tiles.taken_at_once, 16U);
  Problem one_key_tile = long_queries;
  one_key_tile.rows_k = 100 * problem.batch;
  EXPECT_EQ(hopper_of(one_key_tile).tiles.taken_at_once, 16U);

  Problem short_heads = problem;
  short_heads.rows_q = short_heads.rows_k = 100 * problem.batch;
  EXPECT_EQ(hopper_of(short_heads).tiles.order, hopper::TileOrder::dynamic);
  EXPECT_EQ(hopper_of(short_heads).tiles.taken_at_once, 4U) << "of four heads";
  Problem very_short = problem;
  very_short.rows_q = very_short.rows_k = 48 * problem.batch;
  EXPECT_EQ(hopper_of(very_short).tiles.order, hopper::TileOrder::contiguous);
  very_short.rows_k = 49 * problem.batch;
  EXPECT_EQ(hopper_of(very_short).tiles.order, hopper::TileOrder::dynamic);

  Problem few = problem;
  few.batch = 200;
  few.rows_q = 256 * few.batch;
  few.rows_k = 200 * few.batch;
  EXPECT_EQ(hopper_of(few).tiles.order, hopper::TileOrder::contiguous);
  EXPECT_EQ(hopper_of(few).tiles.ctas_per_range, 4) << "a CTA for each head";
  few.heads_q = few.heads_k = 5;
  EXPECT_EQ(hopper_of(few).tiles.ctas_per_range, 1) << "132 is no multiple of 5";
  Problem shared = problem;
  shared.key_form = Form::shared;
  shared.rows_k = 200;
  EXPECT_EQ(hopper_of(shared).tiles.order, hopper::TileOrder::contiguous);

  Problem pooling = problem;
  pooling.query_form = Form::shared;
  pooling.rows_q = 32;
  pooling.rows_k = 1000 * problem.batch;
  pooling.batch = 2000;
  EXPECT_EQ(hopper_of(pooling).tiles.order, hopper::TileOrder::dynamic);
  EXPECT_EQ(hopper_of(pooling).tiles.taken_at_once, 1U);
}

/// A launch that clears the counter costs more than it saves if CTAs have few key tiles, or if all query tiles are
/// equal or short.
TEST(GpuPlan, CtasTakeTilesFromACounterIfTheyHaveManyThatDiffer) {
  const auto order_of = [](const Problem& problem) { return hopper_plan_of(problem).hopper().tiles.order; };
  Problem problem = problem_of(Direction::forward);
  problem.batch = 66;
  problem.rows_q = 1024 * problem.batch;
  problem.rows_k = 2048 * problem.batch;
  EXPECT_EQ(order_of(problem), hopper::TileOrder::dynamic);
  const GpuPlan plan = hopper_plan_of(problem);
  EXPECT_GT(plan.workspace.zeroed_bytes, std::max(plan.hopper().tiles_taken, plan.hopper().found_nan))
      << "the counters are cleared";

  Problem many_short = problem;
  many_short.batch = 1056;
  many_short.rows_q = many_short.rows_k = 512 * many_short.batch;
  EXPECT_EQ(order_of(many_short), hopper::TileOrder::strided);
  many_short.mask = Mask::causal();
  EXPECT_EQ(order_of(many_short), hopper::TileOrder::dynamic);

  Problem few = problem;
  few.heads_q = few.heads_k = 1;
  few.rows_q = 128 * problem.batch;
  EXPECT_EQ(order_of(few), hopper::TileOrder::strided);
  EXPECT_EQ(hopper_plan_of(few).workspace.zeroed_bytes, 0) << "nothing has to be cleared";

  Problem equal = problem;
  equal.query_form = equal.key_form = Form::dense;
  EXPECT_EQ(order_of(equal), hopper::TileOrder::strided);
  equal.mask = Mask::causal();
  EXPECT_EQ(order_of(equal), hopper::TileOrder::dynamic);
}

GpuPlan plan_with_scale(const Problem& problem, const char* function, double scale) {
  GpuPlan plan = plan_of(problem);
  take_scale_out(plan, Activation(function).function().value(), scale);
  return plan;
}

TEST(GpuPlan, TheOutputTakesTheScaleOfHomogeneousFunctions) {
  const Problem problem = problem_of(Direction::forward);
  for (const auto& [function, factor] : {std::pair{"relu", 0.25}, std::pair{"leaky_relu", 0.25},
                                         std::pair{"relu2", 0.0625}, std::pair{"sqrt(abs(s))", 0.5}}) {
    const GpuPlan plan = plan_with_scale(problem, function, 0.25);
    EXPECT_FALSE(plan.steps[0].kernel.scales_scores) << function;
    EXPECT_EQ(plan.output_factor, factor) << function;
  }
}

TEST(GpuPlan, ScoresAreScaledWhereTheOutputCannotTakeTheScale) {
  const auto scales_scores = [](const Problem& problem, const char* function, double scale) {
    const GpuPlan plan = plan_with_scale(problem, function, scale);
    EXPECT_EQ(plan.output_factor, plan.steps[0].kernel.scales_scores ? 1 : std::fabs(scale));
    return plan.steps[0].kernel.scales_scores;
  };
  const Problem problem = problem_of(Direction::forward);
  EXPECT_FALSE(scales_scores(problem, "relu", 1e-3));
  EXPECT_TRUE(scales_scores(problem, "gelu", 1e-3));
  EXPECT_TRUE(scales_scores(problem, "relu", -1e-3));  // relu(-s) is no multiple of relu(s)
  EXPECT_TRUE(scales_scores(problem, "relu2", -1e-3));
  EXPECT_TRUE(scales_scores(problem, "relu", 0));
  EXPECT_TRUE(scales_scores(problem, "relu", 1e-12));  // unscaled weights may overflow
  EXPECT_TRUE(scales_scores(problem, "relu", 1e12));   // or vanish
  EXPECT_TRUE(scales_scores(problem_of(Direction::forward, DType::float16), "relu", 1e-3));
  EXPECT_TRUE(scales_scores(problem_of(Direction::backward), "relu", 1e-3)) << "a portable kernel";
}

/// The kernel of Hopper's backward for gelu_tanh or another function with guards.
KernelSpec guarded_backward(const Problem& problem) {
  GpuPlan plan =
      gpu_plan({problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available, true});
  take_scale_out(plan, Activation("gelu_tanh").function().value(), 0.125);
  return plan.steps.at(1).kernel;
}

TEST(GpuPlan, HopperBackwardHasConstantFactorsWhereEveryResultTakesThem) {
  const auto takes_factors = [](const Problem& problem) {
    return guarded_backward(problem).hopper().takes_constant_factors;
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
    GpuPlan plan = hopper_plan_of(problem_of(Direction::backward, dtype));
    take_scale_out(plan, Activation(function).function().value(), scale);
    return plan.steps.at(1).kernel.scales_scores;
  };
  EXPECT_FALSE(scales_scores("relu", 0.125));
  EXPECT_FALSE(scales_scores("relu2", 0.125));
  EXPECT_TRUE(scales_scores("tanh", 0.125));
  EXPECT_TRUE(scales_scores("relu", -0.125)) << "relu(-s) is no multiple of relu(s)";
  EXPECT_TRUE(scales_scores("relu", 1e-12)) << "unscaled weights may overflow";
  EXPECT_TRUE(scales_scores("relu", 0.125, DType::float16));
}

/// The steps that may start before the previous step of the call has ended.
std::vector<std::size_t> overlapping_steps(const GpuPlan& plan) {
  std::vector<std::size_t> steps;
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    if (plan.steps[step].overlaps_previous) steps.push_back(step);
  }
  return steps;
}

TEST(GpuPlan, AStepThatFollowsAnotherHopperKernelOverlapsIt) {
  const std::vector<std::size_t> second = {1};
  const Problem problem = problem_of(Direction::forward);
  families::PlanRequest request = {
      problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available};
  request.bounds_scores = true;
  const GpuPlan forward = gpu_plan(request);
  ASSERT_EQ(forward.steps.size(), 2U) << "the second pass";
  EXPECT_EQ(overlapping_steps(forward), second);
  const GpuPlan backward = hopper_plan_of(problem_of(Direction::backward));
  ASSERT_EQ(names_of(backward), (std::vector<std::string>{"key_schedule", "backward"}));
  EXPECT_EQ(overlapping_steps(backward), second);
  EXPECT_EQ(overlapping_steps(plan_of(problem_of(Direction::backward))), std::vector<std::size_t>{})
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
  GpuPlan plan =
      gpu_plan({problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available, true});
  using hopper::Pass;
  std::vector<std::pair<KernelKind, Pass>> steps;
  for (const GpuStep& step : plan.steps) steps.emplace_back(step.kernel.kind, step.kernel.hopper().pass);
  const std::vector<std::pair<KernelKind, Pass>> expected = {{"key_schedule", Pass::only},
                                                             {"backward", Pass::first},
                                                             {"key_schedule", Pass::second},
                                                             {"backward", Pass::second},
                                                             {"round_grad_query", Pass::only}};
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(plan.steps[2].work, plan.steps[0].work);
  EXPECT_EQ(plan.steps[3].work, plan.steps[1].work);
  EXPECT_EQ(overlapping_steps(plan), (std::vector<std::size_t>{1, 2, 3}))
      << "the step before round_grad_query does not allow it to start early";

  const auto portable_steps = [&](bool has_guards) {
    return gpu_plan({problem, Gpu{}, FunctionRegisters::few, false, Float32Products::three, TensorMaps::unavailable,
                     has_guards})
        .steps.size();
  };
  EXPECT_EQ(portable_steps(true), portable_steps(false));
}

/// Hopper's backward computes a split of the batch as one sequence where the batch shares the keys.
TEST(GpuPlan, SharedKeysAndAFunctionOfTheQueryPositionTakeThePortableBackward) {
  Problem problem = problem_of(Direction::backward);
  problem.key_form = Form::shared;
  problem.rows_k = 500;
  const auto plan_with = [&](bool reads_query_position) {
    return gpu_plan({problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available, false,
                     0, 0, reads_query_position});
  };
  EXPECT_EQ(main_family(plan_with(false)), "hopper");
  const GpuPlan plan = plan_with(true);
  EXPECT_EQ(main_family(plan), "portable");
  EXPECT_NE(plan.reason.find("f depends on the position of a query"), std::string::npos) << plan.reason;
}

TEST(GpuPlan, HopperForwardOfSeveralReadsHasNarrowTilesOfKeys) {
  for (const auto& [head_dim, tile_keys] : {std::pair{64, 96}, std::pair{128, 112}, std::pair{256, 64}}) {
    Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
    problem.rows_q = problem.rows_k = 20000;
    const auto plan_with = [&](int reads) {
      return gpu_plan(
          {problem, Gpu{}, FunctionRegisters::many, true, Float32Products::three, TensorMaps::available, false, reads});
    };
    const GpuPlan plan = plan_with(2);
    EXPECT_EQ(plan.steps.front().kernel.tile_keys, tile_keys);
    EXPECT_NE(plan.reason.find("tiles of keys are narrow"), std::string::npos) << plan.reason;
    const int otherwise = plan_with(0).steps.front().kernel.tile_keys;
    EXPECT_GT(otherwise, tile_keys);
    EXPECT_EQ(plan_with(1).steps.front().kernel.tile_keys, otherwise);
  }
}

/// The inputs of the keys and differences of a tile need shared memory.
TEST(GpuPlan, HopperForwardWithStagedInputsHasFewerStages) {
  for (const int64_t length : {50, 100, 300, 5000}) {
    Problem problem = problem_of(Direction::forward, DType::bfloat16, 128);
    problem.rows_q = problem.rows_k = length * problem.batch;
    const auto kernel_with = [&](int reads_of_lines) {
      return gpu_plan({problem, Gpu{}, FunctionRegisters::many, true, Float32Products::three, TensorMaps::available,
                       false, 1, reads_of_lines})
          .steps.front()
          .kernel;
    };
    const KernelSpec kernel = kernel_with(1);
    const int rows = kernel.hopper().query_stages * kernel.tile_queries + 2 * kernel.stages * kernel.tile_keys;
    const int inputs = kernel.warps * (2 * kernel.tile_keys + 15) * 4;
    EXPECT_LE(rows * 128 * 2 + inputs, 224 * 1024) << length;
    EXPECT_EQ(kernel.tile_keys, kernel_with(0).tile_keys) << length;
    EXPECT_GE(kernel.stages, 2) << length;
  }
}

/// A tile of a dense bias needs shared memory, which stages of Q give up.
TEST(GpuPlan, HopperForwardStagesADenseBiasIfItFits) {
  for (const int64_t head_dim : {64, 128, 192, 256}) {
    for (const int64_t length : {50, 100, 300, 5000}) {
      for (const auto& [element_bytes, rows_of_bias] : {std::pair{0, BiasTile::none},
                                                        {2, BiasTile::aligned},
                                                        {2, BiasTile::unaligned},
                                                        {4, BiasTile::aligned},
                                                        {4, BiasTile::unaligned}}) {
        SCOPED_TRACE(testing::Message() << head_dim << ", " << length << " keys, " << element_bytes << " bytes");
        Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
        problem.rows_q = problem.rows_k = length * problem.batch;
        families::PlanRequest request{
            problem, Gpu{}, FunctionRegisters::many, true, Float32Products::three, TensorMaps::available};
        request.reads = 1;
        request.tile_element_bytes = element_bytes;
        request.bias_tile = rows_of_bias;
        const GpuPlan plan = gpu_plan(request);
        const KernelSpec& kernel = plan.steps.front().kernel;
        const HopperSpec& hopper = kernel.hopper();
        EXPECT_TRUE(head_dim > 128 || hopper.bias_tile == rows_of_bias);
        EXPECT_EQ(plan.reason.find("copied to shared memory") != std::string::npos, hopper.bias_tile != BiasTile::none);
        const int64_t bias = kernel.tile_queries * staged_row_bytes(hopper.bias_tile, kernel.tile_keys * element_bytes);
        const int64_t rows = hopper.query_stages * kernel.tile_queries + 2 * kernel.stages * kernel.tile_keys;
        EXPECT_LE(rows * head_dim * 2 + bias, 224 * 1024);
        EXPECT_GE(kernel.stages, 2);
        const bool has_bias = hopper.bias_tile != BiasTile::none;
        EXPECT_TRUE(!has_bias || head_dim > 128 || hopper.query_stages >= 2) << "for three stages of K and V";
      }
    }
  }
}

/// So do the elements of lookups.
TEST(GpuPlan, HopperForwardStagesLookupsIfTheyFit) {
  for (const int64_t head_dim : {64, 128, 192, 256}) {
    for (const int64_t length : {50, 100, 300, 5000}) {
      for (const int lookups : {0, 1, 2}) {
        SCOPED_TRACE(testing::Message() << head_dim << ", " << length << " keys, " << lookups << " lookups");
        Problem problem = problem_of(Direction::forward, DType::bfloat16, head_dim);
        problem.rows_q = problem.rows_k = length * problem.batch;
        families::PlanRequest request{
            problem, Gpu{}, FunctionRegisters::many, true, Float32Products::three, TensorMaps::available};
        request.reads = 2 + lookups;
        request.reads_of_lines = 1;
        request.lookups = lookups;
        const GpuPlan plan = gpu_plan(request);
        const KernelSpec& kernel = plan.steps.front().kernel;
        const HopperSpec& hopper = kernel.hopper();
        EXPECT_TRUE(head_dim > 128 || hopper.stages_lookups == (lookups > 0));
        EXPECT_EQ(plan.reason.find("lookups are copied to shared memory") != std::string::npos, hopper.stages_lookups);
        const int64_t elements = hopper.stages_lookups ? kernel.warps * lookup_bytes(lookups, kernel.tile_keys) : 0;
        const int64_t rows = hopper.query_stages * kernel.tile_queries + 2 * kernel.stages * kernel.tile_keys;
        EXPECT_LE(rows * head_dim * 2 + elements, 224 * 1024);
        EXPECT_GE(kernel.stages, 2);
      }
    }
  }
}

/// The Hopper plan of backward for keys long enough for sums of dQ, with the guards left out where they may be.
GpuPlan hopper_plan_wanting(WantedGradients wanted, bool deterministic = false) {
  Problem problem = problem_of(Direction::backward);
  problem.wanted = wanted;
  problem.deterministic = deterministic;
  GpuPlan plan =
      gpu_plan({problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available, true});
  return plan;
}

TEST(GpuPlan, HopperBackwardWithoutDQHasNoSumsAndNoOrderToKeep) {
  for (const bool deterministic : {false, true}) {
    const GpuPlan plan = hopper_plan_wanting({false, true, true}, deterministic);
    EXPECT_TRUE(plan.deterministic);
    EXPECT_EQ(plan.workspace.grad_query, -1);
    EXPECT_EQ(part_of(plan, problem).dq_semaphores, -1);
    EXPECT_FALSE(part_of(plan, problem).prepares_grad_query);
    for (const GpuStep& step : plan.steps) {
      EXPECT_FALSE(step.kernel.hopper().has_dq_semaphores || step.kernel.hopper().ordered ||
                   step.kernel.wants_grad_query);
    }
  }
}

TEST(GpuPlan, HopperBackwardLeavesGuardsOutOnlyWhereInfinitiesShowInDKOrDV) {
  const auto has_two_passes = [](WantedGradients wanted) {
    return hopper_plan_wanting(wanted).steps[1].kernel.hopper().pass == hopper::Pass::first;
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
        std::vector<std::string> kinds;
        for (const GpuStep& step : plan.steps) kinds.push_back(step.kernel.kind);
        std::vector<std::string> expected;
        if (wants_keys) expected.push_back("backward");
        if (wanted.query && !adds_to_query) expected.push_back("backward_query");
        EXPECT_EQ(kinds, expected);
        if (wants_keys) {
          const KernelSpec& kernel = plan.steps[0].kernel;
          EXPECT_EQ(kernel.portable().reduce_grad_query, adds_to_query);
          EXPECT_EQ(kernel.wants_grad_key, wanted.key);
          EXPECT_EQ(kernel.wants_grad_value, wanted.value);
        }
        EXPECT_EQ(plan.reduces_grad_query, adds_to_query);
        EXPECT_EQ(plan.deterministic, !adds_to_query);
        const int64_t row = int64_t{4} * 128;  // bytes of a row of one head in fp32
        const int64_t partial = shares_keys ? plan.splits * 3000 * 2 * row : 0;
        EXPECT_EQ(plan.workspace.bytes(),
                  (adds_to_query ? 1000 * 4 * row : 0) + (wanted.key ? partial : 0) + (wanted.value ? partial : 0));
        EXPECT_EQ(plan.workspace.grad_query >= 0, adds_to_query);
        EXPECT_EQ(plan.grad_key.offset >= 0, shares_keys && wanted.key);
        EXPECT_EQ(plan.grad_value.offset >= 0, shares_keys && wanted.value);
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
        const GpuPlan plan =
            gpu_plan({problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available});
        int count = 0;
        for (const GpuStep& step : plan.steps) {
          if (step.kernel.kind != "backward" && step.kernel.kind != "wide_backward") continue;
          ++count;
          EXPECT_EQ(step.kernel.wants_grad_query, wanted.query);
          EXPECT_EQ(step.kernel.wants_grad_key, wanted.key);
          EXPECT_EQ(step.kernel.wants_grad_value, wanted.value);
        }
        EXPECT_EQ(count, 1);
        EXPECT_TRUE(wanted.query || part_of(plan, problem).whole_keys == 0) << "only dQ needs all keys in one CTA";
        EXPECT_EQ(plan.workspace.grad_query >= 0, wanted.query);
        EXPECT_EQ(plan.grad_key.offset >= 0, shares_keys && wanted.key);
        EXPECT_EQ(plan.grad_value.offset >= 0, shares_keys && wanted.value);
      }
    }
  }
}

TEST(GpuPlan, TheKernelsThatStoreOOrDQAddTheQueryAndNoOtherKernelDiffers) {
  const auto adding = [](const Problem& problem, auto plan_of_problem) {
    Problem added = problem;
    added.add_query = true;
    const GpuPlan plain = plan_of_problem(problem), plan = plan_of_problem(added);
    EXPECT_EQ(names_of(plan), names_of(plain));
    EXPECT_EQ(plan.workspace.bytes(), plain.workspace.bytes);
    std::vector<std::string> kinds;
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      KernelSpec kernel = plan.steps[i].kernel;
      if (kernel.adds_query) kinds.push_back(kernel.kind);
      kernel.adds_query = false;
      EXPECT_EQ(kernel, plain.steps[i].kernel);
    }
    return kinds;
  };
  const auto on_hopper = [](const Problem& problem) { return hopper_plan_of(problem); };
  using Kinds = std::vector<std::string>;
  EXPECT_EQ(adding(problem_of(Direction::forward), plan_of), Kinds{"forward"});
  EXPECT_EQ(adding(problem_of(Direction::forward), on_hopper), Kinds{"forward"});
  Problem backward = problem_of(Direction::backward);
  EXPECT_EQ(adding(backward, plan_of), Kinds{}) << "the reduce kernel, which is not a step of the plan, adds";
  EXPECT_EQ(adding(backward, on_hopper), (Kinds{"key_schedule", "backward"}));
  backward.head_dim = backward.head_dim_v = 256;
  EXPECT_EQ(adding(backward, on_hopper), (Kinds{"key_schedule", "round_grad_query"}));
  backward.deterministic = true;
  EXPECT_EQ(adding(backward, plan_of), Kinds{"backward_query"});
  backward.deterministic = false;
  backward.wanted.query = false;
  EXPECT_EQ(adding(backward, on_hopper), Kinds{});
}

TEST(GpuPlan, DeterministicModeWithoutDQKeepsTheHopperKernels) {
  const auto expect_hopper_kernels = [](auto change) {
    Problem problem = problem_of(Direction::backward);
    problem.deterministic = true;
    problem.wanted = {false, true, true};
    change(problem);
    const GpuPlan plan = hopper_plan_of(problem);
    EXPECT_TRUE(plan.deterministic);
    expect_family(plan, "hopper");
  };
  expect_hopper_kernels([](Problem& problem) { problem.head_dim = 136; });
  expect_hopper_kernels([](Problem& problem) { problem.key_form = Form::shared; });
  expect_hopper_kernels([](Problem& problem) { problem.query_form = Form::shared; });
}

// --- gradients of tensors

/// f reads an element of w, a tensor of `elements` numbers for each of four heads.
struct Table {
  explicit Table(int64_t elements) : activation("silu(s + w[head, abs(q_idx - kv_idx) + kv_idx])", {}, {"w"}) {
    BoundTensor& w = params.parameters[0];
    w.rank = 2;
    w.sizes[0] = 4;
    w.sizes[1] = w.strides[0] = elements;
    w.strides[1] = 1;
    params.grad_parameters[0] = w;
  }

  GpuPlan plan(Problem problem, int capability = 90, bool aligned = true, TensorMaps maps = TensorMaps::available,
               int kilobytes = 227) const {
    problem.wanted.parameters = 1;
    Gpu gpu;
    gpu.capability = capability;
    gpu.shared_bytes = kilobytes * 1024;
    GpuPlan plan;
    families::add_parameter_gradients(
        {problem, gpu, FunctionRegisters::many, aligned, Float32Products::three, maps, false, 1}, params,
        activation.function(), plan);
    return plan;
  }

  Activation activation;
  Params params;
};

TEST(GpuPlan, TheGradientsOfTensorsHaveAHopperKernelOfOneCtaForEachMultiprocessor) {
  Problem problem = problem_of(Direction::backward);
  problem.rows_q = 100'000;
  const GpuPlan plan = Table(64).plan(problem);
  ASSERT_EQ(plan.parameter_steps.size(), 2U);
  EXPECT_EQ(plan.parameter_steps[0].kernel.family(), "hopper");
  EXPECT_EQ(plan.parameter_steps[0].work, Gpu{}.multiprocessors);
  EXPECT_EQ(plan.parameter_steps[1].kernel.kind, "round_parameters");
  problem.rows_q = 100;
  problem.batch = 1;
  EXPECT_EQ(Table(64).plan(problem).parameter_steps[0].work, problem.heads_q * 3);
}

TEST(GpuPlan, TheGradientsOfTensorsArePortableWhereHopperKernelsAreNotAndThePlanSaysWhy) {
  const Problem problem = problem_of(Direction::backward);
  const auto expect_portable = [](const GpuPlan& plan, const char* why) {
    EXPECT_EQ(plan.parameter_steps[0].kernel.family(), "portable");
    EXPECT_NE(plan.reason.find(why), std::string::npos) << plan.reason;
  };
  expect_portable(Table(64).plan(problem, 100), "compute capability 9.0, not 10.0");
  expect_portable(Table(64).plan(problem, 90, false), "16 bytes");
  expect_portable(Table(64).plan(problem, 90, true, TensorMaps::unavailable), "strides");
  expect_portable(Table(64).plan(problem_of(Direction::backward, DType::float32)), "bfloat16 and float16");
}

TEST(GpuPlan, TheHopperKernelOfGradientsOfTensorsTakesWhatTheHopperBackwardDoesNot) {
  Problem problem = problem_of(Direction::backward, DType::bfloat16, 256);
  problem.deterministic = true;
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "portable");
  EXPECT_EQ(Table(64).plan(problem).parameter_steps[0].kernel.family(), "hopper");
  problem = problem_of(Direction::backward);
  problem.key_form = Form::shared;
  problem.mask = Mask::causal();
  EXPECT_EQ(main_family(hopper_plan_of(problem)), "portable");
  EXPECT_EQ(Table(64).plan(problem).parameter_steps[0].kernel.family(), "hopper");
}

TEST(GpuPlan, GradientsOfTensorsHaveTheAccuracyOfTheCallAndAreExactInDeterministicMode) {
  Problem problem = problem_of(Direction::backward);
  const auto kernel = [&] { return Table(64).plan(problem).parameter_steps[0].kernel; };
  EXPECT_EQ(kernel().accuracy, Accuracy::fast);
  EXPECT_EQ(kernel().parameter_sum, ParameterSum::float64) << "few elements may have many terms";
  problem.deterministic = true;
  EXPECT_EQ(kernel().accuracy, Accuracy::exact);
  EXPECT_EQ(kernel().parameter_sum, ParameterSum::exact);
  problem.deterministic = false;
  problem.accuracy = Accuracy::exact;
  EXPECT_EQ(kernel().accuracy, Accuracy::exact);
}

TEST(GpuPlan, EachThreadHasSumsOfTheElementsOfAHeadWhereTheseAreFew) {
  const auto sums = [](int64_t elements) {
    return Table(elements).plan(problem_of(Direction::backward)).parameter_steps[0].kernel.hopper().sum_elements;
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
        const Problem problem = problem_of(Direction::backward, dtype, head_dim);
        const KernelSpec kernel =
            Table(64).plan(problem, 80, true, TensorMaps::available, kilobytes).parameter_steps[0].kernel;
        EXPECT_EQ(kernel.portable().column_warps, 1) << head_dim;
        EXPECT_EQ(kernel.tile_queries % (16 * kernel.warps), 0) << head_dim;
        EXPECT_LE(families::shared_bytes(kernel), kilobytes * 1024) << head_dim;
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
        const KernelSpec kernel = Table(elements).plan(problem).parameter_steps[0].kernel;
        const int columns = round_up(kernel.head_dim, 64) + round_up(kernel.head_dim_v, 64);
        const int rows = kernel.hopper().query_stages * kernel.tile_queries + kernel.stages * kernel.tile_keys;
        const int terms = 8 * (round_up(kernel.tile_keys + 15, 32) + 8) * 4;  // of a warp
        const int sums = kernel.warps * 32 * kernel.hopper().sum_elements * 4;
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
  EXPECT_FALSE(Table(64).plan(problem).deterministic);
  problem.deterministic = true;
  const GpuPlan plan = Table(64).plan(problem);
  EXPECT_EQ(plan.parameter_sum, ParameterSum::exact);
  EXPECT_TRUE(plan.deterministic);
}

TEST(GpuPlan, CopiesOfTheSumsOfATensorAreAPowerOfTwoUpTo32AndHaveAtMost4MiBTogether) {
  for (const int64_t elements : {1, 100, 5000, 20'000, 33'000, 100'000, 1'000'000}) {
    const GpuPlan plan = Table(elements).plan(problem_of(Direction::backward));
    const int copies = plan.workspace.parameter_copies;
    EXPECT_EQ(plan.workspace.parameter_bytes, 4 * elements * 8);
    EXPECT_EQ(copies & (copies - 1), 0) << copies;
    EXPECT_LE(copies, 32);
    EXPECT_TRUE(copies == 1 || copies * plan.workspace.parameter_bytes <= 4 << 20) << copies << " of " << elements;
    EXPECT_TRUE(copies == 32 || 2 * copies * plan.workspace.parameter_bytes > 4 << 20) << copies << " of " << elements;
    EXPECT_GE(plan.workspace.bytes(), plan.workspace.parameters + copies * plan.workspace.parameter_bytes);
  }
}

TEST(GpuPlan, AContiguousFp32GradientWithFewTermsHasNoMemoryOfItsOwn) {
  Problem problem = problem_of(Direction::backward);
  problem.heads_q = 2;
  problem.wanted.parameters = 1;
  const Activation activation("silu(s + w[batch, head, q_idx, kv_idx])", {}, {"w"});
  const auto has_memory = [&](NumberType type, std::initializer_list<int64_t> strides) {
    Params params;
    BoundTensor& w = params.parameters[0];
    w.type = type;
    w.rank = 4;
    const int64_t sizes[] = {10, 1, 100, 300};
    std::copy_n(sizes, 4, w.sizes);
    std::copy(strides.begin(), strides.end(), w.strides);
    params.grad_parameters[0] = w;
    GpuPlan plan;
    families::add_parameter_gradients(
        {problem, Gpu{}, FunctionRegisters::many, true, Float32Products::three, TensorMaps::unavailable, false, 1},
        params, activation.function(), plan);
    EXPECT_EQ(plan.parameter_sum, ParameterSum::float32);
    EXPECT_EQ(plan.adds_to_grad_parameters, plan.workspace.bytes() == 0);
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
    problem.wanted.parameters = 1;
    problem.deterministic = deterministic;
    const Activation activation("silu(s + w[kv_idx])", {}, {"w"});
    Params params;
    BoundTensor& w = params.grad_parameters[0];
    w.rank = 1;
    w.sizes[0] = elements;
    w.strides[0] = 1;
    return families::parameter_sum_for(problem, params, activation.function());
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
    families::PlanRequest request{
        problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available};
    request.gpu.capability = 90;
    request.score_gradients = 1;
    const GpuPlan plan = gpu_plan(request);
    return std::ranges::any_of(plan.steps, [](const GpuStep& step) {
      return step.kernel.family() == "hopper" && step.kernel.hopper().gradients != FusedGradients::none;
    });
  };
  problem.wanted.parameters = 1;
  EXPECT_TRUE(fused());
  problem.has_key_gaps = true;
  EXPECT_FALSE(fused()) << "sequences may overlap, and another kernel then computes";
  problem.has_key_gaps = false;
  problem.has_batch_map = true;
  EXPECT_FALSE(fused());
}

TEST(GpuPlan, EachCtaHasAFlagOfItsOwnUnlessAllShareACounter) {
  for (const int64_t rows : {1'000, 1'000'000}) {
    Problem problem = problem_of(Direction::forward);
    problem.rows_q = problem.rows_k = rows;
    families::PlanRequest request{
        problem, Gpu{}, FunctionRegisters::few, true, Float32Products::three, TensorMaps::available};
    request.gpu.capability = 90;
    request.bounds_scores = true;
    const GpuPlan plan = gpu_plan(request);
    ASSERT_EQ(kernels_of(plan).size(), 2U);
    const bool shares = plan.hopper().tiles.order == hopper::TileOrder::dynamic;
    EXPECT_GE(plan.workspace.bytes() - plan.hopper().found_nan, (shares ? 1 : plan.steps[0].work) * 4);
  }
}

TEST(GpuPlan, QueriesAndOutputGradientsOfWideHeadsHaveTheStagesThatFitBesideKAndVAndTheScores) {
  for (int64_t head_dim = 136; head_dim <= 256; head_dim += 8) {
    for (const int64_t head_dim_v : {int64_t{64}, head_dim, int64_t{256}}) {
      Problem problem = problem_of(Direction::backward, DType::bfloat16, head_dim);
      problem.head_dim_v = head_dim_v;
      const GpuPlan plan = hopper_plan_of(problem);
      const auto wide = std::ranges::find_if(
          plan.steps, [](const GpuStep& step) { return step.kernel.kind == "wide_backward"; });
      ASSERT_NE(wide, plan.steps.end());
      const int64_t columns = round_up(static_cast<int>(head_dim), 64) + round_up(static_cast<int>(head_dim_v), 64);
      const int64_t rows = 64 * (1 + wide->kernel.stages);
      EXPECT_LE(rows * columns * 2 + 64 * 64 * (4 + 2 * 2) + 512, Gpu{}.shared_bytes) << head_dim << " " << head_dim_v;
      EXPECT_GE(wide->kernel.stages, 2);
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
  EXPECT_EQ(of_keys.workspace.bytes - of_keys.grad_value.offset, of_keys.splits * 64 * 2 * 128 * 4);
  problem.key_form = Form::jagged;
  problem.query_form = Form::shared;
  problem.rows_q = 64;
  const GpuPlan of_queries = plan_of(problem);
  ASSERT_GT(of_queries.splits, 1);
  EXPECT_EQ(of_queries.workspace.bytes - of_queries.workspace.grad_query, of_queries.splits * 64 * 4 * 64 * 4);
}

TEST(GpuPlan, EveryPartOfTheWorkspaceOfPortableKernelsIsAligned) {
  Problem problem = problem_of(Direction::backward, DType::float32, 8);
  problem.key_form = Form::shared;
  problem.rows_q = 3;
  problem.rows_k = 5;
  problem.heads_q = problem.heads_k = 1;
  const GpuPlan plan = plan_of(problem);
  for (const int64_t offset : {plan.workspace.grad_query, plan.grad_key.offset, plan.grad_value.offset}) {
    EXPECT_GE(offset, 0);
    EXPECT_EQ(offset % Workspace::alignment, 0);
  }
}

}  // namespace
}  // namespace gdpa::gpu
