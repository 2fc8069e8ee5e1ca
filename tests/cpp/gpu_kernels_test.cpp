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
#include <concepts>
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
#include "disassemble.h"
#include "gdpa/activation.h"
#include "gpu/target.h"
#include "gpu_calls.h"
#include "jit/cubin.h"
#include "jit/nvrtc.h"

namespace gdpa::gpu {
namespace {

// --- compiled kernels ------------------------------------------------------------------------------------------------

/// What this test asks of a kernel, whichever it is. The reduce kernel has no tile, and evaluates no function.
struct Properties {
  bool is_reduce = false;
  PortableKernel tile = {};
  TileNeeds needs = {};
  Accuracy accuracy = Accuracy::fast;
  bool reduce_grad_query = false;
  bool keys_shared = false;
  bool queries_shared = false;
  bool has_batch_map = false;
  bool owns_rows = false;
};

Properties properties_of(const Kernel& kernel) {
  Properties properties;
  visit_portable(kernel, [&]<class Spec>(const Spec& spec) {
    properties.tile = spec;
    properties.needs = spec.needs();
    properties.accuracy = spec.accuracy;
    if constexpr (std::same_as<Spec, PortableBackwardQuery>) properties.queries_shared = spec.queries_shared;
    if constexpr (std::same_as<Spec, PortableBackward>) {
      properties.reduce_grad_query = spec.reduce_grad_query;
      properties.keys_shared = spec.keys_shared;
      properties.has_batch_map = spec.has_batch_map;
      properties.owns_rows = spec.owns_rows;
    }
  });
  if (const Reduce* const reduce = kernel.as<Reduce>()) {
    properties.is_reduce = true;
    properties.tile.element = reduce->element;
    properties.tile.aligned = reduce->aligned;
  }
  return properties;
}

struct Instance {
  Kernel kernel;
  std::string function;
  std::string architecture;
  std::size_t compiler = 0;
  Properties of = properties_of(kernel);

  std::string_view name() const { return kernel.names().name; }
};

std::string name_of(const Instance& instance) {
  const Properties& of = instance.of;
  return fmt::format("{} ({} x {} warps, {} CTAs{}{}{}{}), {}, {}, NVRTC {}", instance.kernel.description(),
                     of.tile.warps, of.tile.column_warps, of.tile.ctas, of.tile.aligned ? ", aligned" : "",
                     of.reduce_grad_query ? ", reduce_grad_query" : "",
                     of.keys_shared     ? ", keys_shared"
                     : of.has_batch_map ? ", batch map"
                     : of.owns_rows     ? ", rows"
                                        : "",
                     of.queries_shared ? ", queries_shared" : "", instance.function, instance.architecture,
                     compilers()[instance.compiler].version());
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

/// The attention kernels and the reduce kernels of a call.
std::vector<Kernel> kernels_of(const Problem& problem, const Gpu& gpu, const std::string& function, Accuracy accuracy,
                               bool aligned) {
  TestCall call{problem, Activation(function), {}, gpu, aligned, false};
  call.problem.accuracy = accuracy;
  call.params.scale = 0.125;
  std::vector<Kernel> result;
  const GpuPlan plan = call.plan();
  for (const Launch* const launch : kernels_of(plan)) {
    const auto add = [&](const auto&) { result.push_back(launch->kernel()); };
    visit_portable(launch->kernel(), add);
    visit_as<Reduce>(launch->kernel(), add);
  }
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
  using Tile = std::tuple<std::string, std::size_t, std::string_view, int, int, int, int, int, int>;
  static Tile tile_of(const Instance& instance) {
    const PortableKernel& tile = instance.of.tile;
    return {instance.architecture,  instance.compiler, instance.name(),
            bytes_of(tile.element), tile.tile_queries, tile.tile_keys,
            tile.column_warps,      tile.stages,       tile.ctas};
  }
  using Variant = std::tuple<std::string_view, GpuElement, bool, bool, bool, bool, bool, bool>;
  static Variant variant_of(const Instance& instance) {
    const Properties& of = instance.of;
    return {instance.name(), of.tile.element,   of.tile.aligned,  of.reduce_grad_query,
            of.keys_shared,  of.queries_shared, of.has_batch_map, of.owns_rows};
  }
  using Function = std::tuple<std::string_view, GpuElement, std::string, Accuracy>;
  static Function function_of(const Instance& instance) {
    if (instance.of.is_reduce) return {};
    return {instance.name(), instance.of.tile.element, instance.function, instance.of.accuracy};
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
    const Gpu gpu = target_of(std::string(architecture)).gpu;
    for (const Problem& problem : problems) {
      for (const bool aligned : {true, false}) {
        ++rotation;
        for (std::size_t i = 0; i < 2 * names.size(); ++i) {
          // fp32 is always exact; see the backend.
          const Accuracy accuracy =
              (i + rotation) % 2 == 0 || problem.dtype == DType::float32 ? Accuracy::exact : Accuracy::fast;
          const std::string function(names[(i / 2 + rotation) % names.size()].name);
          for (const Kernel& kernel : kernels_of(problem, gpu, function, accuracy, aligned)) {
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
std::string faults_of(const Properties& of, const std::string& code) {
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
  if (of.is_reduce) return faults;
  for (const std::string& operation : operations) {
    if (operation.starts_with("HMMA.") && operation != product_of(of.tile.element)) {
      faults += fmt::format("  unexpected {}\n", operation);
    }
  }
  expect(true, product_of(of.tile.element));
  expect(true, "LDSM");
  expect(of.tile.aligned, "LDGSTS");
  return faults;
}

/// Compiles one instance. Returns a line for each fault.
std::string faults_of(const Instance& instance, bool reads_code) {
  const Activation activation(instance.function);
  const Properties& of = instance.of;
  const std::string source = instance.kernel.source(activation.function());
  const jit::Compiled compiled =
      compile(compilers()[instance.compiler], {source, activation.text()}, instance.architecture);
  std::string faults;
  const jit::Cubin cubin(compiled.cubin);
  if (const int bytes = cubin.local_bytes().value_or(-1); bytes != 0) {
    faults += fmt::format("  expected no local memory, got {} bytes\n", bytes);
  }
  const auto expect = [&](const char* what, int64_t expected, int64_t got) {
    if (got != expected) faults += fmt::format("  {}: the planner counts {}, the kernel {}\n", what, expected, got);
  };
  expect("shared memory", of.needs.shared_bytes, cubin.constant(SourceNames::shared_bytes).value_or(-1));
  if (!of.is_reduce) {
    expect("threads", of.tile.warps * of.tile.column_warps * 32, cubin.constant(SourceNames::threads).value_or(-1));
  }
  // From sm_90 on, the section of static shared memory begins with memory of the system.
  constexpr int of_system = 1024;
  const int own = cubin.static_shared_bytes() % of_system;
  if (own > portable_static_shared_bytes) {
    faults +=
        fmt::format("  static shared memory: expected at most {} bytes, got {}\n", portable_static_shared_bytes, own);
  }
  // The warnings of ptxas about serialised tensor-core instructions and about missing registers.
  static const std::regex warning(R"(C75(0[89]|1[0-9]))");
  if (std::regex_search(compiled.log, warning)) faults += compiled.log;
  if (reads_code) faults += faults_of(of, disassemble(compiled.cubin));
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
  std::set<std::tuple<std::string_view, GpuElement, bool, std::string, std::size_t>> read;
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      const Instance& instance = all[i];
      const PortableKernel& tile = instance.of.tile;
      bool reads_code = can_read_code;
      {
        const std::lock_guard lock(mutex);
        if (i % 50 == 0) fmt::print("{} of {} kernels\n", i, all.size());
        std::fflush(stdout);
        // Disassembling takes half as long as compiling, and kernels of one kind are alike.
        reads_code &=
            read.emplace(instance.name(), tile.element, tile.aligned, instance.architecture, instance.compiler).second;
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
    const Kernel kernel =
        kernels_of(problem, target_of(std::string(architecture)).gpu, "silu", Accuracy::exact, true).front();
    const Instance instance{kernel, "silu", architecture, 0};
    ASSERT_EQ(instance.of.tile.epilogue, Epilogue::row_scale);
    EXPECT_EQ(faults_of(instance, false), "") << name_of(instance);
  }
}

TEST(GpuKernels, KernelsOfSomeGradientsLeaveProductsOutWithoutSpills) {
  if (disassembler().empty()) GTEST_SKIP() << "no disassembler";
  const Gpu gpu = target_of(std::string("sm_80")).gpu;
  const auto products = [&](const WantedGradients& wanted) {
    Problem problem;
    problem.direction = Direction::backward;
    problem.dtype = DType::bfloat16;
    problem.batch = 10;
    problem.heads_q = problem.heads_k = 4;
    problem.head_dim = problem.head_dim_v = 128;
    problem.rows_q = problem.rows_k = 1000;
    problem.wanted = wanted;
    const Kernel kernel = kernels_of(problem, gpu, "gelu", Accuracy::fast, true).front();
    const Properties of = properties_of(kernel);
    const Activation activation("gelu");
    const jit::Compiled compiled =
        compile(compilers().front(), {kernel.source(activation.function()), activation.text()}, "sm_80");
    const std::string code = disassemble(compiled.cubin), product = product_of(of.tile.element);
    EXPECT_EQ(faults_of(of, code), "") << kernel.description();
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
