// Finding, compiling and loading kernels; see kernels.h.
#include "cuda/kernels.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "cuda/source.h"
#include "gdpa/error.h"
#include "gdpa/version.h"
#include "jit/cache.h"
#include "jit/headers.h"
#include "jit/nvrtc.h"

namespace gdpa::cuda {
namespace {

/// What a kernel is known by within the process. The text of the function identifies it, its address would not.
struct Key {
  plan::KernelSpec spec;
  std::string_view function;
  Accuracy accuracy;
  int device;

  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    const plan::KernelSpec& spec = key.spec;
    std::size_t hash = std::hash<std::string_view>()(key.function);
    for (const int part :
         {static_cast<int>(spec.family), static_cast<int>(spec.kind), static_cast<int>(spec.element), spec.head_dim,
          spec.head_dim_v, spec.tile_queries, spec.tile_keys, spec.warps, spec.column_warps, spec.stages, spec.ctas,
          int{spec.aligned}, int{spec.reduce_grad_query}, int{spec.keys_shared}, int{spec.queries_shared},
          static_cast<int>(key.accuracy), key.device}) {
      hash = (hash ^ static_cast<std::size_t>(part)) * 0x9e3779b97f4a7c15U;
    }
    return hash ^ (hash >> 31);
  }
};

struct Entry {
  std::string function;  ///< what the key's view looks at
  LoadedKernel kernel;
};

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<Key, std::unique_ptr<Entry>, KeyHash> kernels;
};

Registry& registry() {
  static Registry kernels;
  return kernels;
}

const jit::Nvrtc& nvrtc() {
  static const jit::Nvrtc compiler = jit::Nvrtc::open();
  return compiler;
}

/// Everything that an image depends on: versions, architecture, the source and the headers that it includes.
std::string cache_key(const std::string& source, const std::string& architecture) {
  std::string key =
      fmt::format("gdpa {} NVRTC {}.{} {}\n{}", GDPA_VERSION, nvrtc().major(), nvrtc().minor(), architecture, source);
  for (const jit::Header& header : jit::embedded_headers()) key += "\n// " + header.name + "\n" + header.text;
  return key;
}

void warn_once(const std::string& warning) {
  static std::once_flag once;
  if (!warning.empty()) std::call_once(once, [&] { fmt::print(stderr, "gdpa: {}\n", warning); });
}

int read_constant(Module module, const char* name) {
  DevicePointer address = 0;
  std::size_t bytes = 0;
  int value = 0;
  check(Driver::get().module_global(&address, &bytes, module, name), "reading a kernel's launch size");
  check(Driver::get().copy_to_host(&value, address, sizeof value), "reading a kernel's launch size");
  return value;
}

LoadedKernel load(const std::string& image) {
  const Driver& driver = Driver::get();
  LoadedKernel kernel;
  Module module = nullptr;
  check(driver.module_load(&module, image.data()), "loading a kernel");
  check(driver.module_kernel(&kernel.handle, module, SourceNames::kernel), "loading a kernel");
  kernel.threads = static_cast<unsigned>(read_constant(module, SourceNames::threads));
  kernel.shared_bytes = static_cast<unsigned>(read_constant(module, SourceNames::shared_bytes));
  check(driver.kernel_set_attribute(kernel.handle, KernelAttribute::max_dynamic_shared_bytes,
                                    static_cast<int>(kernel.shared_bytes)),
        "giving a kernel its shared memory");
  check(driver.kernel_attribute(&kernel.registers, KernelAttribute::registers_per_thread, kernel.handle),
        "asking for a kernel's registers");
  check(driver.kernel_attribute(&kernel.local_bytes, KernelAttribute::local_bytes_per_thread, kernel.handle),
        "asking for a kernel's spills");
  return kernel;
}

void refuse_during_capture(Stream stream, const plan::KernelSpec& spec) {
  int capture = 0;
  check(Driver::get().stream_is_capturing(stream, &capture), "asking whether a graph is being captured");
  if (capture == 0) return;
  throw Error(
      ErrorKind::runtime,
      fmt::format("CUDA graph: expected every kernel to be loaded before the capture begins, but \"{}\" is not; "
                  "run the same call once before capturing",
                  describe(spec)));
}

}  // namespace

std::string architecture_of(int capability) {
  // Hopper's and Blackwell's own instructions need the 'a'; older architectures have none.
  return fmt::format("sm_{}{}", capability, capability >= 90 ? "a" : "");
}

std::string kernel_image(const plan::KernelSpec& spec, const activation::Function& function, Accuracy accuracy,
                         const std::string& architecture) {
  static const jit::Cache cache(jit::CacheSettings::from_environment());
  const std::string source = kernel_source(spec, function, accuracy);
  jit::Cache::Result result = cache.find_or_build(cache_key(source, architecture), [&] {
    const jit::Compiled compiled = nvrtc().compile({source, function.text()}, architecture);
    return std::string(compiled.cubin.begin(), compiled.cubin.end());
  });
  warn_once(result.warning);
  return std::move(result.image);
}

const LoadedKernel& find_kernel(const plan::KernelSpec& spec, const activation::Function& function, Accuracy accuracy,
                                int device, Stream stream) {
  Registry& known = registry();
  Key key{spec, spec.kind == plan::KernelKind::reduce ? std::string_view() : function.text(), accuracy, device};
  {
    const std::shared_lock lock(known.mutex);
    if (const auto found = known.kernels.find(key); found != known.kernels.end()) return found->second->kernel;
  }
  refuse_during_capture(stream, spec);
  const std::string image =
      kernel_image(spec, function, accuracy, architecture_of(device_properties(device).capability));
  const std::unique_lock lock(known.mutex);
  if (const auto found = known.kernels.find(key); found != known.kernels.end()) return found->second->kernel;
  auto entry = std::make_unique<Entry>(Entry{std::string(key.function), load(image)});
  key.function = entry->function;
  return known.kernels.emplace(key, std::move(entry)).first->second->kernel;
}

const plan::Gpu& device_properties(int device) {
  static std::mutex mutex;
  static std::unordered_map<int, plan::Gpu> devices;
  const std::lock_guard lock(mutex);
  const auto [position, is_new] = devices.try_emplace(device);
  if (is_new) {
    const auto ask = [&](DeviceAttribute attribute) {
      int value = 0;
      check(Driver::get().device_attribute(&value, attribute, device), "asking for a GPU's properties");
      return value;
    };
    position->second.multiprocessors = ask(DeviceAttribute::multiprocessors);
    position->second.capability =
        10 * ask(DeviceAttribute::compute_capability_major) + ask(DeviceAttribute::compute_capability_minor);
  }
  return position->second;
}

}  // namespace gdpa::cuda
