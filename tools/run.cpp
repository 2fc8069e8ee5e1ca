// gdpa run: computes a problem forward and backward, checks every output against fp64, and times both.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>

#include "command.h"
#include "device.h"
#include "errors.h"
#include "measure.h"
#include "problem.h"
#include "reference.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

const char* const footer =
    "The error of an output is the 2-norm of its difference from a reference in fp64, divided by the 2-norm of the\n"
    "reference. It must not exceed the promise: 3e-3 for bfloat16, 6e-4 for float16, 2e-6 for float32, and 1e-13 for\n"
    "float64. The gradient of a tensor is divided by the root of the sum of the squares of its terms if this number "
    "is\n"
    "larger, because the terms may cancel.\n"
    "Outputs contain NaN before the call, so an unwritten element fails the check. Times are wall-clock times on the\n"
    "CPU, and times of CUDA events on a GPU.\n\n"
    "Examples:\n"
    "  gdpa run --lengths 3,17,0,5\n"
    "  gdpa run --lengths-q 100,30 --lengths-k 20,50 --heads 8 --heads-k 2 --mask window:16,0\n"
    "  gdpa run --batch 32 --max-length 500 --fill .3 --dtype bf16 --activation silu --mask causal\n"
    "  gdpa run --device cuda --dtype bf16 --batch 64 --max-length 300 --fill .5\n"
    "  gdpa run --shared-q 4 --lengths-k histories.txt --out-scale 1/len_k          pooling by 4 queries\n"
    "  gdpa run --batch 16 --shared-k 64 --activation \"a * tanh(b * s)\" --with a=2 --with b=.5\n"
    "  gdpa run --activation \"silu(s + table[h, clamp(i - j, 0, 127)])\" --tensor table=table.npy\n"
    "  gdpa run --activation \"a * s * sigmoid(b * s)\" --tensor a=1.5 b=randn:heads --tensor-gradients b\n"
    "  gdpa run --lengths 30,70 --mask \"(j < n[b]) | causal()\" --tensor n=prefixes.npy\n"
    "  gdpa run --dense --batch 4 --max-length 128 --json | python3 -m json.tool";

struct RunOptions {
  ProblemOptions problem;
  bool no_check = false;
  double seconds = 0.2;
  JsonOutput json;
};

struct CheckedOutput {
  std::string name;
  double error;
  bool ok;
};

struct Timing {
  double milliseconds;
  double gigaflops;  ///< per second
};

std::vector<CheckedOutput> check_outputs(const Problem& problem, const Workload& workload) {
  const Reference reference = compute_reference(problem, workload);
  const double promise = promised_error(problem.dtype);
  std::vector<CheckedOutput> checked;
  const auto check = [&](const std::string& name, const Tensor& got, const std::vector<double>& expected,
                         double squares = 0) {
    const double error = relative_error(got.to_double(), expected, squares);
    checked.push_back({name, error, error <= promise});  // NaN is not ok
  };
  check("O", workload.output, reference.output);
  check("dQ", workload.grad_query, reference.grad_query);
  check("dK", workload.grad_key, reference.grad_key);
  check("dV", workload.grad_value, reference.grad_value);
  for (std::size_t n = 0; n < problem.tensors.size(); ++n) {
    if (!problem.tensors[n].wants_gradient) continue;
    const Reference::OfTensor& expected = reference.grad_tensors[n];
    check("d" + problem.tensors[n].name, workload.grad_tensors[n], expected.sums, expected.squares);
  }
  return checked;
}

Timing time(const Workload& workload, const std::function<void()>& work, double flops, double seconds) {
  const double measured = median(workload.time(work, seconds));
  return {measured * 1e3, flops / measured * 1e-9};
}

void print_result(const Problem& problem, const std::vector<CheckedOutput>& checked, const Timing& forward,
                  const Timing& backward) {
  fmt::print("{}\non {}\n\n", describe(problem), describe(problem.device, problem.threads));
  std::vector<std::vector<std::string>> rows;
  for (const CheckedOutput& output : checked) {
    rows.push_back({output.name, fmt::format("{:.2e}", output.error),
                    fmt::format("{:.0e}", promised_error(problem.dtype)), output.ok ? good("ok") : bad("above")});
  }
  if (!rows.empty()) fmt::print("{}\n", table({"output", "error", "promise", ""}, rows));
  fmt::print(
      "{}",
      table({"direction", "ms", "GFLOP/s"},
            {{"forward", fmt::format("{:.4f}", forward.milliseconds), fmt::format("{:.1f}", forward.gigaflops)},
             {"backward", fmt::format("{:.4f}", backward.milliseconds), fmt::format("{:.1f}", backward.gigaflops)}}));
}

Json result_to_json(const Problem& problem, const std::vector<CheckedOutput>& checked, const Timing& forward,
                    const Timing& backward, bool ok) {
  Json outputs = Json::object();
  for (const CheckedOutput& output : checked) {
    outputs[output.name] = {{"error", output.error}, {"promise", promised_error(problem.dtype)}, {"ok", output.ok}};
  }
  const auto timing = [](const Timing& t) { return Json{{"ms", t.milliseconds}, {"tflops", t.gigaflops * 1e-3}}; };
  return {{"problem", to_json(problem)},
          {"outputs", outputs},
          {"forward", timing(forward)},
          {"backward", timing(backward)},
          {"ok", ok}};
}

int execute(RunOptions& options) {
  refuse_unused_tensors(options.problem, {options.problem.activation});
  const Problem problem = resolve(options.problem);
  Workload workload(problem, Contents::random, options.problem.seed);
  workload.run_forward();
  workload.run_backward();
  std::vector<CheckedOutput> checked;
  if (!options.no_check) checked = check_outputs(problem, workload);
  bool ok = true;
  for (const CheckedOutput& output : checked) ok = ok && output.ok;

  const double flops = forward_flops(problem);
  const Timing forward = time(
      workload, [&] { workload.run_forward(); }, flops, options.seconds);
  const Timing backward = time(
      workload, [&] { workload.run_backward(); }, 2.5 * flops, options.seconds);
  if (!options.json.replaces_text()) print_result(problem, checked, forward, backward);
  if (options.json.requested) options.json.write(result_to_json(problem, checked, forward, backward, ok));
  return ok ? success : check_failed;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* const parser = app.add_subcommand("run", "Compute a problem, check it against fp64, and time it");
  add_activation_option(*parser, options->problem);
  add_problem_options(*parser, options->problem);
  add_dtype_option(*parser, options->problem);
  add_device_option(*parser, options->problem.device);
  parser
      ->add_flag("--no-check", options->no_check, "Skip the fp64 reference, which takes a long time for large problems")
      ->group("Output");
  parser->add_option("--seconds", options->seconds, "Repeat each direction for this time; the result is the median")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Output");
  add_json_option(*parser, options->json);
  parser->footer(footer);
  return {parser, [options] { return execute(*options); }};
}

}  // namespace gdpa::tool
