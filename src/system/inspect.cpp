// inspect_system: the processor, the memory, the linked libraries, the CUDA driver and NVRTC of the backend, and the
// kernel cache.
#include <dlfcn.h>
#include <fmt/format.h>
#include <libxsmm.h>
#include <tbb/version.h>

#include <fstream>
#include <string>
#include <vector>
#include "cpu/targets.h"

#include "gdpa/error.h"
#include "gdpa/system.h"
#include "gdpa/version.h"
#include "gpu/driver.h"
#include "hwy/highway.h"
#include "jit/cache.h"
#include "jit/nvrtc.h"
#include "plan/cpu_plan.h"

namespace gdpa {
namespace {

/// Returns the file that contains a function.
template <class Function>
std::string file_of(Function* function) {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(function), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

/// Returns the text after the colon in the first line of `path` that starts with `key` (/proc/cpuinfo, /proc/meminfo).
std::string proc_entry(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (line.rfind(key, 0) != 0 || colon == std::string::npos) continue;
    const auto text = line.find_first_not_of(" \t", colon + 1);
    return text == std::string::npos ? "" : line.substr(text);
  }
  return "";
}

int64_t memory_entry(const char* key) {
  const std::string kibibytes = proc_entry("/proc/meminfo", key);
  return kibibytes.empty() ? 0 : std::stoll(kibibytes) * 1024;
}

/// The compiler's test also asks the operating system, so AMX or AVX-512 count only if the system allows them.
std::vector<std::string> instruction_sets() {
  std::vector<std::string> sets;
  const auto add = [&sets](bool present, const char* name) {
    if (present) sets.emplace_back(name);
  };
  __builtin_cpu_init();
  add(__builtin_cpu_supports("avx2"), "AVX2");
  add(__builtin_cpu_supports("fma"), "FMA");
  add(__builtin_cpu_supports("avx512f"), "AVX512F");
  add(__builtin_cpu_supports("avx512bw"), "AVX512BW");
  add(__builtin_cpu_supports("avx512vnni"), "AVX512_VNNI");
  add(__builtin_cpu_supports("avx512bf16"), "AVX512_BF16");
  return sets;
}

/// Highway uses the best target that is compiled in and supported. A lower bit is a better target.
std::string vector_target() {
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);
}

Component cuda_driver(const std::vector<GpuDevice>& gpus) {
  Component component{"CUDA driver", "GPUs; not needed on the CPU", false, "", "", ""};
  if (const std::string problem = gpu::Driver::why_missing(); !problem.empty()) {
    component.advice = "fine without an NVIDIA GPU; otherwise: " + problem;
    return component;
  }
  const gpu::Driver& driver = gpu::Driver::get();
  component.found = true;
  component.version = "CUDA " + gpu::version_of(driver);
  component.location = file_of(driver.get_version);
  if (gpus.empty()) component.advice = "the driver shows no device: see nvidia-smi, and CUDA_VISIBLE_DEVICES";
  return component;
}

/// A cubin from NVRTC n.m loads with every driver for CUDA n.0 or later. Within a major version, drivers accept cubins
/// of later compilers for an exact architecture.
std::string advice_on_versions(const jit::Nvrtc& nvrtc) {
  if (!gpu::Driver::why_missing().empty()) return {};
  int version = 0;
  gpu::Driver::get().get_version(&version);
  if (version / 1000 >= nvrtc.major()) return {};
  return fmt::format(
      "its kernels need a driver for CUDA {0} or later, this one is for {1}: update the driver, or set GDPA_NVRTC to a "
      "libnvrtc.so.{2}",
      nvrtc.major(), gpu::version_of(gpu::Driver::get()), version / 1000);
}

Component nvrtc() {
  Component component{"NVRTC", "compiles GPU kernels at run time; not needed on the CPU", false, "", "", ""};
  try {
    const auto found = jit::Nvrtc::open();
    component.found = true;
    component.version = found.version();
    component.location = found.path();
    component.advice = advice_on_versions(found);
  } catch (const Error& error) {
    component.advice = fmt::format("fine without an NVIDIA GPU; otherwise: {}", error.what());
  }
  return component;
}

}  // namespace

System inspect_system() {
  const std::vector<GpuDevice> gpus = list_gpus();
  return {.version = GDPA_VERSION,
          .compiler = GDPA_COMPILER,
          .location = file_of(&inspect_system),
          .processor = proc_entry("/proc/cpuinfo", "model name"),
          .instruction_sets = instruction_sets(),
          .vector_target = vector_target(),
          .product_target = libxsmm_get_target_arch(),
          .threads = plan::this_processor().threads,
          .memory_bytes = memory_entry("MemTotal"),
          .available_memory_bytes = memory_entry("MemAvailable"),
          .components = {{"libxsmm", "products of tiles, generated for this processor", true, LIBXSMM_VERSION,
                          "built in", ""},
                         {"Highway", "SIMD for the activation and its derivative", true,
                          fmt::format("{}.{}", HWY_MAJOR, HWY_MINOR), file_of(&hwy::SupportedTargets), ""},
                         {"oneTBB", "threads", true, TBB_runtime_version(), file_of(&TBB_runtime_version), ""},
                         cuda_driver(gpus),
                         nvrtc()},
          .gpus = gpus,
          .cache = jit::Cache(jit::CacheSettings::from_environment()).usage()};
}

}  // namespace gdpa
