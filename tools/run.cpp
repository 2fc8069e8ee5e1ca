// gdpa run: computes a problem forward and backward, checks every output against fp64, and times both.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>

#include "check.h"
#include "command.h"
#include "device.h"
#include "errors.h"
#include "measure.h"
#include "problem.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

const char* const run_footer =
    "The error of an output is the 2-norm of its difference from a reference in fp64, divided by the 2-norm of the\n"
    "reference. It must not exceed the promise: 3e-3 for bfloat16, 6e-4 for float16, 2e-6 for float32, and 1e-13 for\n"
    "float64. The gradient of a tensor is divided by the root of the sum of the squares of its terms if this number "
    "is\n"
    "larger, because the terms may cancel.\n"
    "Outputs contain NaN before the call, so an unwritten element fails the check. The inputs must not change. A "
    "second\n"
    "call must give the same bits where the plan promises them. Times are wall-clock times on the CPU, and times of\n"
    "CUDA events on a GPU.\n\n"
    "Examples:\n"
    "  gdpa run --lengths 3,17,0,5\n"
    "  gdpa run --lengths-q 100,30 --lengths-k 20,50 --heads 8 --heads-k 2 --mask window:16,0\n"
    "  gdpa run --batch 32 --max-length 500 --fill .3 --dtype bf16 --activation silu --mask causal\n"
    "  gdpa run --device cuda --dtype bf16 --batch 64 --max-length 300 --fill .5\n"
    "  gdpa run --shared-q 4 --lengths-k histories.txt --out-scale 1/len_k          pooling by 4 queries\n"
    "  gdpa run --batch 16 --shared-k 64 --activation \"a * tanh(b * s)\" --with a=2 --with b=.5\n"
    "  gdpa run --activation \"silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])\" --tensor table=table.npy\n"
    "  gdpa run --activation \"a * s * sigmoid(b * s)\" --tensor a=1.5 b=randn:heads --tensor-gradients b\n"
    "  gdpa run --lengths 30,70 --mask \"(kv_idx < n[batch]) | causal()\" --tensor n=prefixes.npy\n"
    "  gdpa run --dense --batch 4 --max-length 128 --json | python3 -m json.tool";

struct RunOptions {
  ProblemOptions problem;
  bool no_check = false;
  double seconds = 0.2;
  JsonOutput json;
};

struct Timing {
  double milliseconds;
  double gigaflops;  ///< per second
};

Timing time(const Workload& workload, const std::function<void()>& work, double flops, double seconds) {
  const double measured = median(workload.time(work, seconds));
  return {measured * 1e3, flops / measured * 1e-9};
}

/// The rows of the outputs, and a row for each input that a call changed.
std::vector<std::vector<std::string>> rows_of(const Checked& checked) {
  std::vector<std::vector<std::string>> rows;
  for (const CheckedDirection& direction : checked) {
    for (const CheckedOutput& output : direction.outputs) {
      rows.push_back({output.name, fmt::format("{:.2e}", output.error), fmt::format("{:.0e}", output.promise),
                      output.ok() ? good("ok") : bad(output.complaint())});
    }
    for (const std::string& input : direction.changed_inputs) {
      rows.push_back({input, "", "", bad(fmt::format("changed by {}", name_of(direction.direction)))});
    }
  }
  return rows;
}

void print_result(const Problem& problem, const Checked& checked, const Timing& forward, const Timing& backward) {
  fmt::print("{}\non {}\n\n", describe(problem), describe(problem.device, problem.threads));
  const auto rows = rows_of(checked);
  if (!rows.empty()) fmt::print("{}\n", table({"output", "error", "promise", ""}, rows));
  fmt::print(
      "{}",
      table({"direction", "ms", "GFLOP/s"},
            {{"forward", fmt::format("{:.4f}", forward.milliseconds), fmt::format("{:.1f}", forward.gigaflops)},
             {"backward", fmt::format("{:.4f}", backward.milliseconds), fmt::format("{:.1f}", backward.gigaflops)}}));
}

Json result_to_json(const Problem& problem, const Checked& checked, const Timing& forward, const Timing& backward) {
  Json outputs = Json::object(), changed = Json::array();
  for (const CheckedDirection& direction : checked) {
    for (const CheckedOutput& output : direction.outputs) outputs[output.name] = to_json(output);
    for (const std::string& input : direction.changed_inputs) changed.push_back(input);
  }
  const auto timing = [](const Timing& t) { return Json{{"ms", t.milliseconds}, {"tflops", t.gigaflops * 1e-3}}; };
  return {{"problem", to_json(problem)}, {"outputs", outputs},           {"changed_inputs", changed},
          {"forward", timing(forward)},  {"backward", timing(backward)}, {"ok", is_ok(checked)}};
}

int execute(RunOptions& options) {
  refuse_unused_tensors(options.problem, {options.problem.activation});
  const Problem problem = resolve(options.problem);
  Workload workload(problem, Contents::random, options.problem.seed);
  Checked checked;
  if (!options.no_check) checked = compute_and_check(problem, workload);

  const double flops = forward_flops(problem);
  const Timing forward = time(
      workload, [&] { workload.run_forward(); }, flops, options.seconds);
  const Timing backward = time(
      workload, [&] { workload.run_backward(); }, 2.5 * flops, options.seconds);
  if (!options.json.replaces_text()) print_result(problem, checked, forward, backward);
  if (options.json.requested) options.json.write(result_to_json(problem, checked, forward, backward));
  return is_ok(checked) ? success : check_failed;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* const parser = app.add_subcommand("run", "Compute a problem, check it against fp64, and time it");
  add_one_problem_options(*parser, options->problem);
  parser
      ->add_flag("--no-check", options->no_check, "Skip the fp64 reference, which takes a long time for large problems")
      ->group("Output");
  parser->add_option("--seconds", options->seconds, "Repeat each direction for this time; the result is the median")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Output");
  add_json_option(*parser, options->json);
  parser->footer(run_footer);
  return {parser, [options] { return execute(*options); }};
}

}  // namespace gdpa::tool
