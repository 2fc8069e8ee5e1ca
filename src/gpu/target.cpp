// See target.h.
#include "gpu/target.h"

#include <fmt/format.h>

#include <array>
#include <mutex>
#include <unordered_map>

#include "definition/environment.h"
#include "gdpa/error.h"
#include "gpu/driver.h"

namespace gdpa::gpu {
namespace {

struct KnownGpu {
  int capability;
  int multiprocessors;
  int shared_kilobytes;  ///< the largest amount for one CTA
};

/// A GPU of each architecture. Kernels do not depend on the number of multiprocessors, but grids and workspaces do.
constexpr std::array known_gpus = {
    KnownGpu{80, 108, 163},   // A100
    KnownGpu{86, 84, 99},     // A40
    KnownGpu{87, 16, 163},    // Orin
    KnownGpu{89, 142, 99},    // L40S
    KnownGpu{90, 132, 227},   // H100, H200
    KnownGpu{100, 148, 227},  // B200
    KnownGpu{103, 160, 227},  // B300
    KnownGpu{120, 170, 99},   // RTX 5090
    KnownGpu{121, 48, 99},    // GB10
};

Target target_from(const Gpu& gpu) { return {gpu, architecture_of(gpu.capability)}; }

/// Returns GDPA_SHARED_KILOBYTES, a limit of the shared memory of a CTA. With this limit, a large GPU runs the kernels
/// of smaller GPUs in tests.
int limited_shared_bytes(int of_device) {
  const int64_t kilobytes = positive_number("GDPA_SHARED_KILOBYTES", of_device / 1024 + 1);
  return kilobytes > of_device / 1024 ? of_device : static_cast<int>(kilobytes) * 1024;
}

}  // namespace

std::string architecture_of(int capability) {
  // Instructions that are specific to Hopper and Blackwell need the 'a'. Older architectures have no such suffix.
  return fmt::format("sm_{}{}", capability, capability >= 90 ? "a" : "");
}

std::string why_unsupported(int capability) {
  if (capability >= least_capability) return {};
  return fmt::format("expected compute capability {}.{} or later (Ampere), got {}.{}; use a newer GPU, or the CPU",
                     least_capability / 10, least_capability % 10, capability / 10, capability % 10);
}

const Target& target_of(int device) {
  static std::mutex mutex;
  static std::unordered_map<int, Target> targets;
  const std::lock_guard lock(mutex);
  if (const auto known = targets.find(device); known != targets.end()) return known->second;
  const auto ask = [device](DeviceAttribute attribute) {
    int value = 0;
    check(Driver::get().device_attribute(&value, attribute, device), "querying the properties of a GPU");
    return value;
  };
  Gpu gpu;
  gpu.multiprocessors = ask(DeviceAttribute::multiprocessors);
  gpu.capability = 10 * ask(DeviceAttribute::compute_capability_major) + ask(DeviceAttribute::compute_capability_minor);
  gpu.shared_bytes = limited_shared_bytes(ask(DeviceAttribute::shared_memory_per_block_optin));
  if (const std::string problem = why_unsupported(gpu.capability); !problem.empty()) {
    throw Error(ErrorKind::runtime, fmt::format("cuda:{}: {}", device, problem));
  }
  return targets.emplace(device, target_from(gpu)).first->second;
}

Target target_of(const std::string& architecture) {
  std::string names;
  for (const KnownGpu& known : known_gpus) {
    const std::string name = architecture_of(known.capability);
    if (architecture == name || architecture == fmt::format("sm_{}", known.capability)) {
      Gpu gpu;
      gpu.multiprocessors = known.multiprocessors;
      gpu.capability = known.capability;
      gpu.shared_bytes = known.shared_kilobytes * 1024;
      return target_from(gpu);
    }
    names += (names.empty() ? "" : ", ") + name;
  }
  throw Error(ErrorKind::value,
              fmt::format("architecture: expected one of {}, got \"{}\"; correct the name", names, architecture));
}

}  // namespace gdpa::gpu
