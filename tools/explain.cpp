// gdpa explain: what would run for a problem, in both directions, and the least time that this processor needs for it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command.h"
#include "gdpa/system.h"
#include "problem.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

const char* const footer =
    "The floor is the larger of two times: the FLOP at the rate at which this processor multiplies 64 x 64 x 128 "
    "tiles\n"
    "that stay in its cache, and the bytes, each input read once and each output written once, at the rate at which "
    "it\n"
    "copies memory. Both rates are measured now, with the threads that the problem may use, in processor time, so "
    "that\n"
    "other programs hardly disturb them. The FLOP are those of the products over the scores that the mask keeps; the\n"
    "function itself is not counted, so that no kernel quite reaches the floor.\n\n"
    "Examples:\n"
    "  gdpa explain --batch 32 --max-length 500 --head-dim 128 --mask causal\n"
    "  gdpa explain --activation \"s * sigmoid(b * s)\" --with b=1.702\n"
    "  gdpa explain --lengths histories.txt --dtype bf16 --json";

struct ExplainOptions {
  ProblemOptions problem;
  JsonOutput json;
};

struct Floor {
  double product_seconds;
  double copy_seconds;
  double seconds() const { return std::max(product_seconds, copy_seconds); }
  const char* bound() const { return product_seconds >= copy_seconds ? "products" : "memory"; }
};

Floor floor_of(const Plan& plan, const ProcessorRates& rates) {
  return {plan.flops / rates.product_flops, plan.bytes / rates.copy_bytes};
}

void print_direction(const char* direction, const Plan& plan, const Floor& floor) {
  fmt::print("{}\n", direction);
  fmt::print("  kernel     {}\n", plan.kernel);
  fmt::print("  schedule   {}\n", plan.schedule);
  fmt::print("  reason     {}\n", plan.reason);
  fmt::print("  tiles      {} queries x {} keys\n", plan.tile_queries, plan.tile_keys);
  fmt::print("  units      {}, dealt out to {} thread{}\n", plan.units, plan.threads, plan.threads == 1 ? "" : "s");
  fmt::print("  workspace  {:.2f} MiB, all threads together\n", static_cast<double>(plan.workspace_bytes) / (1 << 20));
  fmt::print("  repeats    {}\n", plan.deterministic ? "the same bits every time" : "not to the last bit");
  fmt::print("  amount     {:.4g} GFLOP, {:.4g} MB\n", plan.flops * 1e-9, plan.bytes * 1e-6);
  fmt::print("  floor      {:.4g} ms, {:.4g} GFLOP/s, bound by {}\n\n", floor.seconds() * 1e3,
             floor.seconds() > 0 ? plan.flops / floor.seconds() * 1e-9 : 0.0, floor.bound());
}

Json plan_to_json(const Plan& plan, const Floor& floor) {
  return {{"kernel", plan.kernel},
          {"schedule", plan.schedule},
          {"reason", plan.reason},
          {"tile_queries", plan.tile_queries},
          {"tile_keys", plan.tile_keys},
          {"threads", plan.threads},
          {"units", plan.units},
          {"workspace_bytes", plan.workspace_bytes},
          {"deterministic", plan.deterministic},
          {"flops", plan.flops},
          {"bytes", plan.bytes},
          {"floor_ms", floor.seconds() * 1e3},
          {"floor_bound", floor.bound()}};
}

int execute(ExplainOptions& options) {
  const Problem problem = resolve(options.problem);
  const Workload shapes(problem, Contents::none, options.problem.seed);
  const Plan forward = gdpa::explain(shapes.attention(), Direction::forward);
  const Plan backward = gdpa::explain(shapes.attention(), Direction::backward);
  const ProcessorRates rates = measure_processor_rates(problem.dtype, problem.threads);
  const Floor forward_floor = floor_of(forward, rates);
  const Floor backward_floor = floor_of(backward, rates);

  if (!options.json.replaces_text()) {
    fmt::print("{}\n\n", describe(problem));
    fmt::print("f(s)   = {}\nf'(s)  = {}\n\n", problem.activation.text(), problem.activation.derivative_text());
    print_direction("forward", forward, forward_floor);
    print_direction("backward", backward, backward_floor);
    fmt::print("measured now: products {:.1f} GFLOP/s, copies {:.1f} GB/s, {} thread{}\n", rates.product_flops * 1e-9,
               rates.copy_bytes * 1e-9, rates.threads, rates.threads == 1 ? "" : "s");
  }
  if (options.json.requested) {
    options.json.write({{"problem", to_json(problem)},
                        {"forward", plan_to_json(forward, forward_floor)},
                        {"backward", plan_to_json(backward, backward_floor)},
                        {"rates",
                         {{"threads", rates.threads},
                          {"product_tflops", rates.product_flops * 1e-12},
                          {"copy_gb_per_second", rates.copy_bytes * 1e-9}}}});
  }
  return success;
}

}  // namespace

Command add_explain(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* const parser = app.add_subcommand("explain", "Say what would run for a problem, and its floor");
  add_activation_option(*parser, options->problem);
  add_problem_options(*parser, options->problem);
  add_json_option(*parser, options->json);
  parser->footer(footer);
  return {parser, [options] { return execute(*options); }};
}

}  // namespace gdpa::tool
