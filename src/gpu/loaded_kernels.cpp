// See loaded_kernels.h.
#include "gpu/loaded_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <shared_mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "definition/environment.h"
#include "gdpa/error.h"
#include "gpu/target.h"
#include "jit/cubin.h"
#include "jit/images.h"

namespace gdpa::gpu {
namespace {

/// The key of a kernel in the process. It contains the text of the function, because an address does not identify a
/// function.
struct Key {
  int device;
  Kernel kernel;
  std::string_view function;
  std::string_view mask;

  auto operator<=>(const Key&) const = default;
};

Key key_of(const Kernel& kernel, const Expressions& expressions, int device) {
  const bool has_mask = kernel.reads_mask() && expressions.mask != nullptr;
  return {device, kernel, kernel.reads_function() ? expressions.function.identity() : std::string_view(),
          has_mask ? expressions.mask->identity() : std::string_view()};
}

struct Entry {
  std::string function;  ///< the text of the key's view
  std::string mask;      ///< the same of the mask
  Module module = nullptr;
  std::shared_ptr<const LoadedKernel> kernel;
  std::atomic<std::uint64_t> used = 0;    ///< the value of Registry::uses at the last use
  std::atomic<bool> is_in_graph = false;  ///< whether it was launched during the capture of a CUDA graph
};

struct Registry {
  std::shared_mutex mutex;
  std::map<Key, std::unique_ptr<Entry>> kernels;
  std::atomic<std::uint64_t> uses = 0;

  /// Returns the kernel of a key for a call, or null. The caller must hold the mutex.
  std::shared_ptr<const LoadedKernel> use(const Key& key, bool is_captured) {
    const auto found = kernels.find(key);
    if (found == kernels.end()) return nullptr;
    Entry& entry = *found->second;
    entry.used.store(uses.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
    if (is_captured) entry.is_in_graph.store(true, std::memory_order_relaxed);
    return entry.kernel;
  }
};

Registry& registry() {
  static Registry kernels;
  return kernels;
}

/// Waits for the calls that this process has launched. A wait for the device would also be a wait for the streams that
/// other threads capture, which the driver refuses, and which ends their capture. Each stream of a call has an event
/// instead, at the end of the stream's latest call.
class LaunchedCalls {
 public:
  /// The event of a stream.
  Event event_of(int device, Stream stream) {
    const std::lock_guard lock(mutex_);
    Event& event = events_[{device, stream}];
    if (event == nullptr) check(Driver::get().event_create(&event, without_time), "creating an event");
    return event;
  }

  /// Records the event of a stream after the launches of a call.
  void end(Event event, Stream stream) {
    // This handle is another stream in each thread, for which one event does not suffice.
    const bool is_of_thread = stream == reinterpret_cast<Stream>(per_thread_stream);
    if (is_of_thread || Driver::get().event_record(event, stream) != success) have_ends_ = false;
  }

  /// Returns whether all calls on the device are known to have ended.
  bool wait(int device) {
    std::vector<Event> events;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [place, event] : events_) {
        if (place.first == device) events.push_back(event);
      }
    }
    const auto wait_for = [](Event event) { return Driver::get().event_synchronize(event) == success; };
    return have_ends_ && std::ranges::all_of(events, wait_for);
  }

 private:
  static constexpr std::uintptr_t per_thread_stream = 2;  // CU_STREAM_PER_THREAD
  static constexpr unsigned without_time = 2;             // CU_EVENT_DISABLE_TIMING

  std::mutex mutex_;
  std::map<std::pair<int, Stream>, Event> events_;
  std::atomic<bool> have_ends_ = true;  ///< false: a call has no event, so that nothing is known to have ended
};

LaunchedCalls& launched_calls() {
  static LaunchedCalls calls;
  return calls;
}

void warn_once(const std::string& warning) {
  static std::once_flag once;
  if (!warning.empty()) std::call_once(once, [&] { fmt::print(stderr, "gdpa: {}\n", warning); });
}

int constant_of(const jit::Cubin& cubin, const char* name, const std::string& compiler) {
  if (const std::optional<int> value = cubin.constant(name)) return *value;
  throw Error(ErrorKind::runtime, fmt::format("expected a cubin with the constant {}, got a cubin without it; gdpa "
                                              "does not support its compiler, NVRTC {}; set GDPA_NVRTC to another",
                                              name, compiler));
}

CompiledKernel compile_one(const Kernel& wanted, const Expressions& expressions, const std::string& architecture) {
  static const jit::Images images(jit::CacheSettings::from_environment());
  const auto start = std::chrono::steady_clock::now();
  CompiledKernel compiled;
  compiled.source = wanted.source(expressions);
  jit::Cache::Result result = images.find_or_compile({compiled.source, expressions.function.text()}, architecture);
  warn_once(result.warning);
  compiled.image = std::move(result.image);
  compiled.compiler = std::move(result.version);
  compiled.was_cached = result.was_cached;
  const jit::Cubin cubin(compiled.image);
  GpuKernel& kernel = compiled.kernel;
  kernel.name = wanted.description();
  kernel.architecture = architecture;
  kernel.threads = constant_of(cubin, SourceNames::threads, compiled.compiler);
  kernel.shared_bytes = constant_of(cubin, SourceNames::shared_bytes, compiled.compiler) + cubin.static_shared_bytes();
  kernel.registers = cubin.registers().value_or(0);
  kernel.local_bytes = cubin.local_bytes().value_or(0);
  compiled.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return compiled;
}

/// Checks the loading of an image. The driver reports only a number, so the message adds the versions of NVRTC and of
/// the driver.
void check_loaded(Status status, const std::string& compiler) {
  if (status == success) return;
  check(status, fmt::format("loading a kernel of NVRTC {} with a driver for CUDA {} (the major version of NVRTC "
                            "must not be larger; see gdpa doctor)",
                            compiler, version_of(Driver::get()))
                    .c_str());
}

/// Loads a kernel and its module into `entry`.
void load(const CompiledKernel& compiled, Entry& entry) {
  const Driver& driver = Driver::get();
  const jit::Cubin cubin(compiled.image);
  LoadedKernel kernel;
  kernel.threads = static_cast<unsigned>(constant_of(cubin, SourceNames::threads, compiled.compiler));
  kernel.shared_bytes = static_cast<unsigned>(constant_of(cubin, SourceNames::shared_bytes, compiled.compiler));
  const RelaxedCapture relaxed;
  check_loaded(driver.module_load(&entry.module, compiled.image.data()), compiled.compiler);
  check(driver.module_kernel(&kernel.handle, entry.module, SourceNames::kernel), "loading a kernel");
  check(driver.kernel_set_attribute(kernel.handle, KernelAttribute::max_dynamic_shared_bytes,
                                    static_cast<int>(kernel.shared_bytes)),
        "giving a kernel its shared memory");
  entry.kernel = std::make_shared<const LoadedKernel>(kernel);
}

/// Unloads the least recently used kernels until one eighth of the limit is free. It does not unload kernels of a
/// running call or of a CUDA graph. It first waits for the calls on the device, because their kernels may still run.
/// The caller must hold the mutex of the registry exclusively.
void unload_oldest(Registry& known) {
  const std::size_t most = most_loaded_kernels();
  if (known.kernels.size() <= most) return;
  using Position = decltype(known.kernels)::iterator;
  std::vector<Position> candidates;
  for (Position position = known.kernels.begin(); position != known.kernels.end(); ++position) {
    const Entry& entry = *position->second;
    if (entry.kernel.use_count() == 1 && !entry.is_in_graph) candidates.push_back(position);
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Position& a, const Position& b) { return a->second->used < b->second->used; });
  const std::size_t surplus = known.kernels.size() - (most - most / 8);
  if (candidates.size() > surplus) candidates.resize(surplus);
  const Driver& driver = Driver::get();
  const RelaxedCapture relaxed;
  for (const Position& position : candidates) {
    const CurrentDevice current(position->first.device);
    // The next call reports the error of an earlier kernel. The kernel then stays loaded.
    const bool have_ended = launched_calls().wait(position->first.device);
    if (!have_ended || driver.module_unload(position->second->module) != success) return;
    known.kernels.erase(position);
  }
}

bool is_capturing(Stream stream) {
  int capture = 0;
  check(Driver::get().stream_is_capturing(stream, &capture), "querying the capture of a graph");
  return capture != 0;
}

[[noreturn]] void refuse_during_capture(const Kernel& kernel) {
  throw Error(
      ErrorKind::runtime,
      fmt::format("CUDA graph: expected every kernel to be loaded before the capture, but \"{}\" is not loaded; "
                  "run the same call once before capturing, or gdpa::compile (gdpa.warmup in Python)",
                  kernel.description()));
}

}  // namespace

std::vector<CompiledKernel> compile_kernels(const std::vector<Kernel>& kernels, const Expressions& expressions,
                                            const std::string& architecture) {
  // This thread compiles the first kernel, and other threads compile the other kernels. Equal kernels are compiled
  // once.
  std::vector<std::shared_future<CompiledKernel>> pending;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const auto first = static_cast<std::size_t>(std::ranges::find(kernels, kernels[i]) - kernels.begin());
    const auto compile = [&, i] { return compile_one(kernels[i], expressions, architecture); };
    const auto policy = i == 0 ? std::launch::deferred : std::launch::async;
    pending.push_back(first < i ? pending[first] : std::async(policy, compile).share());
  }
  std::vector<CompiledKernel> compiled;
  for (const auto& one : pending) compiled.push_back(one.get());
  return compiled;
}

std::vector<CompiledKernel> compile_ahead(const std::vector<Kernel>& kernels, const Expressions& expressions,
                                          const std::string& architecture,
                                          const std::function<void(int64_t, int64_t)>& progress) {
  static std::counting_semaphore<> processors(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const auto total = static_cast<int64_t>(kernels.size());
  std::mutex mutex;
  int64_t done = 0;
  bool is_stopped = false;  // by an error of a compilation or of `progress`
  const auto report = [&](int64_t more) {
    const std::lock_guard lock(mutex);
    done += more;
    if (progress) progress(done, total);
  };
  report(0);
  const auto compile_when_free = [&](const Kernel& kernel) {
    processors.acquire();
    const std::unique_ptr<std::counting_semaphore<>, void (*)(std::counting_semaphore<>*)> slot(
        &processors, [](std::counting_semaphore<>* taken) { taken->release(); });
    {
      const std::lock_guard lock(mutex);
      if (is_stopped) return CompiledKernel();
    }
    try {
      CompiledKernel compiled = compile_one(kernel, expressions, architecture);
      report(1);
      return compiled;
    } catch (...) {
      const std::lock_guard lock(mutex);
      is_stopped = true;
      throw;
    }
  };
  std::vector<std::future<CompiledKernel>> pending;
  for (const Kernel& kernel : kernels) {
    pending.push_back(std::async(std::launch::async, compile_when_free, kernel));
  }
  for (const auto& one : pending) one.wait();
  std::vector<CompiledKernel> compiled;
  for (auto& one : pending) compiled.push_back(one.get());
  return compiled;
}

std::size_t most_loaded_kernels() {
  static const auto most = static_cast<std::size_t>(positive_number("GDPA_LOADED_KERNELS", 512));
  return most;
}

LoadedKernels load_kernels(const std::vector<Kernel>& kernels, const std::vector<CompiledKernel>& compiled,
                           const Expressions& expressions, int device) {
  Registry& known = registry();
  LoadedKernels loaded;
  const std::unique_lock lock(known.mutex);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    Key key = key_of(kernels[i], expressions, device);
    if (!known.kernels.contains(
            key)) {  // otherwise the kernel occurs twice in one call, or another thread has loaded it
      auto entry = std::make_unique<Entry>();
      entry->function = key.function;
      entry->mask = key.mask;
      load(compiled[i], *entry);
      key.function = entry->function;
      key.mask = entry->mask;
      known.kernels.emplace(key, std::move(entry));
    }
    loaded.push_back(known.use(key, false));
  }
  unload_oldest(known);
  return loaded;
}

KernelsOfCall::KernelsOfCall(LoadedKernels kernels, int device, Stream stream, bool is_captured)
    : kernels_(std::move(kernels)),
      stream_(stream),
      end_(is_captured ? nullptr : launched_calls().event_of(device, stream)) {}

KernelsOfCall::~KernelsOfCall() {
  if (end_ != nullptr) launched_calls().end(end_, stream_);
}

KernelsOfCall find_kernels(const std::vector<Launch>& launches, const Expressions& expressions, int device,
                           Stream stream) {
  Registry& known = registry();
  const bool is_captured = is_capturing(stream);
  LoadedKernels found(launches.size());
  std::vector<std::size_t> missing;
  {
    const std::shared_lock lock(known.mutex);
    for (std::size_t i = 0; i < launches.size(); ++i) {
      if (launches[i].clears()) continue;
      found[i] = known.use(key_of(launches[i].kernel(), expressions, device), is_captured);
      if (found[i] == nullptr) missing.push_back(i);
    }
  }
  if (missing.empty()) return {std::move(found), device, stream, is_captured};
  if (is_captured) refuse_during_capture(launches[missing.front()].kernel());
  std::vector<Kernel> wanted;
  for (const std::size_t i : missing) wanted.push_back(launches[i].kernel());
  const LoadedKernels loaded =
      load_kernels(wanted, compile_kernels(wanted, expressions, target_of(device).architecture), expressions, device);
  for (std::size_t i = 0; i < missing.size(); ++i) found[missing[i]] = loaded[i];
  return {std::move(found), device, stream, is_captured};
}

}  // namespace gdpa::gpu
