// A CUDA driver that computes nothing. It records calls in host memory, so that the path of a call can be tested
// without a GPU. After it is loaded, it is the result of opening libcuda.so.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

struct FakeLaunch {
  unsigned grid = 0;
  unsigned block = 0;
  unsigned shared_bytes = 0;
  void* stream = nullptr;
};

struct FakeDriver {
  int version = 13020;
  int devices = 1;
  int capability = 90;  ///< 10 * major + minor
  bool is_capturing = false;
  bool captures_elsewhere = false;  ///< another thread captures another stream
  int ended_captures = 0;           ///< of other threads, by something that is not allowed during a capture
  bool is_computing = false;  ///< a kernel was launched, and nothing has waited since: its results are not there yet
  bool has_memory = true;
  int load_status = 0;  ///< that loading a kernel answers

  int calls = 0;  ///< of all functions, those that succeeded
  int loads = 0;
  int unloads = 0;
  int unloads_while_computing = 0;  ///< before anything waited for the kernels that were launched
  int fills = 0;
  int64_t allocations = 0;  ///< from a stream's pool, less those given back
  std::vector<FakeLaunch> launches;
};

/// The one of this process. It starts from the environment variables FAKE_CUDA_VERSION, FAKE_CUDA_DEVICES and
/// FAKE_CUDA_CAPABILITY where they are set.
extern "C" FakeDriver& fake_driver();
