// What gdpa found on this machine: processor, libraries, devices, and how fast the processor can be at best. Read by
// `gdpa doctor` and `gdpa explain`; nothing here is needed to compute.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gdpa/export.h"
#include "gdpa/tensor.h"

namespace gdpa {

/// One library that gdpa uses, or would use if it were there.
struct Component {
  std::string name;
  std::string purpose;  ///< what gdpa uses it for
  bool found = false;
  std::string version;   ///< empty where it is not found or does not say
  std::string location;  ///< the file it was loaded from, or "built in"
  std::string advice;    ///< what to do about it; empty where nothing is wrong
};

/// One GPU that the CUDA driver shows.
struct GpuDevice {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  double clock = 0;             ///< Hz, the highest that the multiprocessors run at
  double bytes_per_second = 0;  ///< of its memory at its highest clock, in one direction at a time
  std::string advice;           ///< why gdpa does not run on it, and what to do; empty where it does
};

/// The kernel cache on disk.
struct KernelCache {
  std::string folder;
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t limit_bytes = 0;
  std::string advice;  ///< what to do where it cannot be written; empty where it can
};

struct System {
  std::string version;   ///< of gdpa
  std::string compiler;  ///< that built it
  std::string location;  ///< the file of libgdpa
  std::string processor;
  std::vector<std::string> instruction_sets;  ///< those that matter here and that the operating system allows
  std::string vector_target;                  ///< what the activation's SIMD code runs on, in Highway's words
  std::string product_target;                 ///< what the tile products are generated for, in libxsmm's words
  int threads = 1;                            ///< processors that this process may use
  int64_t memory_bytes = 0;
  int64_t available_memory_bytes = 0;
  std::vector<Component> components;
  std::vector<GpuDevice> gpus;
  KernelCache cache;
};

/// Looks around. Opens the CUDA driver and NVRTC if they are there; starts no context on any device.
GDPA_API System inspect_system();

/// The GPUs alone: none where there is no driver.
GDPA_API std::vector<GpuDevice> list_gpus();

/// FLOP/s of the tensor cores with operands of this type, every multiprocessor at its highest clock: what no kernel can
/// exceed. Large products hold less, since the clock falls under their power. 0 for a type or a GPU that is unknown.
/// float32 takes three products of tf32, one where `allow_tf32`.
GDPA_API double peak_flops(const GpuDevice& gpu, DType dtype, bool allow_tf32 = false);

/// The two rates that bound a computation on this processor, as measured when asked.
struct ProcessorRates {
  int threads = 1;
  double product_flops = 0;  ///< FLOP/s of 64 x 64 x 128 products of tiles that stay in cache, all threads together
  double copy_bytes = 0;     ///< bytes/s read and written by copying arrays larger than any cache, all threads together
};

/// Measures for about 0.2 s, in processor time, so that other programs hardly disturb the rates. `dtype` is that of the
/// operands; on the CPU 16-bit types multiply as float32. `threads` = 0 is one for each processor.
GDPA_API ProcessorRates measure_processor_rates(DType dtype, int threads = 0);

}  // namespace gdpa
