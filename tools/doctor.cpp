// gdpa doctor: prints the version of gdpa and the components of the machine, runs a self-check, and prints remedies.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <array>
#include <exception>
#include <memory>
#include <utility>

#include "command.h"
#include "commit.h"
#include "errors.h"
#include "gdpa/system.h"
#include "problem.h"
#include "reference.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

const char* const doctor_footer =
    "The self-check computes a small jagged problem forward and backward in each type, and compares it with fp64.\n"
    "If it fails on the CPU or on a GPU, the exit code is 1. The command also lists missing components that the CPU\n"
    "does not need. They are not failures.\n\n"
    "Examples:\n"
    "  gdpa doctor\n"
    "  gdpa doctor --rates            also measure the product and copy rates of this processor\n"
    "  gdpa doctor --json report.json";

struct DoctorOptions {
  bool rates = false;
  int threads = 0;
  JsonOutput json;
};

struct SelfCheck {
  std::string device;
  DType dtype;
  double worst_error;
  std::string failure = {};  ///< the reason if nothing was computed
  bool ok() const { return failure.empty() && worst_error <= promised_error(dtype); }
};

SelfCheck self_check(const std::string& device, const char* dtype) {
  ProblemOptions options;
  options.lengths_q = "0,1,37,70";
  options.lengths_k = "5,0,65,9";
  options.heads = 2;
  options.head_dim = 40;
  options.dtype = dtype;
  options.device = device;
  options.mask = "causal";
  const Problem problem = resolve(options);
  Workload workload(problem, Contents::random, 0);
  workload.run_forward();
  workload.run_backward();
  const Reference reference = compute_reference(problem, workload);
  SelfCheck check{device, problem.dtype, 0};
  const auto add = [&check](const Tensor& got, const std::vector<double>& expected) {
    const double error = relative_error(got.to_double(), expected);
    if (!(error <= check.worst_error)) check.worst_error = error;  // propagates NaN
  };
  add(workload.output, reference.output);
  add(workload.grad_query, reference.grad_query);
  add(workload.grad_key, reference.grad_key);
  add(workload.grad_value, reference.grad_value);
  return check;
}

/// Checks the CPU in every type, and each supported GPU in its types.
std::vector<SelfCheck> self_checks(const System& system) {
  std::vector<SelfCheck> checks;
  for (const char* dtype : {"float32", "float64", "bfloat16", "float16"}) checks.push_back(self_check("cpu", dtype));
  constexpr std::array gpu_types = {std::pair{"float32", DType::float32}, std::pair{"bfloat16", DType::bfloat16},
                                    std::pair{"float16", DType::float16}};
  Progress progress("self-check on GPUs", static_cast<int64_t>(gpu_types.size() * system.gpus.size()));
  for (std::size_t i = 0; i < system.gpus.size(); ++i) {
    if (!system.gpus[i].advice.empty()) continue;
    const std::string device = fmt::format("cuda:{}", i);
    for (const auto& [type_name, dtype] : gpu_types) {
      try {
        checks.push_back(self_check(device, type_name));
      } catch (const std::exception& error) {
        checks.push_back({device, dtype, 0, error.what()});
      }
      progress.advance_to(static_cast<int64_t>(checks.size()) - 4);
    }
  }
  return checks;
}

double gibibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void print_report(const System& system, const std::vector<SelfCheck>& checks) {
  fmt::print("gdpa         {} (commit {}), built by {}\n", system.version, commit(), system.compiler);
  fmt::print("library      {}\n", system.location);
  fmt::print("processor    {}\n", system.processor);
  fmt::print("             {} thread{}; {}\n", system.threads, system.threads == 1 ? "" : "s",
             fmt::join(system.instruction_sets, " "));
  fmt::print("in use       {} for the function (Highway), {} for products (libxsmm)\n", system.vector_target,
             system.product_target);
  fmt::print("memory       {:.1f} GiB, {:.1f} GiB available\n", gibibytes(system.memory_bytes),
             gibibytes(system.available_memory_bytes));

  fmt::print("\nlibraries\n");
  for (const Component& component : system.components) {
    fmt::print("  {:<12} {}\n", component.name,
               component.found ? fmt::format("{}  {}", component.version, component.location) : "not found");
    fmt::print("  {:<12} {}\n", "", component.purpose);
    if (!component.advice.empty()) fmt::print("  {:<12} -> {}\n", "", component.advice);
  }
  fmt::print("\ndevices\n");
  for (std::size_t i = 0; i < system.gpus.size(); ++i) {
    const GpuDevice& gpu = system.gpus[i];
    fmt::print("  cuda:{}  {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB\n", i, gpu.name,
               gpu.compute_major, gpu.compute_minor, gpu.multiprocessors, gibibytes(gpu.memory_bytes));
    if (!gpu.advice.empty()) fmt::print("          -> {}\n", gpu.advice);
  }
  if (system.gpus.empty()) fmt::print("  no GPU; gdpa computes on the CPU\n");

  const KernelCache& cache = system.cache;
  fmt::print("\nkernel cache\n  {}: {} kernel{}, {:.1f} of at most {:.0f} MiB\n", cache.folder, cache.entries,
             cache.entries == 1 ? "" : "s", static_cast<double>(cache.bytes) / (1 << 20),
             static_cast<double>(cache.limit_bytes) / (1 << 20));
  if (!cache.advice.empty()) fmt::print("  -> {}\n", cache.advice);

  fmt::print("\nself-check, worst error of O, dQ, dK and dV\n");
  for (const SelfCheck& check : checks) {
    fmt::print("  {:<7} {:<9} ", check.device, name(check.dtype));
    if (check.failure.empty()) {
      fmt::print("{:.1e} of at most {:.0e}  {}\n", check.worst_error, promised_error(check.dtype),
                 check.ok() ? good("ok") : bad("wrong"));
    } else {
      fmt::print("{}  {}\n", bad("failed"), check.failure);
    }
  }
}

Json report_to_json(const System& system, const std::vector<SelfCheck>& checks) {
  Json components = Json::array();
  for (const Component& component : system.components) {
    components.push_back({{"name", component.name},
                          {"purpose", component.purpose},
                          {"found", component.found},
                          {"version", component.version},
                          {"location", component.location},
                          {"advice", component.advice}});
  }
  Json gpus = Json::array();
  for (const GpuDevice& gpu : system.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
                    {"memory_bytes", gpu.memory_bytes},
                    {"multiprocessors", gpu.multiprocessors},
                    {"advice", gpu.advice}});
  }
  Json self_checks = Json::object();
  Json gpu_checks = Json::object();
  for (const SelfCheck& check : checks) {
    Json& of_device = check.device == "cpu" ? self_checks : gpu_checks[check.device];
    of_device[name(check.dtype)] = {
        {"error", check.worst_error}, {"promise", promised_error(check.dtype)}, {"ok", check.ok()}};
    if (!check.failure.empty()) of_device[name(check.dtype)]["failure"] = check.failure;
  }
  return {{"version", system.version},
          {"commit", commit()},
          {"compiler", system.compiler},
          {"library", system.location},
          {"processor", system.processor},
          {"threads", system.threads},
          {"instruction_sets", system.instruction_sets},
          {"vector_target", system.vector_target},
          {"product_target", system.product_target},
          {"memory_bytes", system.memory_bytes},
          {"available_memory_bytes", system.available_memory_bytes},
          {"components", components},
          {"gpus", gpus},
          {"kernel_cache",
           {{"folder", system.cache.folder},
            {"entries", system.cache.entries},
            {"bytes", system.cache.bytes},
            {"limit_bytes", system.cache.limit_bytes},
            {"advice", system.cache.advice}}},
          {"self_check", self_checks},
          {"gpu_self_check", gpu_checks}};
}

Json rates_to_json(const ProcessorRates& rates) {
  return {{"threads", rates.threads},
          {"product_tflops", rates.product_flops * 1e-12},
          {"copy_gb_per_second", rates.copy_bytes * 1e-9}};
}

int execute(DoctorOptions& options) {
  const System system = inspect_system();
  const std::vector<SelfCheck> checks = self_checks(system);
  bool ok = true;
  for (const SelfCheck& check : checks) ok = ok && check.ok();

  Json report = report_to_json(system, checks);
  if (!options.json.replaces_text()) print_report(system, checks);
  if (options.rates) {
    for (const DType dtype : {DType::float32, DType::float64}) {
      const ProcessorRates rates = measure_processor_rates(dtype, options.threads);
      report["rates"][name(dtype)] = rates_to_json(rates);
      if (options.json.replaces_text()) continue;
      fmt::print("\nrates, {}: products {:.1f} GFLOP/s, copies {:.1f} GB/s\n", name(dtype), rates.product_flops * 1e-9,
                 rates.copy_bytes * 1e-9);
    }
  }
  if (options.json.requested) options.json.write(report);
  return ok ? success : check_failed;
}

}  // namespace

Command add_doctor(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* const parser = app.add_subcommand("doctor", "Print the components of this machine and run a self-check");
  parser->add_flag("--rates", options->rates, "Also measure the product and copy rates of this processor")
      ->group("Output");
  parser
      ->add_option("--threads", options->threads,
                   "Number of threads of this measurement; 0 means one for each processor")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Output");
  add_json_option(*parser, options->json);
  parser->footer(doctor_footer);
  return {parser, [options] { return execute(*options); }};
}

}  // namespace gdpa::tool
