// gdpa explain: prints the plan of a problem in both directions and the least time that the device needs, or writes the
// source or the instructions of its GPU kernels.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "command.h"
#include "device.h"
#include "disassemble.h"
#include "problem.h"
#include "rates.h"
#include "tile_map.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

const char* const explain_footer =
    "The floor is the larger of two times: the FLOP divided by the rate at which this processor multiplies\n"
    "64 x 64 x 128 tiles in its cache, and the bytes divided by the rate at which it copies memory. The bytes count\n"
    "each input once and each output once. Both rates are measured now, with the threads that the problem may use, in\n"
    "processor time, so that other programs hardly disturb them. On a GPU the rates are the highest that its clocks\n"
    "and widths allow. The FLOP are the FLOP of the products over the scores inside the mask. The function is not\n"
    "counted, so no kernel reaches the floor exactly.\n\n"
    "Examples:\n"
    "  gdpa explain --batch 32 --max-length 500 --head-dim 128 --mask causal\n"
    "  gdpa explain --activation \"s * sigmoid(b * s)\" --with b=1.702\n"
    "  gdpa explain --activation \"silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])\" --tensor "
    "table=randn:heads,128\n"
    "  gdpa explain --lengths histories.txt --dtype bf16 --json\n"
    "  gdpa explain --max-length 2048 --mask \"hstu(64, 128, 8)\" --tile-map mask.png\n"
    "  gdpa explain --arch sm_90a --dtype bf16 --head-dim 128 --gradients q\n"
    "  gdpa explain --arch sm_80 --dtype fp16 --activation silu --dump-source";

/// A requested text and its target: standard output, a file, or a folder with a file for each kernel.
struct Dump {
  bool requested = false;
  std::string path;
};

/// A requested tile map of the mask of one sequence and head, and the file of its picture.
struct TileMapOptions {
  bool requested = false;
  std::string path;
  int64_t entry = 0;
  int64_t head = 0;
};

struct ExplainOptions {
  ProblemOptions problem;
  std::string architecture;
  std::string gradients = "qkv";
  Dump source;
  Dump sass;
  TileMapOptions tile_map;
  JsonOutput json;
};

std::vector<std::vector<std::string>> rows_of(const std::vector<GpuKernel>& kernels) {
  std::vector<std::vector<std::string>> rows;
  for (const GpuKernel& kernel : kernels) {
    rows.push_back({"  " + kernel.name, fmt::format("{}", kernel.ctas), fmt::format("{}", kernel.threads),
                    fmt::format("{}", kernel.registers), fmt::format("{}", kernel.local_bytes),
                    fmt::format("{:.1f}", static_cast<double>(kernel.shared_bytes) / 1024)});
  }
  return rows;
}

/// `rates` is null for a named architecture.
void print_direction(const std::string& direction, const Plan& plan, const Rates* rates) {
  fmt::print("{}\n", direction);
  fmt::print("  kernel     {}\n", plan.kernel);
  fmt::print("  schedule   {}\n", plan.schedule);
  fmt::print("  reason     {}\n", plan.reason);
  fmt::print("  tiles      {} queries x {} keys\n", plan.tile_queries, plan.tile_keys);
  const bool on_gpu = !plan.kernels.empty();
  const double mebibytes = static_cast<double>(plan.workspace_bytes) / (1 << 20);
  if (on_gpu) {
    fmt::print("  units      at most {} CTAs of {} threads\n", plan.units, plan.threads);
    fmt::print("  workspace  {:.2f} MiB of the device's memory\n", mebibytes);
  } else {
    fmt::print("  units      {}, computed by {} thread{}\n", plan.units, plan.threads, plan.threads == 1 ? "" : "s");
    fmt::print("  workspace  {:.2f} MiB, all threads together\n", mebibytes);
  }
  fmt::print("  repeats    {}\n", plan.deterministic ? "the same bits every time" : "not to the last bit");
  fmt::print("  amount     {:.4g} GFLOP, {:.4g} MB\n", plan.flops * 1e-9, plan.bytes * 1e-6);
  if (rates == nullptr) {
    fmt::print("  intensity  {:.4g} FLOP per byte; the floor needs the GPU's rates\n", plan.flops / plan.bytes);
  } else {
    const Floor floor(plan, *rates);
    fmt::print("  floor      {:.4g} ms, {:.4g} GFLOP/s, bound by {}\n", floor.seconds() * 1e3,
               floor.seconds() > 0 ? plan.flops / floor.seconds() * 1e-9 : 0.0, floor.bound());
  }
  if (on_gpu) {
    fmt::print("\n{}", table({"  kernels for " + plan.kernels.front().architecture, "CTAs", "threads", "registers",
                              "spilled bytes", "shared KiB"},
                             rows_of(plan.kernels)));
  }
  fmt::print("\n");
}

Json kernels_to_json(const std::vector<GpuKernel>& kernels) {
  Json list = Json::array();
  for (const GpuKernel& kernel : kernels) {
    list.push_back({{"name", kernel.name},
                    {"architecture", kernel.architecture},
                    {"ctas", kernel.ctas},
                    {"threads", kernel.threads},
                    {"registers", kernel.registers},
                    {"spilled_bytes", kernel.local_bytes},
                    {"shared_bytes", kernel.shared_bytes}});
  }
  return list;
}

Json plan_to_json(const Plan& plan, const Rates* rates) {
  Json json = {{"kernel", plan.kernel},
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
               {"kernels", kernels_to_json(plan.kernels)}};
  if (rates != nullptr) {
    const Floor floor(plan, *rates);
    json["floor_ms"] = floor.seconds() * 1e3;
    json["floor_bound"] = floor.bound();
  }
  return json;
}

/// Returns "1-forward.cu": the number of the kernel in the call, and its kind without the family ("portable: ").
std::string file_name(std::size_t number, const GpuKernel& kernel, const char* suffix) {
  const auto colon = kernel.name.find(": ");
  const auto begin = colon == std::string::npos ? 0 : colon + 2;
  return fmt::format("{}-{}.{}", number, kernel.name.substr(begin, kernel.name.find(' ', begin) - begin), suffix);
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw MachineError(fmt::format("{}: the file cannot be written", path.string()));
}

template <class Text>
void dump(const Dump& where, const std::vector<CompiledKernel>& kernels, const char* suffix, Text text_of) {
  if (!where.requested) return;
  std::string together;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const GpuKernel& kernel = kernels[i].kernel;
    const std::string text = fmt::format("// {}, {}\n{}\n", kernel.name, kernel.architecture, text_of(kernels[i]));
    if (std::filesystem::is_directory(where.path)) {
      write_text(std::filesystem::path(where.path) / file_name(i + 1, kernel, suffix), text);
    } else {
      together += text;
    }
  }
  if (where.path.empty() || where.path == "-") {
    fmt::print("{}", together);
  } else if (!together.empty()) {
    write_text(where.path, together);
  }
}

/// Returns the kernels of both directions, each once.
std::vector<CompiledKernel> kernels_of(const Attention& attention, const std::string& architecture,
                                       const WantedGradients& wanted) {
  std::vector<CompiledKernel> kernels;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (CompiledKernel& compiled : gdpa::compile(attention, direction, {architecture, Lengths::these, {}, wanted})) {
      const bool is_known = std::any_of(kernels.begin(), kernels.end(), [&](const CompiledKernel& known) {
        return known.kernel.name == compiled.kernel.name;
      });
      if (!is_known) kernels.push_back(std::move(compiled));
    }
  }
  return kernels;
}

/// A named architecture is independent of the devices of the machine.
ProblemOptions problem_for(const ExplainOptions& options) {
  ProblemOptions problem = options.problem;
  if (options.architecture.empty()) return problem;
  if (!problem.device.empty())
    throw UsageError("--arch: expected no --device, because --arch needs no GPU; remove one of the two");
  problem.device = "cpu";
  return problem;
}

void check_place(const TileMapOptions& options, const Problem& problem) {
  const auto check = [](const char* option, int64_t number, int64_t count) {
    if (number < 0 || number >= count) {
      throw UsageError(fmt::format("{}: expected 0 to {}; got {}", option, count - 1, number));
    }
  };
  check("--entry", options.entry, problem.batch());
  check("--head", options.head, problem.heads_q);
}

/// Prints the map of the tiles of forward, and the number of tiles of both directions. Writes the picture.
void draw_tile_map(const TileMapOptions& options, const KeptScores& scores, const TileMap& forward,
                   const TileMap& backward, bool prints) {
  constexpr int64_t most_characters = 96;
  if (prints) {
    fmt::print("mask of sequence {}, head {}: {} queries, {} keys\n", options.entry, options.head, scores.length_q(),
               scores.length_k());
    fmt::print("  forward   {}\n  backward  {}\n", forward.summary(), backward.summary());
    for (const std::string& row : forward.lines(most_characters)) fmt::print("  {}\n", row);
    fmt::print("\n");
  }
  if (!options.path.empty()) write_picture(options.path, scores, forward);
}

int execute(ExplainOptions& options) {
  refuse_unused_tensors(options.problem, {options.problem.activation});
  const Problem problem = resolve(problem_for(options));
  const WantedGradients wanted = wanted_gradients(options.gradients, problem);
  const Workload shapes(problem, Contents::none, options.problem.seed);
  const bool on_gpu = problem.device.kind == DeviceKind::cuda || !options.architecture.empty();
  if (options.source.requested || options.sass.requested) {
    if (!on_gpu) throw UsageError("--dump-source, --dump-sass: expected a GPU, got the CPU; add --arch sm_90a");
    const std::vector<CompiledKernel> kernels = kernels_of(shapes.attention(), options.architecture, wanted);
    dump(options.source, kernels, "cu", [](const CompiledKernel& kernel) { return kernel.source; });
    dump(options.sass, kernels, "sass", [](const CompiledKernel& kernel) { return disassemble(kernel.image); });
    return success;
  }
  const Plan forward = gdpa::explain(shapes.attention(), Direction::forward, options.architecture);
  const Plan backward = gdpa::explain(shapes.attention(), Direction::backward, options.architecture, wanted);
  const Rates* const rates =
      options.architecture.empty() ? &rates_of(problem.device, problem.dtype, problem.threads) : nullptr;

  if (!options.json.replaces_text()) {
    fmt::print("{}\n", describe(problem));
    fmt::print("on {}\n\n", rates == nullptr ? options.architecture : describe(problem.device, problem.threads));
    fmt::print("f(s)   = {}\nf'(s)  = {}\n\n", problem.activation.text(), problem.activation.derivative_text());
    print_direction("forward", forward, rates);
    print_direction(wanted.all() ? "backward" : fmt::format("backward, gradients {}", options.gradients), backward,
                    rates);
    if (rates != nullptr) fmt::print("{}\n", rates->source);
  }
  Json tile_map;
  if (options.tile_map.requested) {
    check_place(options.tile_map, problem);
    const KeptScores scores(problem, shapes, options.tile_map.entry, options.tile_map.head);
    const TileMap of_forward(scores, forward.tile_queries, forward.tile_keys),
        of_backward(scores, backward.tile_queries, backward.tile_keys);
    draw_tile_map(options.tile_map, scores, of_forward, of_backward, !options.json.replaces_text());
    tile_map = {{"entry", options.tile_map.entry},
                {"head", options.tile_map.head},
                {"forward", of_forward.to_json()},
                {"backward", of_backward.to_json()}};
  }
  if (options.json.requested) {
    Json report = {{"problem", to_json(problem)},
                   {"forward", plan_to_json(forward, rates)},
                   {"backward", plan_to_json(backward, rates)},
                   {"gradients", options.gradients}};
    if (rates != nullptr) {
      report["rates"] = {{"product_tflops", rates->product_flops * 1e-12},
                         {"copy_gb_per_second", rates->copy_bytes * 1e-9}};
    }
    if (options.tile_map.requested) report["tile_map"] = tile_map;
    options.json.write(report);
  }
  return success;
}

void add_dump_option(CLI::App& parser, const char* name, Dump& dump, const std::string& description) {
  parser
      .add_option_function<std::string>(
          name,
          [&dump](const std::string& path) {
            dump.requested = true;
            dump.path = path;
          },
          description + " to standard output, to a file, or to a folder with one file for each kernel")
      ->expected(0, 1)
      ->option_text("[FILE or FOLDER]")
      ->group("Output");
}

}  // namespace

Command add_explain(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* const parser = app.add_subcommand("explain", "Print the plan of a problem and its floor");
  add_activation_option(*parser, options->problem);
  add_problem_options(*parser, options->problem);
  add_dtype_option(*parser, options->problem);
  add_gradients_option(*parser, options->gradients);
  add_device_option(*parser, options->problem.device);
  parser->add_option("--arch", options->architecture, "Explain for this architecture, without a GPU: sm_90a, sm_80")
      ->group("Device");
  add_dump_option(*parser, "--dump-source", options->source,
                  "Instead of the plan, write the generated CUDA C++ of every kernel");
  add_dump_option(*parser, "--dump-sass", options->sass, "Instead of the plan, write the instructions of every kernel");
  parser
      ->add_option_function<std::string>(
          "--tile-map",
          [options](const std::string& path) {
            options->tile_map.requested = true;
            options->tile_map.path = path;
          },
          "Draw the tiles of the mask as text, and to a .png file")
      ->expected(0, 1)
      ->option_text("[FILE]")
      ->group("Output");
  parser->add_option("--entry", options->tile_map.entry, "The batch entry of the tile map")
      ->capture_default_str()
      ->group("Output");
  parser->add_option("--head", options->tile_map.head, "The query head of the tile map")
      ->capture_default_str()
      ->group("Output");
  add_json_option(*parser, options->json);
  parser->footer(explain_footer);
  return {parser, [options] { return execute(*options); }};
}

}  // namespace gdpa::tool
