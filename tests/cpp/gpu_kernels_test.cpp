// The kernels that plans name compile without spills, for every GPU since Ampere, by the newest NVRTC and by the oldest
// one that is tested, and multiply on the tensor cores. No GPU is needed.
//
// The sample holds every tile that the planner returns for each GPU, by both NVRTCs, every variant of each kind of
// kernel, and every named function with every kind and element type, fast and exact. Environment variables:
//     GDPA_OLDEST_NVRTC      the folder of the older NVRTC; `make setup` installs one
//     GDPA_COMPILE_KERNELS   compiles only so many, spread over all
//     GDPA_COMPILE_ALL=1     takes every kernel with every function by both NVRTCs rather than the sample: days, so
//                            give a number too
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "compilers.h"
#include "gpu/kernel.h"
#include "gpu/target.h"
#include "disassemble.h"
#include "gpu/families/family.h"
#include "families/planning.h"
#include "families/portable/portable_tiles.h"
#include "gdpa/activation.h"
#include "jit/cubin.h"
#include "jit/nvrtc.h"
#include "gpu/plan.h"

namespace gdpa::gpu {
namespace {

using gpu::GpuElement;
using plan::KernelKind;
using plan::KernelSpec;

// --- compiled kernels ------------------------------------------------------------------------------------------------

struct Instance {
  KernelSpec kernel;
  std::string function;
  std::string architecture;
  std::size_t compiler = 0;
};

std::string name_of(const Instance& instance) {
  const KernelSpec& kernel = instance.kernel;
  return fmt::format("{} ({} x {} warps, {} CTAs{}{}{}{}), {}, {}, NVRTC {}", describe(kernel), kernel.warps,
                     kernel.portable().column_warps, kernel.ctas, kernel.aligned ? ", aligned" : "",
                     kernel.portable().reduce_grad_query ? ", reduce_grad_query" : "",
                     kernel.keys_shared     ? ", keys_shared"
                     : kernel.has_batch_map ? ", batch map"
                     : kernel.owns_rows     ? ", rows"
                                            : "",
                     kernel.portable().queries_shared ? ", queries_shared" : "", instance.function,
                     instance.architecture, compilers()[instance.compiler].version());
}

/// Problems with plans that contain all kinds of kernels.
std::vector<Problem> problems() {
  std::vector<Problem> result;
  constexpr std::array head_dims = {std::pair{128, 128}, std::pair{64, 64},   std::pair{256, 256}, std::pair{96, 96},
                                    std::pair{192, 128}, std::pair{64, 128},  std::pair{8, 8},     std::pair{192, 192},
                                    std::pair{128, 256}, std::pair{112, 112}, std::pair{160, 160}, std::pair{256, 64},
                                    std::pair{224, 224}, std::pair{136, 72}};
  for (const auto& [head_dim, head_dim_v] : head_dims) {
    for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
      for (const bool allow_tf32 : {false, true}) {
        if (allow_tf32 && dtype != DType::float32) continue;
        Problem problem;
        problem.dtype = dtype;
        problem.allow_tf32 = allow_tf32;
        problem.batch = 10;
        problem.heads_q = problem.heads_k = 4;
        problem.head_dim = head_dim;
        problem.head_dim_v = head_dim_v;
        problem.rows_q = problem.rows_k = 1000;
        result.push_back(problem);
        problem.direction = Direction::backward;
        for (const Form key_form : {Form::jagged, Form::shared}) {
          problem.key_form = key_form;
          for (const bool deterministic : {false, true}) {
            problem.deterministic = deterministic;
            result.push_back(problem);
          }
        }
        problem.query_form = Form::shared;
        result.push_back(problem);
      }
    }
  }
  return result;
}

/// Backward problems with a batch map, and with keys that may overlap.
std::vector<Problem> layout_problems() {
  std::vector<Problem> result;
  for (Problem& problem : problems()) {
    const bool is_plain = problem.query_form == Form::jagged && problem.key_form == Form::jagged;
    if (problem.direction != Direction::backward || !is_plain || problem.deterministic) continue;
    problem.has_key_gaps = problem.has_batch_map = true;
    problem.mapped_entries = 5;
    result.push_back(problem);
  }
  return result;
}

/// Those of them whose kernels add the query, or dO.
std::vector<Problem> problems_with_query() {
  std::vector<Problem> result;
  for (Problem problem : problems()) {
    const bool has_query_kernel = problem.direction == Direction::forward || problem.deterministic;
    if (!has_query_kernel || problem.head_dim != problem.head_dim_v || problem.key_form == Form::shared ||
        problem.query_form == Form::shared) {
      continue;
    }
    problem.add_query = true;
    result.push_back(problem);
  }
  return result;
}

std::vector<KernelSpec> kernels_of(const Problem& problem, const gpu::Gpu& gpu, const std::string& function,
                                   Accuracy accuracy, bool aligned) {
  const Activation activation(function);
  const auto registers = plan::registers_of(activation.function().value_and_derivative(), accuracy);
  const auto products = problem.allow_tf32 ? plan::Float32Products::one : plan::Float32Products::three;
  std::vector<KernelSpec> result;
  gpu::GpuPlan plan = families::gpu_plan({problem, gpu, registers, aligned, products});
  plan::take_scale_out(plan, activation.function().value(), 0.125);
  plan.steps.insert(plan.steps.end(), plan.overlap_steps.begin(), plan.overlap_steps.end());
  for (gpu::GpuStep& step : plan.steps) {
    step.kernel.accuracy = accuracy;
    result.push_back(step.kernel);
  }
  result.push_back(families::reduction(problem, gpu, aligned, problem.head_dim, 1000, problem.add_query).kernel);
  return result;
}

/// The coverage of the sample: the tiles of each GPU with each compiler, the variants of each kind, and the functions,
/// each once.
class Coverage {
 public:
  /// How many of the three are new with this instance.
  int news(const Instance& instance) const {
    return static_cast<int>(!tiles_.contains(tile_of(instance))) +
           static_cast<int>(!variants_.contains(variant_of(instance))) +
           static_cast<int>(!functions_.contains(function_of(instance)));
  }
  void add(const Instance& instance) {
    tiles_.insert(tile_of(instance));
    variants_.insert(variant_of(instance));
    functions_.insert(function_of(instance));
  }
  std::size_t functions() const { return functions_.size(); }

 private:
  using Tile = std::tuple<std::string, std::size_t, KernelKind, bool, int, int, int, int, int>;
  static Tile tile_of(const Instance& instance) {
    const KernelSpec& kernel = instance.kernel;
    const bool is_16_bit = kernel.element == GpuElement::bfloat16 || kernel.element == GpuElement::float16;
    return {instance.architecture,
            instance.compiler,
            kernel.kind,
            is_16_bit,
            kernel.tile_queries,
            kernel.tile_keys,
            kernel.portable().column_warps,
            kernel.stages,
            kernel.ctas};
  }
  using Variant = std::tuple<KernelKind, GpuElement, bool, bool, bool, bool, bool, bool, bool>;
  static Variant variant_of(const Instance& instance) {
    const KernelSpec& kernel = instance.kernel;
    return {kernel.kind,
            kernel.element,
            kernel.aligned,
            kernel.adds_query,
            kernel.portable().reduce_grad_query,
            kernel.keys_shared,
            kernel.portable().queries_shared,
            kernel.has_batch_map,
            kernel.owns_rows};
  }
  using Function = std::tuple<KernelKind, GpuElement, std::string, Accuracy>;
  static Function function_of(const Instance& instance) {
    if (instance.kernel.kind == KernelKind::reduce) return {};
    return {instance.kernel.kind, instance.kernel.element, instance.function, instance.kernel.accuracy};
  }

  std::set<Tile> tiles_;
  std::set<Variant> variants_;
  std::set<Function> functions_;
};

/// Everything that may be compiled, in an order that rotates through the functions.
template <class Visit>
void visit_instances_of(const std::vector<Problem>& problems, Visit visit) {
  const std::vector<NamedActivation>& names = named_activations();
  std::size_t rotation = 0;
  for (const char* architecture : {"sm_90a", "sm_80", "sm_100a", "sm_86", "sm_120a"}) {
    const gpu::Gpu gpu = target_of(std::string(architecture)).gpu;
    for (const Problem& problem : problems) {
      for (const bool aligned : {true, false}) {
        ++rotation;
        for (std::size_t i = 0; i < 2 * names.size(); ++i) {
          // fp32 is always exact; see the backend.
          const Accuracy accuracy =
              (i + rotation) % 2 == 0 || problem.dtype == DType::float32 ? Accuracy::exact : Accuracy::fast;
          const std::string function(names[(i / 2 + rotation) % names.size()].name);
          for (const KernelSpec& kernel : kernels_of(problem, gpu, function, accuracy, aligned)) {
            for (std::size_t c = 0; c < compilers().size(); ++c) {
              visit(Instance{kernel, function, architecture, (c + i / 2 + rotation / 2) % compilers().size()});
            }
          }
        }
      }
    }
  }
}

template <class Visit>
void visit_instances(Visit visit) {
  visit_instances_of(problems(), visit);
  visit_instances_of(problems_with_query(), visit);
  visit_instances_of(layout_problems(), visit);
}

std::vector<Instance> sample() {
  std::vector<Instance> result;
  Coverage coverage;
  for (const int wanted : {3, 2, 1}) {
    visit_instances([&](const Instance& instance) {
      if (coverage.news(instance) < wanted) return;
      coverage.add(instance);
      result.push_back(instance);
    });
  }
  return result;
}

std::vector<Instance> everything() {
  std::map<std::string, Instance> all;
  visit_instances([&](const Instance& instance) { all.emplace(name_of(instance), instance); });
  std::vector<Instance> result;
  for (auto& [name, instance] : all) result.push_back(std::move(instance));
  return result;
}

std::vector<Instance> instances() {
  const std::vector<Instance> all = environment("GDPA_COMPILE_ALL") == "1" ? everything() : sample();
  const std::string limit = environment("GDPA_COMPILE_KERNELS");
  if (limit.empty() || std::stoul(limit) >= all.size()) return all;
  std::vector<Instance> fewer;
  for (std::size_t i = 0; i < std::stoul(limit); ++i) fewer.push_back(all[i * all.size() / std::stoul(limit)]);
  return fewer;
}

// --- contents of a cubin ---------------------------------------------------------------------------------------------

/// The matrix instruction that all products of an element type take, and none of another.
std::string product_of(GpuElement element) {
  switch (element) {
    case GpuElement::bfloat16:
      return "HMMA.16816.F32.BF16";
    case GpuElement::float16:
      return "HMMA.16816.F32";
    case GpuElement::float32:
    case GpuElement::tensor_float32:
      return "HMMA.1688.F32.TF32";
  }
  return "";
}

/// Returns a line for each fault in the instructions of a kernel.
std::string faults_of(const KernelSpec& kernel, const std::string& code) {
  std::set<std::string> operations;
  static const std::regex pattern(R"(\b([A-Z][A-Z0-9]+(?:\.[A-Z0-9_]+)*)\b)");
  for (auto at = std::sregex_iterator(code.begin(), code.end(), pattern); at != std::sregex_iterator(); ++at) {
    operations.insert((*at)[1]);
  }
  const auto has = [&](const std::string& operation) {
    const auto found = operations.lower_bound(operation);
    return found != operations.end() && (*found == operation || found->starts_with(operation + "."));
  };
  std::string faults;
  const auto expect = [&](bool wanted, const std::string& operation) {
    if (has(operation) != wanted) faults += fmt::format("  {} {}\n", wanted ? "expected" : "unexpected", operation);
  };
  expect(false, "LDL");
  expect(false, "STL");
  if (kernel.kind == KernelKind::reduce) return faults;
  for (const std::string& operation : operations) {
    if (operation.starts_with("HMMA.") && operation != product_of(kernel.element)) {
      faults += fmt::format("  unexpected {}\n", operation);
    }
  }
  expect(true, product_of(kernel.element));
  expect(true, "LDSM");
  expect(kernel.aligned, "LDGSTS");
  return faults;
}

/// Compiles one instance. Returns a line for each fault.
std::string faults_of(const Instance& instance, bool reads_code) {
  const Activation activation(instance.function);
  const KernelSpec& kernel = instance.kernel;
  const std::string source = kernel_source(kernel, activation.function());
  const jit::Compiled compiled =
      compile(compilers()[instance.compiler], {source, activation.text()}, instance.architecture);
  std::string faults;
  const jit::Cubin cubin(std::string_view(compiled.cubin.data(), compiled.cubin.size()));
  if (const int bytes = cubin.local_bytes().value_or(-1); bytes != 0) {
    faults += fmt::format("  expected no local memory, got {} bytes\n", bytes);
  }
  const auto expect = [&](const char* what, int64_t expected, int64_t got) {
    if (got != expected) faults += fmt::format("  {}: the planner counts {}, the kernel {}\n", what, expected, got);
  };
  expect("shared memory", families::shared_bytes(kernel), cubin.constant(SourceNames::shared_bytes).value_or(-1));
  if (kernel.kind != KernelKind::reduce) {
    expect("threads", kernel.warps * kernel.portable().column_warps * 32,
           cubin.constant(SourceNames::threads).value_or(-1));
  }
  // From sm_90 on, the section of static shared memory begins with memory of the system.
  constexpr int of_system = 1024;
  const int own = cubin.static_shared_bytes() % of_system;
  if (own > families::static_shared_bytes) {
    faults +=
        fmt::format("  static shared memory: expected at most {} bytes, got {}\n", families::static_shared_bytes, own);
  }
  // The warnings of ptxas about serialised tensor-core instructions and about missing registers.
  static const std::regex warning(R"(C75(0[89]|1[0-9]))");
  if (std::regex_search(compiled.log, warning)) faults += compiled.log;
  if (reads_code) faults += faults_of(kernel, disassemble(compiled.cubin));
  return faults;
}

TEST(GpuKernels, TheToolsOfThisTestAreThere) {
  EXPECT_EQ(compilers().size(), 2U) << "expected two NVRTCs: set GDPA_OLDEST_NVRTC to the folder of the older one, "
                                       "which `make setup` installs";
  EXPECT_FALSE(disassembler().empty()) << "expected nvdisasm: set GDPA_SITE_PACKAGES to the site-packages of a Python "
                                          "with PyTorch, or CUDA_HOME to a CUDA toolkit";
}

TEST(GpuKernels, TheSampleHasEveryFunctionWithEveryKindAndElement) {
  Coverage coverage;
  for (const Instance& instance : sample()) coverage.add(instance);
  constexpr std::size_t kinds = 3, with_two_accuracies = 2, with_one = 2, no_function = 1;
  EXPECT_EQ(coverage.functions(),
            kinds * (2 * with_two_accuracies + with_one) * named_activations().size() + no_function);
}

TEST(GpuKernels, CompileWithoutSpillsToTensorCoreProducts) {
  const std::vector<Instance> all = instances();
  const bool can_read_code = !disassembler().empty();
  compilers();
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::set<std::tuple<KernelKind, GpuElement, bool, std::string, std::size_t>> read;
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      const Instance& instance = all[i];
      const KernelSpec& kernel = instance.kernel;
      bool reads_code = can_read_code;
      {
        const std::lock_guard lock(mutex);
        if (i % 50 == 0) fmt::print("{} of {} kernels\n", i, all.size());
        std::fflush(stdout);
        // Disassembling takes half as long as compiling, and kernels of one kind are alike.
        reads_code &=
            read.emplace(kernel.kind, kernel.element, kernel.aligned, instance.architecture, instance.compiler).second;
      }
      std::string faults;
      try {
        faults = faults_of(instance, reads_code);
      } catch (const std::exception& error) {
        faults = error.what();
      }
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(faults.empty()) << name_of(instance) << ":\n" << faults;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

TEST(GpuKernels, KernelsThatScaleRowsHaveNoSpills) {
  compilers();
  for (const auto& [architecture, dtype] : {std::pair{"sm_80", DType::bfloat16}, std::pair{"sm_90a", DType::float32}}) {
    Problem problem;
    problem.dtype = dtype;
    problem.batch = 10;
    problem.heads_q = problem.heads_k = 4;
    problem.head_dim = problem.head_dim_v = 256;
    problem.rows_q = problem.rows_k = 1000;
    problem.out_scale = OutScale::Kind::per_row;
    const KernelSpec kernel =
        kernels_of(problem, target_of(std::string(architecture)).gpu, "silu", Accuracy::exact, true).front();
    ASSERT_TRUE(kernel.has_row_scale);
    const Instance instance{kernel, "silu", architecture, 0};
    EXPECT_EQ(faults_of(instance, false), "") << name_of(instance);
  }
}

TEST(GpuKernels, KernelsOfSomeGradientsLeaveProductsOutWithoutSpills) {
  if (disassembler().empty()) GTEST_SKIP() << "no disassembler";
  const gpu::Gpu gpu = target_of(std::string("sm_80")).gpu;
  const auto products = [&](const WantedGradients& wanted) {
    Problem problem;
    problem.direction = Direction::backward;
    problem.dtype = DType::bfloat16;
    problem.batch = 10;
    problem.heads_q = problem.heads_k = 4;
    problem.head_dim = problem.head_dim_v = 128;
    problem.rows_q = problem.rows_k = 1000;
    problem.wanted = wanted;
    const KernelSpec kernel = kernels_of(problem, gpu, "gelu", Accuracy::fast, true).front();
    const Activation activation("gelu");
    const jit::Compiled compiled =
        compile(compilers().front(), {kernel_source(kernel, activation.function()), activation.text()}, "sm_80");
    const std::string code = disassemble(compiled.cubin), product = product_of(kernel.element);
    EXPECT_EQ(faults_of(kernel, code), "") << describe(kernel);
    int count = 0;
    for (std::size_t at = code.find(product); at != std::string::npos; at = code.find(product, at + 1)) ++count;
    return count;
  };
  const int all = products({true, true, true}), without_key = products({true, false, true}),
            without_value = products({true, true, false}), without_query = products({false, true, true});
  EXPECT_LT(without_query, all);
  EXPECT_LT(without_key, all);
  EXPECT_LT(without_value, all);
  EXPECT_EQ(products({false, true, false}), without_query - (all - without_value));
  EXPECT_LT(products({false, false, true}), without_query - (all - without_key)) << "dP is also left out";
}

}  // namespace
}  // namespace gdpa::gpu
