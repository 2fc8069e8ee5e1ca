// The processor, the libraries and the devices of this machine, and the highest rates of the processor. `gdpa doctor`
// and `gdpa explain` use this header. Computing does not need it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gdpa/export.h"
#include "gdpa/tensor.h"

namespace gdpa {

/// A library that gdpa uses, whether it is installed or not.
struct Component {
  std::string name;
  std::string purpose;  ///< its use in gdpa
  bool found = false;
  std::string version;   ///< empty if the library is missing or has no version
  std::string location;  ///< the file it was loaded from, or "built in"
  std::string advice;    ///< the remedy; empty if nothing is wrong
};

/// A GPU of the CUDA driver.
struct GpuDevice {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  double clock = 0;             ///< the highest clock of the multiprocessors, in Hz
  double bytes_per_second = 0;  ///< of its memory at its highest clock, in one direction at a time
  std::string advice;           ///< the reason why gdpa does not run on it, with a remedy; empty if it does
};

/// The kernel cache on disk.
struct KernelCache {
  std::string folder;
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t limit_bytes = 0;
  std::string advice;  ///< the remedy if the folder cannot be written; otherwise empty
};

struct System {
  std::string version;   ///< of gdpa
  std::string compiler;  ///< that built it
  std::string location;  ///< the file of libgdpa
  std::string processor;
  std::vector<std::string> instruction_sets;  ///< the relevant sets that the operating system allows
  std::string vector_target;                  ///< Highway's name of the SIMD target of the activation
  std::string product_target;                 ///< libxsmm's name of the target of the tile products
  int threads = 1;                            ///< processors that this process may use
  int64_t memory_bytes = 0;
  int64_t available_memory_bytes = 0;
  std::vector<Component> components;
  std::vector<GpuDevice> gpus;
  KernelCache cache;
};

/// Inspects the machine. Opens the CUDA driver and NVRTC if they are installed. Creates no context on any device. A
/// missing library is not an error: its Component has found = false and an advice.
///
///     for (const gdpa::Component& component : gdpa::inspect_system().components)
///       std::printf("%s %s\n", component.name.c_str(), component.found ? component.version.c_str() : "is missing");
GDPA_API System inspect_system();

/// Returns the GPUs of the CUDA driver in the order of the driver. Without a driver, the list is empty.
///
///     for (const gdpa::GpuDevice& gpu : gdpa::list_gpus()) std::puts(gpu.name.c_str());
GDPA_API std::vector<GpuDevice> list_gpus();

/// Returns the FLOP/s of the tensor cores for operands of this type, with all multiprocessors at their highest clock.
/// No kernel can exceed this rate. Large products are slower, because the power limit lowers the clock. The result is 0
/// for an unknown type or GPU. float32 takes three products of tf32, or one with `allow_tf32`.
///
///     const double rate = gdpa::peak_flops(gdpa::list_gpus().at(0), gdpa::DType::bfloat16);
GDPA_API double peak_flops(const GpuDevice& gpu, DType dtype, bool allow_tf32 = false);

/// The two measured rates that limit a computation on this processor.
struct ProcessorRates {
  int threads = 1;
  double product_flops = 0;  ///< FLOP/s of 64 x 64 x 128 products of tiles that stay in cache, all threads together
  double copy_bytes = 0;     ///< bytes/s read and written by copying arrays larger than any cache, all threads together
};

/// Measures for about 0.2 s in processor time, so that other programs have little influence. `dtype` is the type of the
/// operands. The CPU multiplies 16-bit types as float32. `threads` = 0 means one thread for each processor. Throws
/// Error (runtime) if the system forbids code generation at run time.
///
///     const gdpa::ProcessorRates rates = gdpa::measure_processor_rates(gdpa::DType::float32);
///     const double least_seconds = gdpa::flops(attention, gdpa::Direction::forward) / rates.product_flops;
GDPA_API ProcessorRates measure_processor_rates(DType dtype, int threads = 0);

}  // namespace gdpa
