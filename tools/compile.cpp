// gdpa compile: fills the kernel cache ahead of the first call, for the GPU at hand or for one that is only named.
#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "command.h"
#include "device.h"
#include "problem.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

const char* const footer =
    "Kernels depend on types, heads' sizes, on which operands are shared, on the function, --accuracy and\n"
    "--deterministic; not on lengths or scales, but on Hopper on whether keys are few (256 a sequence on average). "
    "They\n"
    "are kept in the kernel cache, where every process of this user finds them (docs/compilation.md). JSON has one "
    "object\n"
    "a kernel.\n\n"
    "Examples:\n"
    "  gdpa compile --dtype bf16 --head-dim 128 --activation silu\n"
    "  gdpa compile --arch sm_90a --dtype bf16 fp16 --head-dim 64 --activation gelu \"s * sigmoid(1.702 * s)\"\n"
    "  GDPA_CACHE_DIR=/shared/kernels gdpa compile --arch sm_80 --direction fwd";

struct CompileOptions {
  ProblemOptions problem;
  std::vector<std::string> activations = {"gelu"};
  std::vector<std::string> dtypes = {"bfloat16"};
  std::string direction = "both";
  std::string architecture;
  JsonOutput json;
};

/// One function, type and direction.
struct Task {
  Problem problem;
  Direction direction;
  std::vector<CompiledKernel> kernels = {};
};

std::vector<Task> tasks_of(const CompileOptions& options) {
  std::vector<Task> tasks;
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

/// Each task on a thread of its own, as many at a time as there are processors.
void compile_all(std::vector<Task>& tasks, const std::string& architecture) {
  Progress progress("gdpa compile", static_cast<int64_t>(tasks.size()));
  std::mutex mutex;
  std::exception_ptr error;
  std::size_t next = 0;
  int64_t done = 0;
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (next < tasks.size() && !error) {
      Task& task = tasks[next++];
      lock.unlock();
      std::exception_ptr failed;
      try {
        const Workload shapes(task.problem, Contents::none, 0);
        task.kernels = gdpa::compile(shapes.attention(), task.direction, architecture);
      } catch (...) {
        failed = std::current_exception();
      }
      lock.lock();
      if (failed) error = failed;
      progress.advance_to(++done);
    }
  };
  std::vector<std::thread> threads;
  const std::size_t most = std::max(1u, std::thread::hardware_concurrency());
  for (std::size_t i = 0; i < std::min(most, tasks.size()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

int execute(CompileOptions& options) {
  std::vector<Task> tasks = tasks_of(options);
  if (options.architecture.empty() && tasks.front().problem.device.kind == DeviceKind::cpu) {
    throw UsageError(
        "expected a GPU to compile for, found none that gdpa runs on; name an architecture: --arch sm_90a (Hopper), "
        "sm_80 (A100)");
  }
  compile_all(tasks, options.architecture);
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
  auto options = std::make_shared<CompileOptions>();
  CLI::App* const parser = app.add_subcommand("compile", "Compile GPU kernels ahead of the first call");
  parser->add_option("--activation", options->activations, "f, one or several: names or expressions")
      ->capture_default_str()
      ->group("Function");
  parser->add_option("--dtype", options->dtypes, "One or several: bfloat16, float16, float32 (bf16, fp16, fp32)")
      ->capture_default_str()
      ->group("Heads and type");
  add_problem_options(*parser, options->problem);
  add_device_option(*parser, options->problem.device);
  parser->add_option("--arch", options->architecture, "A GPU that need not be here, by its architecture: sm_90a, sm_80")
      ->group("Device");
  parser->add_option("--direction", options->direction, "fwd, bwd or both")
      ->check(CLI::IsMember({"fwd", "bwd", "both"}))
      ->capture_default_str()
      ->group("Function");
  add_json_option(*parser, options->json);
  parser->footer(footer);
  return {parser, [options] { return execute(*options); }};
}

}  // namespace gdpa::tool
