// Looks at the machine for inspect_system: processor, memory, the libraries that are linked in, the CUDA driver, and
// NVRTC as src/jit finds it.
#include <dlfcn.h>
#include <fmt/format.h>
#include <libxsmm.h>
#include <tbb/version.h>

#include <hwy/highway.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gdpa/error.h"
#include "gdpa/system.h"
#include "gdpa/version.h"
#include "jit/nvrtc.h"
#include "plan/cpu_plan.h"

namespace gdpa {
namespace {

/// The file that the code or data at `address` was loaded from.
std::string file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

/// The text after the colon on the first line of `path` that starts with `key`; /proc/cpuinfo and /proc/meminfo.
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

/// The compiler's own test asks the operating system too, so that AMX or AVX-512 that it withholds do not count.
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

/// Highway takes the best target that was both compiled in and found; a lower bit is a better target.
std::string vector_target() {
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);
}

Component highway() {
  return {"Highway",
          "SIMD for the activation and its derivative",
          true,
          fmt::format("{}.{}", HWY_MAJOR, HWY_MINOR),
          file_of(reinterpret_cast<const void*>(&hwy::SupportedTargets)),
          ""};
}

Component libxsmm() {
  return {"libxsmm", "products of tiles, generated for this processor", true, LIBXSMM_VERSION, "built in", ""};
}

Component threading() {
  return {
      "oneTBB", "threads", true, TBB_runtime_version(), file_of(reinterpret_cast<const void*>(&TBB_runtime_version)),
      ""};
}

/// A shared library opened for as long as the object lives.
class OpenLibrary {
 public:
  explicit OpenLibrary(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~OpenLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  OpenLibrary(const OpenLibrary&) = delete;
  OpenLibrary& operator=(const OpenLibrary&) = delete;

  explicit operator bool() const { return handle_ != nullptr; }

  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }

 private:
  void* handle_;
};

/// The few entries of the CUDA driver that are read here, declared by hand: no CUDA header is needed to build.
struct Driver {
  explicit Driver(const OpenLibrary& library)
      : initialise(library.find<int(unsigned)>("cuInit")),
        version(library.find<int(int*)>("cuDriverGetVersion")),
        count(library.find<int(int*)>("cuDeviceGetCount")),
        device(library.find<int(int*, int)>("cuDeviceGet")),
        name(library.find<int(char*, int, int)>("cuDeviceGetName")),
        attribute(library.find<int(int*, int, int)>("cuDeviceGetAttribute")),
        memory(library.find<int(std::size_t*, int)>("cuDeviceTotalMem_v2")) {}

  bool complete() const {
    return initialise != nullptr && version != nullptr && count != nullptr && device != nullptr && name != nullptr &&
           attribute != nullptr && memory != nullptr;
  }

  int (*initialise)(unsigned);
  int (*version)(int*);
  int (*count)(int*);
  int (*device)(int*, int);
  int (*name)(char*, int, int);
  int (*attribute)(int*, int, int);
  int (*memory)(std::size_t*, int);
};

constexpr int compute_capability_major = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int compute_capability_minor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR

GpuDevice describe_gpu(const Driver& driver, int index) {
  GpuDevice gpu;
  int device = 0;
  if (driver.device(&device, index) != 0) return gpu;
  char name[256] = {};
  driver.name(name, sizeof name, device);
  std::size_t memory = 0;
  driver.memory(&memory, device);
  driver.attribute(&gpu.compute_major, compute_capability_major, device);
  driver.attribute(&gpu.compute_minor, compute_capability_minor, device);
  gpu.name = name;
  gpu.memory_bytes = static_cast<int64_t>(memory);
  return gpu;
}

Component cuda_driver(std::vector<GpuDevice>& gpus) {
  Component component{"CUDA driver", "GPUs; not needed on the CPU", false, "", "", ""};
  const OpenLibrary library("libcuda.so.1");
  if (!library) {
    component.advice = "no libcuda.so.1: fine without an NVIDIA GPU; with one, install NVIDIA's driver";
    return component;
  }
  const Driver driver(library);
  if (!driver.complete()) {
    component.advice = "libcuda.so.1 lacks functions that CUDA 12 has: update NVIDIA's driver";
    return component;
  }
  component.found = true;
  component.location = file_of(reinterpret_cast<const void*>(driver.initialise));
  int version = 0;
  if (driver.version(&version) == 0) component.version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  int count = 0;
  const int status = driver.initialise(0);
  if (status != 0 || driver.count(&count) != 0 || count == 0) {
    component.advice = fmt::format(
        "the driver is there and shows no device (cuInit says {}): see nvidia-smi and CUDA_VISIBLE_DEVICES", status);
    return component;
  }
  for (int i = 0; i < count; ++i) gpus.push_back(describe_gpu(driver, i));
  return component;
}

/// The folder of Python packages that this library was installed into, if it was: <folder>/gdpa/lib/libgdpa.so.
std::string site_packages_of(const std::string& library) {
  return std::filesystem::path(library).parent_path().parent_path().parent_path().string();
}

Component nvrtc(const std::string& library) {
  Component component{"NVRTC", "compiles GPU kernels at run time; not needed on the CPU", false, "", "", ""};
  try {
    const auto found = jit::Nvrtc::open({site_packages_of(library)});
    component.found = true;
    component.version = fmt::format("{}.{}", found.major(), found.minor());
    component.location = found.path();
  } catch (const Error& error) {
    component.advice = fmt::format("fine without an NVIDIA GPU; otherwise: {}", error.what());
  }
  return component;
}

}  // namespace

System inspect_system() {
  System system;
  system.version = GDPA_VERSION;
  system.compiler = GDPA_COMPILER;
  system.location = file_of(reinterpret_cast<const void*>(&inspect_system));
  system.processor = proc_entry("/proc/cpuinfo", "model name");
  system.instruction_sets = instruction_sets();
  system.vector_target = vector_target();
  system.product_target = libxsmm_get_target_arch();
  system.threads = plan::this_processor().threads;
  system.memory_bytes = memory_entry("MemTotal");
  system.available_memory_bytes = memory_entry("MemAvailable");
  system.components = {libxsmm(), highway(), threading()};
  system.components.push_back(cuda_driver(system.gpus));
  system.components.push_back(nvrtc(system.location));
  return system;
}

}  // namespace gdpa
