// gdpa compile: fills the kernel cache ahead of the first call, for the GPU of the machine or for a named architecture.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include "command.h"
#include "device.h"
#include "problem.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

const char* const compile_footer =
    "All kernels are compiled that calls of this kind can need with any lengths. The kernels depend on types, head\n"
    "dims, forms of the operands, mask, function, --accuracy, --deterministic and --gradients. --these-lengths\n"
    "compiles only the kernels of the given lengths. The kernel cache keeps the kernels, and every process of this\n"
    "user finds them there (docs/compilation.md). JSON has one object for each kernel.\n\n"
    "Examples:\n"
    "  gdpa compile --dtype bf16 --head-dim 128 --activation silu\n"
    "  gdpa compile --arch sm_90a --dtype bf16 fp16 --head-dim 64 --activation gelu \"s * sigmoid(1.702 * s)\"\n"
    "  gdpa compile --arch sm_90a --activation \"silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])\" --tensor "
    "table=randn:heads,128\n"
    "  GDPA_CACHE_DIR=/shared/kernels gdpa compile --arch sm_80 --direction fwd";

struct Options {
  ProblemOptions problem;
  std::vector<std::string> activations = {"gelu"};
  std::vector<std::string> dtypes = {"bfloat16"};
  std::string direction = "both";
  std::string architecture;
  bool these_lengths = false;
  std::string gradients = "qkv";
  JsonOutput json;
};

/// One function, type and direction.
struct Task {
  Problem problem;
  Direction direction;
  std::vector<CompiledKernel> kernels = {};
};

std::vector<Task> tasks_of(const Options& options) {
  std::vector<Task> tasks;
  refuse_unused_tensors(options.problem, options.activations);
  for (const std::string& activation : options.activations) {
    for (const std::string& dtype : options.dtypes) {
      ProblemOptions one = options.problem;
      one.activation = activation;
      one.dtype = dtype;
      one.device = options.architecture.empty() ? options.problem.device : "cpu";
      const Problem problem = resolve(one);
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        if (options.direction == (direction == Direction::forward ? "bwd" : "fwd")) continue;
        tasks.push_back({problem, direction});
      }
    }
  }
  return tasks;
}

/// Runs all tasks at the same time. gdpa::compile compiles as many kernels at a time as the machine has processors.
void compile_all(std::vector<Task>& tasks, const Options& options) {
  Progress progress("gdpa compile", 0);
  std::mutex mutex;
  std::vector<std::pair<int64_t, int64_t>> counts(tasks.size());  // done and total, of each task
  const auto report = [&](std::size_t task, int64_t done, int64_t total) {
    const std::lock_guard lock(mutex);
    counts[task] = {done, total};
    int64_t all_done = 0, all = 0;
    for (const auto& [of_task, kernels] : counts) {
      all_done += of_task;
      all += kernels;
    }
    progress.expect(all);
    progress.advance_to(all_done);
  };
  std::vector<std::future<void>> pending;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    pending.push_back(std::async(std::launch::async, [&, i] {
      const Workload shapes(tasks[i].problem, Contents::none, 0);
      tasks[i].kernels = gdpa::compile(shapes.attention(), tasks[i].direction,
                                       {options.architecture, options.these_lengths ? Lengths::these : Lengths::any,
                                        [&, i](int64_t done, int64_t total) { report(i, done, total); },
                                        wanted_gradients(options.gradients, tasks[i].problem)});
    }));
  }
  for (const auto& one : pending) one.wait();
  for (auto& one : pending) one.get();
}

int execute(Options& options) {
  std::vector<Task> tasks = tasks_of(options);
  if (options.architecture.empty() && tasks.front().problem.device.kind == DeviceKind::cpu) {
    throw UsageError(
        "expected a GPU to compile for, found none that gdpa runs on; name an architecture: --arch sm_90a (Hopper), "
        "sm_80 (A100)");
  }
  compile_all(tasks, options);
  std::vector<std::vector<std::string>> rows;
  for (const Task& task : tasks) {
    for (const CompiledKernel& made : task.kernels) {
      const std::string state = made.was_cached ? "cached" : "compiled";
      rows.push_back({task.problem.activation.text(), made.kernel.name, made.kernel.architecture, state,
                      fmt::format("{:.2f}", made.seconds), fmt::format("{}", made.image.size())});
      if (!options.json.requested) continue;
      options.json.write({{"activation", task.problem.activation.text()},
                          {"dtype", name(task.problem.dtype)},
                          {"direction", task.direction == Direction::forward ? "fwd" : "bwd"},
                          {"kernel", made.kernel.name},
                          {"architecture", made.kernel.architecture},
                          {"cached", made.was_cached},
                          {"seconds", made.seconds},
                          {"bytes", made.image.size()}});
    }
  }
  if (!options.json.replaces_text()) {
    fmt::print("{}", table({"function", "kernel", "for", "", "s", "bytes"}, rows));
  }
  return success;
}

}  // namespace

Command add_compile(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* const parser = app.add_subcommand("compile", "Compile GPU kernels ahead of the first call");
  parser->add_option("--activation", options->activations, "f, one or several names or expressions")
      ->capture_default_str()
      ->group("Function");
  parser->add_option("--dtype", options->dtypes, "One or several: bfloat16, float16, float32 (bf16, fp16, fp32)")
      ->capture_default_str()
      ->group("Heads and type");
  add_problem_options(*parser, options->problem);
  add_device_option(*parser, options->problem.device);
  parser->add_option("--arch", options->architecture, "Compile for this architecture, without a GPU: sm_90a, sm_80")
      ->group("Device");
  parser->add_option("--direction", options->direction, "fwd, bwd or both")
      ->check(CLI::IsMember({"fwd", "bwd", "both"}))
      ->capture_default_str()
      ->group("Function");
  add_gradients_option(*parser, options->gradients);
  parser->add_flag("--these-lengths", options->these_lengths, "Compile only the kernels of the given lengths")
      ->group("Lengths");
  add_json_option(*parser, options->json);
  parser->footer(compile_footer);
  return {parser, [options] { return execute(*options); }};
}

}  // namespace gdpa::tool
