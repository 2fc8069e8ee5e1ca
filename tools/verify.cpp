// gdpa verify: checks random problems on a device in child processes, measures rates, and writes a report.
#include "verify.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "child.h"
#include "command.h"
#include "device.h"
#include "gdpa/system.h"
#include "problem.h"

namespace gdpa::tool {
namespace {

const char* const verify_footer =
    "Random problems run on the GPU, forward and backward, and are compared with the definition in fp64 on the CPU, "
    "for\n"
    "each kernel family and type. Child processes compute them. A wrong result, an error, a crash, or a child that "
    "does\n"
    "not answer is reported with a command that repeats the problem, and the next problems run in a new child. Then\n"
    "the rates are measured next to a matrix product. The report can be pasted into a bug report.\n\n"
    "A result is wrong if its error is above the promise of gdpa run, if a second call gives other bits where gdpa\n"
    "promises the same, or if an input has changed. The exit code is 0 if no problem failed, 1 if one failed, and 3 "
    "if\n"
    "the machine could not compute all problems.\n\n"
    "Examples:\n"
    "  gdpa verify                       new problems each time, a few minutes\n"
    "  gdpa verify --problems 200        more problems for each family and type\n"
    "  gdpa verify --seed 17             the problems of an earlier run\n"
    "  gdpa verify --device cuda:1 --json report.json\n"
    "  gdpa verify --device cpu          the CPU backend, without a GPU\n"
    "  GDPA_SHARED_KILOBYTES=99 gdpa verify      with the tiles of GPUs that have 99 KB of shared memory for a CTA";

struct Options {
  std::string device;
  std::optional<uint64_t> seed;
  int problems = 24;
  double seconds = 120;
  bool no_rates = false;
  JsonOutput json;
};

/// A kernel family, and the environment variables with which the planner chooses it.
struct Family {
  std::string name;
  std::vector<std::string> environment = {};
  std::vector<TypeName> types = {};
};

std::vector<Family> families_of(Device device) {
  const std::vector<TypeName> types = types_of(device.kind);
  if (device.kind == DeviceKind::cpu) return {{"cpu", {}, types}};
  constexpr int hopper = 9;
  const char* const limit = std::getenv("GDPA_SHARED_KILOBYTES");
  const bool is_limited = limit != nullptr && *limit != '\0';
  if (gpu_of(device).compute_major != hopper || is_limited) return {{"portable", {}, types}};
  // The Hopper kernels need all of the 227 KB. They are for 16-bit types, so that the portable kernels already compute
  // the others.
  return {{"hopper", {}, types}, {"portable", {"GDPA_SHARED_KILOBYTES=226"}, {"bfloat16", "float16"}}};
}

/// What a child answered, or how it failed.
struct Answer {
  enum class Kind : std::uint8_t { result, error, no_memory, crash, hang };
  Kind kind = Kind::result;
  Json result = {};
  std::string text = {};  ///< of a failure
  std::string step = {};  ///< the last that the child began
};

const char* name_of_kind(Answer::Kind kind) {
  return kind == Answer::Kind::crash ? "crash" : kind == Answer::Kind::hang ? "hang" : "error";
}

/// Sends requests to a child process, and starts a new one after a failure. Throws MachineError if the machine can set
/// up no problem.
class Worker {
 public:
  Worker(std::vector<std::string> environment, double seconds)
      : environment_(std::move(environment)), seconds_(seconds) {}

  Answer ask(const Json& request, const std::function<void()>& at_step = {}) {
    if (!child_) child_.emplace(std::vector<std::string>{"verify-child"}, environment_);
    child_->send(request.dump());
    Answer answer;
    while (const std::optional<std::string> line = child_->receive(limit_of(answer.step))) {
      Json message = Json::parse(*line);
      if (message.contains("result")) {
        answer.result = std::move(message["result"]);
        return answer;
      }
      if (message.contains("error")) {
        answer.kind = message["kind"] == "memory" ? Answer::Kind::no_memory : Answer::Kind::error;
        answer.text = message["error"];
        if (message["kind"] == "machine") throw MachineError(answer.text);
        end_child(answer);  // after an error of a kernel, every later call of the process fails
        return answer;
      }
      answer.step = message["at"];
      if (at_step) at_step();
    }
    const std::string end = child_->end();
    answer.kind = end.empty() ? Answer::Kind::hang : Answer::Kind::crash;
    answer.text = end.empty() ? fmt::format("no answer within {} s", limit_of(answer.step)) : "the process " + end;
    answer.text += fmt::format(", step: {}", answer.step);
    end_child(answer);
    return answer;
  }

 private:
  /// A slow machine compiles for a long time, but no kernel runs for long.
  double limit_of(const std::string& step) const {
    constexpr double factor_of_compiling = 5;
    return step.find("compil") == std::string::npos ? seconds_ : factor_of_compiling * seconds_;
  }

  /// Adds what the child printed to the text of a failure.
  void end_child(Answer& answer) {
    if (const std::string words = child_->last_words(); !words.empty()) answer.text += "\n  its output: " + words;
    child_.reset();
  }

  std::vector<std::string> environment_;
  double seconds_;
  std::optional<Child> child_;
};

/// The options of `gdpa run` with the device, and the command with the environment.
struct Request {
  std::vector<std::string> options;
  std::string command;

  Request(std::vector<std::string> of_problem, const Family& family, Device device) : options(std::move(of_problem)) {
    options.insert(options.end(),
                   {"--device", device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index)});
    for (const std::string& variable : family.environment) command += variable + " ";
    command += "gdpa run " + shell_command(options);
  }
};

/// The direction of a step, or the step itself: "compiling forward" belongs to forward.
std::string direction_of(const std::string& step) {
  for (const char* direction : {"forward", "backward"}) {
    if (step.find(direction) != std::string::npos) return direction;
  }
  return step;
}

void add_failure(Verification& verification, const RowKey& key, const std::string& kind, const std::string& text,
                 const Request& request) {
  ++verification.row(key).failures[kind];
  verification.failures.push_back({key, kind, text, request.command});
}

/// Adds the results of one direction: its largest error, and its wrong outputs as one failure.
void add_direction(Verification& verification, const Json& direction, const TypeName& type, const Request& request) {
  const RowKey key{direction["family"], type, direction["direction"]};
  Row& row = verification.row(key);
  ++row.problems;
  std::string wrong;
  for (const auto& [name, output] : direction["outputs"].items()) {
    const double promise = output["promise"];
    // JSON has no NaN.
    const double error =
        output["error"].is_null() ? std::numeric_limits<double>::quiet_NaN() : output["error"].get<double>();
    if (!std::isnan(row.worst) && !(error / promise <= row.worst)) {
      row.worst = error / promise;
      row.worst_output = name;
    }
    if (output["ok"]) continue;
    wrong += fmt::format("{}{}: {}, error {:.2e}, promise {:.0e}", wrong.empty() ? "" : "; ", name,
                         output["complaint"].get<std::string>(), error, promise);
  }
  for (const auto& input : direction["changed_inputs"]) {
    wrong += fmt::format("{}the call changed its input {}", wrong.empty() ? "" : "; ", input.get<std::string>());
  }
  if (wrong.empty()) return;
  add_failure(verification, key, "wrong", fmt::format("{}; kernel {}", wrong, direction["kernel"].get<std::string>()),
              request);
}

void add_answer(Verification& verification, const Answer& answer, const Family& family, const TypeName& type,
                const Request& request) {
  if (answer.kind == Answer::Kind::result) {
    for (const Json& direction : answer.result) add_direction(verification, direction, type, request);
    return;
  }
  const RowKey key{family.name, type, direction_of(answer.step)};
  ++verification.row(key).problems;
  if (answer.kind == Answer::Kind::no_memory) {
    ++verification.row(key).lacks_memory;
    verification.lacks_memory = answer.text;
    return;
  }
  add_failure(verification, key, name_of_kind(answer.kind), answer.text, request);
}

/// One of the numbers of splitmix64.
uint64_t mixed(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

void check_problems(Verification& verification, const Family& family, const TypeName& type, uint64_t seed,
                    double seconds) {
  std::vector<Request> requests;
  Json to_compile = Json::array();
  for (int n = 0; n < verification.problems; ++n) {
    requests.emplace_back(random_problem(mixed(seed, static_cast<uint64_t>(n)), type, verification.device.kind), family,
                          verification.device);
    to_compile.push_back(requests.back().options);
  }
  Worker worker(family.environment, seconds);
  if (verification.device.kind == DeviceKind::cuda) {
    Progress progress(fmt::format("{} {}, compiling", family.name, type), verification.problems);
    int64_t compiled = 0;
    worker.ask({{"task", "compile"}, {"problems", to_compile}}, [&] { progress.advance_to(++compiled); });
  }
  Progress progress(fmt::format("{} {}", family.name, type), verification.problems);
  constexpr int most_hangs = 3;
  int hangs = 0;
  for (std::size_t n = 0; n < requests.size(); ++n) {
    progress.advance_to(static_cast<int64_t>(n));
    if (hangs == most_hangs) {
      verification.not_run += static_cast<int>(requests.size() - n);
      return;
    }
    const Answer answer = worker.ask({{"task", "check"}, {"problem", requests[n].options}});
    if (answer.kind == Answer::Kind::hang) ++hangs;
    add_answer(verification, answer, family, type, requests[n]);
  }
}

struct Timed {
  const char* title;
  TypeName type;
  std::vector<std::string> options;
};

/// Problems of usual sizes. Those of the CPU take less than a second.
std::vector<Timed> timed_problems(DeviceKind kind) {
  std::vector<Timed> problems = {
      {"bfloat16, d 128, relu", "bfloat16", {"--dtype", "bfloat16", "--head-dim", "128", "--activation", "relu"}},
      {"bfloat16, d 128, gelu_tanh",
       "bfloat16",
       {"--dtype", "bfloat16", "--head-dim", "128", "--activation", "gelu_tanh"}},
      {"bfloat16, d 64, silu", "bfloat16", {"--dtype", "bfloat16", "--head-dim", "64", "--activation", "silu"}},
      {"float32, d 64, silu", "float32", {"--dtype", "float32", "--head-dim", "64", "--activation", "silu"}},
  };
  for (Timed& problem : problems) {
    const bool is_cpu = kind == DeviceKind::cpu;
    problem.options.insert(problem.options.end(),
                           {"--batch", is_cpu ? "2" : "64", "--max-length", is_cpu ? "512" : "2048"});
  }
  return problems;
}

void measure_rates(Verification& verification, double seconds) {
  const Family family{"rates"};
  Worker worker(family.environment, seconds);
  const std::vector<Timed> problems = timed_problems(verification.device.kind);
  Progress progress("rates", static_cast<int64_t>(problems.size()));
  for (const Timed& problem : problems) {
    progress.advance_to(static_cast<int64_t>(verification.rates.size()));
    const Request request(problem.options, family, verification.device);
    const Answer answer = worker.ask({{"task", "rate"}, {"problem", request.options}});
    RateRow& row = verification.rates.emplace_back();
    row.problem = problem.title;
    if (answer.kind == Answer::Kind::result) {
      row.forward = answer.result["forward"]["tflops"];
      row.backward = answer.result["backward"]["tflops"];
      row.product = answer.result["product"]["tflops"];
      row.product_version = answer.result["product"]["version"];
      row.note = answer.result["product"]["problem"];
      continue;
    }
    row.note = answer.text;
    if (answer.kind != Answer::Kind::no_memory) {
      const RowKey key{family.name, problem.type, direction_of(answer.step)};
      ++verification.row(key).problems;
      add_failure(verification, key, name_of_kind(answer.kind), answer.text, request);
    }
  }
}

const Component& component(const System& system, const std::string& name) {
  return *std::find_if(system.components.begin(), system.components.end(),
                       [&](const Component& one) { return one.name == name; });
}

/// An advice without its remark that a machine without a GPU is fine.
std::string remedy(const std::string& advice) {
  const std::string remark = "otherwise: ";
  const auto at = advice.find(remark);
  return at == std::string::npos ? advice : advice.substr(at + remark.size());
}

/// Throws MachineError if no GPU can be checked.
Device device_to_verify(const std::string& asked) {
  if (asked == "cpu") return {};
  const System system = inspect_system();
  const char* const without = "; gdpa verify --device cpu checks the CPU";
  std::string reason;
  for (std::size_t i = 0; i < system.gpus.size(); ++i) {
    reason += fmt::format("; cuda:{} is {}: {}", i, system.gpus[i].name, system.gpus[i].advice);
  }
  if (system.gpus.empty()) reason = "; " + remedy(component(system, "CUDA driver").advice);
  const Device device = choose_device(asked, {});
  if (device.kind == DeviceKind::cpu) {
    throw MachineError(fmt::format("expected a GPU that gdpa supports, found none{}{}", reason, without));
  }
  const Component& nvrtc = component(system, "NVRTC");
  if (!nvrtc.advice.empty()) throw MachineError(fmt::format("NVRTC: {}", remedy(nvrtc.advice)));
  return device;
}

int execute(Options& options) {
  Verification verification;
  verification.device = device_to_verify(options.device);
  verification.seed = options.seed ? *options.seed : std::random_device{}();
  verification.problems = options.problems;
  if (!options.json.replaces_text()) {
    // A run that is interrupted can be repeated.
    fmt::print(stderr, "seed {}, {}\n", verification.seed, describe(verification.device, 0));
  }
  try {
    uint64_t group = 0;
    for (const Family& family : families_of(verification.device)) {
      for (const TypeName& type : family.types) {
        check_problems(verification, family, type, mixed(verification.seed, group++), options.seconds);
      }
    }
    if (!options.no_rates) measure_rates(verification, options.seconds);
  } catch (const MachineError& error) {
    verification.ended_early = error.what();
  }
  if (!options.json.replaces_text()) fmt::print("{}", report(verification));
  if (options.json.requested) options.json.write(to_json(verification));
  if (!verification.ok()) return check_failed;
  return verification.is_complete() ? success : machine_lacks;
}

}  // namespace

Command add_verify(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* const parser =
      app.add_subcommand("verify", "Check random problems on this GPU, and write a report for others");
  parser->add_option("--device", options->device, "cpu, cuda or cuda:N; default: the first supported GPU")
      ->group("Device");
  parser->add_option("--seed", options->seed, "Seed of the problems; default: a new one, which the report names")
      ->check(CLI::Range(uint64_t{0}, uint64_t{0xffffffff}))
      ->group("Problems");
  parser->add_option("--problems", options->problems, "Number of problems for each kernel family and type")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Problems");
  parser
      ->add_option(
          "--seconds", options->seconds,
          "Time limit of a child for each step of a problem: forward, backward, the reference; five times as long "
          "for compiling")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Problems");
  parser->add_flag("--no-rates", options->no_rates, "Measure no rates")->group("Output");
  add_json_option(*parser, options->json);
  parser->footer(verify_footer);
  return {parser, [options] { return execute(*options); }};
}

}  // namespace gdpa::tool
