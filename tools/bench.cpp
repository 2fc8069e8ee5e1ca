// gdpa bench: times gdpa on given shapes or on a built-in suite. On a GPU it runs python -m gdpa.bench, which also
// times other systems.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>

#include "command.h"
#include "commit.h"
#include "device.h"
#include "gdpa/system.h"
#include "hand_over.h"
#include "measure.h"
#include "problem.h"
#include "rates.h"
#include "suites.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

const char* const bench_footer =
    "A time is the median of all calls of all rounds, after one warm-up call. The functions and directions of a shape\n"
    "alternate within a round. FLOP = 2 * H * (d + d_v) * scores inside the mask, backward x 2.5. JSON has one object\n"
    "for each row.\n"
    "On a GPU, the command runs python3 -m gdpa.bench with the same options, which compares gdpa with other systems.\n"
    "This needs a Python with gdpa, gdpa-bench and PyTorch. --alone times only gdpa, from C++ and with events.\n"
    "A suite sets batch, lengths, heads and head_dim; --scale-batch shrinks its batch for a small machine.\n\n"
    "Examples:\n"
    "  gdpa bench --batch 32 --max-length 512 --head-dim 128\n"
    "  gdpa bench --lengths histories.txt --mask causal --activation gelu silu \"s * sigmoid(1.702 * s)\"\n"
    "  gdpa bench --suite uses --scale-batch .1 --direction fwd --json uses.jsonl\n"
    "  gdpa bench --activation silu \"silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])\" --tensor "
    "table=randn:heads,128\n"
    "  gdpa bench --list-suites\n"
    "  gdpa bench --device cuda --alone --dtype bf16 --max-length 2048 --batch 64\n"
    "  gdpa bench --host-cost";

struct BenchOptions {
  ProblemOptions problem;
  std::vector<std::string> activations;
  std::string suite;
  double scale_batch = 1.0;
  std::string direction = "both";
  double seconds = 0.5;
  int rounds = 3;
  bool list_suites = false;
  bool host_cost = false;
  bool alone = false;
  std::string plot;
  std::optional<std::string> report;
  JsonOutput json;
};

/// A figure of the table: a problem in one direction, and its measured times.
struct Figure {
  const Problem* problem;
  const Workload* workload;
  Direction direction;
  std::function<void()> work;
  double flops;
  double bytes;
  double floor_seconds;
  std::vector<double> times = {};
};

const char* direction_name(Direction direction) { return direction == Direction::forward ? "fwd" : "bwd"; }

Figure figure_of(const Problem& problem, Workload& workload, Direction direction) {
  const double flops = forward_flops(problem);
  const Plan planned = gdpa::explain(workload.attention(), direction, "", wanted_gradients("qkv", problem));
  const double floor = Floor(planned, rates_of(problem.device, problem.dtype, problem.threads)).seconds();
  if (direction == Direction::forward) {
    return {&problem, &workload, direction, [&workload] { workload.run_forward(); }, flops, planned.bytes, floor};
  }
  return {&problem, &workload, direction, [&workload] { workload.run_backward(); }, 2.5 * flops, planned.bytes, floor};
}

/// The row of both benchmarks. python/gdpa/bench/rows.py has the same fields.
Json row_of(const Figure& figure, const std::optional<std::string>& shape, const std::string& activation,
            const std::string& device) {
  const Problem& problem = *figure.problem;
  const double seconds = median(figure.times);
  const int64_t longest = maximum(problem.lengths_q);
  const double room = static_cast<double>(longest) * static_cast<double>(problem.batch());
  return {{"system", "gdpa"},
          {"version", GDPA_VERSION},
          {"commit", commit()},
          {"direction", direction_name(figure.direction)},
          {"device", device},
          {"shape", shape ? Json(*shape) : Json()},
          {"dtype", name(problem.dtype)},
          {"activation", activation},
          {"accuracy", problem.accuracy == Accuracy::exact ? "exact" : "fast"},
          {"deterministic", problem.deterministic},
          {"mask", problem.mask_text()},
          {"B", problem.batch()},
          {"H_q", problem.heads_q},
          {"H_k", problem.heads_k},
          {"d", problem.head_dim},
          {"d_v", problem.head_dim_v},
          {"q", longest},
          {"kv", maximum(problem.lengths_k)},
          {"fill", room > 0 ? static_cast<double>(sum(problem.lengths_q)) / room : 0.0},
          {"shared_q", problem.form_q == Form::shared},
          {"shared_kv", problem.form_k == Form::shared},
          {"bytes", figure.bytes},
          {"ms", seconds * 1e3},
          {"tflops", figure.flops / seconds * 1e-12},
          {"cublas_tflops", nullptr},
          {"floor_tflops", figure.floor_seconds > 0 ? figure.flops / figure.floor_seconds * 1e-12 : 0.0}};
}

std::vector<std::string> text_row(const Json& row) {
  const auto integer = [&](const char* field) { return fmt::format("{}", row.at(field).get<int64_t>()); };
  const double ratio = row.at("tflops").get<double>() / row.at("floor_tflops").get<double>();
  return {row.at("direction"),
          row.at("dtype"),
          row.at("activation"),
          row.at("mask"),
          integer("B"),
          integer("H_q"),
          integer("d"),
          integer("q"),
          integer("kv"),
          fmt::format("{:.2f}", row.at("fill").get<double>()),
          fmt::format("{:.3f}", row.at("ms").get<double>()),
          fmt::format("{:.1f}", row.at("tflops").get<double>() * 1e3),
          fmt::format("{:.2f}", ratio)};
}

/// Times one shape with every function and direction, alternating in rounds.
std::vector<Json> bench_shape(const SuiteShape& shape, const BenchOptions& options, const std::string& device,
                              Progress& progress, int64_t shapes_done) {
  std::vector<Problem> problems;
  for (const std::string& activation : shape.activations) {
    ProblemOptions with_activation = shape.problem;
    with_activation.activation = activation;
    problems.push_back(resolve(with_activation));
  }
  const auto is_wanted = [&](const std::string& direction) {
    const bool is_asked_for = options.direction == "both" || options.direction == direction;
    return is_asked_for &&
           std::find(shape.directions.begin(), shape.directions.end(), direction) != shape.directions.end();
  };
  std::vector<std::unique_ptr<Workload>> workloads;
  std::vector<Figure> figures;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    workloads.push_back(std::make_unique<Workload>(problems[i], Contents::random, shape.problem.seed));
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      if (!is_wanted(direction_name(direction))) continue;
      figures.push_back(figure_of(problems[i], *workloads.back(), direction));
      names.push_back(shape.activations[i]);
    }
  }
  for (Figure& figure : figures) figure.work();
  for (int round = 0; round < options.rounds; ++round) {
    for (Figure& figure : figures) {
      const auto times = figure.workload->time(figure.work, options.seconds / options.rounds);
      figure.times.insert(figure.times.end(), times.begin(), times.end());
    }
    progress.advance_to(shapes_done * options.rounds + round + 1);
  }
  std::vector<Json> rows;
  for (std::size_t i = 0; i < figures.size(); ++i) rows.push_back(row_of(figures[i], shape.name, names[i], device));
  return rows;
}

/// Measures the cost of a call without its work: forward on one query, one key and one head, on one thread. On a GPU,
/// the cost is the time until the call returns.
int bench_host_cost(BenchOptions& options) {
  ProblemOptions one_row = options.problem;
  one_row.lengths = "1";
  one_row.heads = 1;
  one_row.activation = "gelu";
  const Problem problem = resolve(one_row);
  Workload workload(problem, Contents::random, one_row.seed);
  workload.run_forward();
  const double microseconds = median(workload.time_host([&] { workload.run_forward(); }, options.seconds)) * 1e6;
  const std::string device = describe(problem.device, problem.threads);
  if (!options.json.replaces_text()) {
    fmt::print("{:.3f} us for one forward call on one query and one key (median), {}\n", microseconds, device);
  }
  if (options.json.requested) options.json.write({{"host_cost_us", microseconds}, {"device", device}});
  return success;
}

int list_suites(BenchOptions& options) {
  if (!options.json.replaces_text()) {
    for (const auto& [name, suite] : suites().items()) {
      fmt::print("{}  {} shapes, batch {}, {} heads, {}, {}\n    {}\n", name, suite.at("shapes").size(),
                 suite.at("batch").get<int64_t>(), suite.at("heads").get<int64_t>(),
                 suite.at("dtype").get<std::string>(), suite.at("activation").get<std::string>(),
                 suite.at("description").get<std::string>());
    }
  }
  if (options.json.requested) options.json.write(suites());
  return success;
}

/// Warns if other programs use the processors, because all times are then too long.
void warn_if_busy(int processors) {
  double load = 0;
  if (getloadavg(&load, 1) != 1 || load < 0.5 * processors) return;
  fmt::print(stderr, "warning: this machine is busy (load {:.1f} on {} processors); the times are not reliable\n", load,
             processors);
}

/// Returns the given options if both benchmarks have them. Otherwise prints a line on standard error and returns
/// nothing.
std::optional<std::vector<std::string>> common_options(const CLI::App& parser, const BenchOptions& options) {
  static const std::set<std::string> common = {
      "--scale-batch", "--lengths",    "--batch", "--max-length", "--fill",    "--seed",   "--heads",   "--head-dim",
      "--dtype",       "--activation", "--mask",  "--direction",  "--seconds", "--rounds", "--threads", "--plot"};
  // The first argument is the subcommand of the comparison.
  std::vector<std::string> arguments = {options.suite.empty() ? "shapes" : options.suite};
  for (const CLI::Option* option : parser.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--suite" || name == "--json" || name == "--report" || name == "--device") {
      continue;
    }
    if (common.count(name) == 0) {
      fmt::print(stderr, "gdpa bench: {} is known to gdpa alone, so that no other system is timed with it\n", name);
      return std::nullopt;
    }
    arguments.push_back(name);
    for (const std::string& value : option->results()) arguments.push_back(value);
  }
  if (options.json.requested) {
    arguments.insert(arguments.end(), {"--json", options.json.replaces_text() ? "-" : options.json.path});
  }
  if (options.report) {
    arguments.push_back("--report");
    if (!options.report->empty()) arguments.push_back(*options.report);
  }
  return arguments;
}

/// Replaces this process by the comparison. Returns if only gdpa can be timed.
void compare_with_others(const CLI::App& parser, const BenchOptions& options, Device device) {
  std::optional<std::vector<std::string>> arguments = common_options(parser, options);
  if (!arguments) return;
  arguments->insert(arguments->end(), {"--device", fmt::format("cuda:{}", device.index)});
  fmt::print(stderr, "gdpa bench: {}; only gdpa is timed\n", hand_over_to_python(*arguments));
}

int execute(const CLI::App& parser, BenchOptions& options) {
  if (options.host_cost) return bench_host_cost(options);
  std::vector<SuiteShape> shapes;
  if (options.suite.empty()) {
    if (options.activations.empty()) options.activations = {options.problem.activation};
    refuse_unused_tensors(options.problem, options.activations);
    shapes = {{std::nullopt, options.problem, options.activations}};
  } else {
    SuiteOverrides overrides{options.scale_batch, std::nullopt, std::nullopt, options.activations};
    if (parser.get_option("--dtype")->count() > 0) overrides.dtype = options.problem.dtype;
    if (parser.get_option("--mask")->count() > 0) overrides.mask = options.problem.mask;
    shapes = shapes_of_suite(options.suite, options.problem, overrides);
  }

  const Device chosen = device_of(shapes.front().problem);
  if (chosen.kind == DeviceKind::cuda && !options.alone) compare_with_others(parser, options, chosen);
  if (!options.plot.empty() || options.report) {
    throw UsageError(
        fmt::format("{}: expected a comparison of systems, got a run of gdpa only; use python3 -m gdpa.bench",
                    options.report ? "--report" : "--plot"));
  }
  if (chosen.kind == DeviceKind::cpu) warn_if_busy(inspect_system().threads);
  const std::string device = describe(chosen, options.problem.threads);
  std::vector<std::vector<std::string>> rows;
  Progress progress("gdpa bench", static_cast<int64_t>(shapes.size()) * options.rounds);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (const Json& row : bench_shape(shapes[i], options, device, progress, static_cast<int64_t>(i))) {
      if (options.json.requested) options.json.write(row);
      rows.push_back(text_row(row));
    }
  }
  if (!options.json.replaces_text()) {
    fmt::print("{}\n\n{}", device,
               table({"", "dtype", "activation", "mask", "B", "H", "d", "q", "kv", "fill", "ms", "GFLOP/s", "of floor"},
                     rows));
  }
  return success;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* const parser = app.add_subcommand("bench", "Time gdpa on given shapes or on a built-in suite");
  parser
      ->add_option("--activation", options->activations,
                   "f, one or several names or expressions; default: the suite's functions, or gelu")
      ->group("Function");
  add_problem_options(*parser, options->problem);
  add_dtype_option(*parser, options->problem);
  add_device_option(*parser, options->problem.device);
  const char* const group = "Benchmark";
  parser->add_option("--suite", options->suite, "A built-in list of shapes")->group(group);
  parser->add_flag("--list-suites", options->list_suites, "Print the built-in suites and stop")->group(group);
  parser->add_option("--scale-batch", options->scale_batch, "Factor of the suite's batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  parser->add_option("--direction", options->direction, "fwd, bwd or both; default: both")
      ->check(CLI::IsMember({"fwd", "bwd", "both"}))
      ->group(group);
  parser->add_option("--seconds", options->seconds, "Time for each figure, over all rounds")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
  parser->add_option("--rounds", options->rounds, "Number of rounds of all figures")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  parser->add_flag("--alone", options->alone, "On a GPU, time gdpa by itself, without other systems")->group(group);
  parser->add_option("--plot", options->plot, "A picture of the comparison, on a GPU: .png or .svg")->group(group);
  parser
      ->add_option_function<std::string>(
          "--report", [options](const std::string& folder) { options->report = folder; },
          "On a GPU, write a page, a picture and a JSON document of the comparison to this folder (reports)")
      ->expected(0, 1)
      ->option_text("[FOLDER]")
      ->group(group);
  parser->add_flag("--host-cost", options->host_cost, "Time one forward call on a problem of one row instead")
      ->group(group);
  add_json_option(*parser, options->json);
  parser->footer(bench_footer);
  return {parser, [options, parser] {
            if (options->list_suites) return list_suites(*options);
            return execute(*parser, *options);
          }};
}

}  // namespace gdpa::tool
