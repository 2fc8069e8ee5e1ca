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
};

/// Looks around. Opens the CUDA driver and NVRTC if they are there; starts no context on any device.
GDPA_API System inspect_system();

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
