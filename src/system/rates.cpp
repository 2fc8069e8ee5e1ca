// The measured rates of tile products and memory copies on this processor, for the floor of `gdpa explain` and
// `gdpa bench`.
#include <libxsmm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "gdpa/error.h"
#include "gdpa/system.h"
#include "plan/cpu_plan.h"

namespace gdpa {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int tile_rows = 64;
constexpr int tile_columns = 64;
constexpr int tile_depth = 128;
constexpr int products_between_looks_at_the_clock = 64;
constexpr std::size_t copied_bytes_per_thread = std::size_t{48} << 20;
constexpr double seconds_per_round = 0.03;
constexpr int rounds = 3;

/// Returns the processor time of the calling thread in seconds. Other programs have little influence on it.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Runs `work` on all threads at the same time. `work` returns its amount of work until the given time. Returns the
/// amount per second of processor time over all threads, in the best of a few rounds.
double best_rate(int threads, const std::function<double(Clock::time_point stop)>& work) {
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> rates(static_cast<std::size_t>(threads));
    std::vector<std::thread> crew;
    const auto length = std::chrono::duration<double>(seconds_per_round);
    const auto stop = Clock::now() + std::chrono::duration_cast<Clock::duration>(length);
    for (double& rate : rates) {
      crew.emplace_back([&rate, &work, stop] {
        const double start = thread_seconds();
        const double amount = work(stop);
        rate = amount / (thread_seconds() - start);
      });
    }
    for (std::thread& thread : crew) thread.join();
    best = std::max(best, std::accumulate(rates.begin(), rates.end(), 0.0));
  }
  return best;
}

/// `dispatch` is the function of libxsmm that generates products of this type of numbers.
template <class Number, class Dispatch>
double product_rate(int threads, Dispatch dispatch) {
  const Number one = 1;
  const Number zero = 0;
  const auto product =
      dispatch(tile_rows, tile_columns, tile_depth, nullptr, nullptr, nullptr, &one, &zero, nullptr, nullptr);
  if (product == nullptr) throw Error(ErrorKind::runtime, "libxsmm cannot generate products for this processor");
  return best_rate(threads, [product](Clock::time_point stop) {
    const std::vector<Number> a(tile_rows * tile_depth, Number{1});
    const std::vector<Number> b(tile_depth * tile_columns, Number{1});
    std::vector<Number> c(tile_rows * tile_columns);
    double flops = 0;
    do {
      for (int i = 0; i < products_between_looks_at_the_clock; ++i) product(a.data(), b.data(), c.data());
      flops += 2.0 * tile_rows * tile_columns * tile_depth * products_between_looks_at_the_clock;
    } while (Clock::now() < stop);
    return flops;
  });
}

/// The arrays are allocated and their pages are touched before the first round.
double copy_rate(int threads) {
  struct Arrays {
    std::vector<char> from = std::vector<char>(copied_bytes_per_thread, 1);
    std::vector<char> to = std::vector<char>(copied_bytes_per_thread, 2);
  };
  std::vector<Arrays> arrays(static_cast<std::size_t>(threads));
  std::atomic<std::size_t> next = 0;
  return best_rate(threads, [&arrays, &next](Clock::time_point stop) {
    Arrays& mine = arrays[next++ % arrays.size()];
    double bytes = 0;
    do {
      std::memcpy(mine.to.data(), mine.from.data(), copied_bytes_per_thread);
      bytes += 2.0 * static_cast<double>(copied_bytes_per_thread);
    } while (Clock::now() < stop);
    return bytes;
  });
}

}  // namespace

ProcessorRates measure_processor_rates(DType dtype, int threads) {
  ProcessorRates rates;
  rates.threads = threads > 0 ? threads : plan::this_processor().threads;
  rates.product_flops = dtype == DType::float64 ? product_rate<double>(rates.threads, libxsmm_dmmdispatch)
                                                : product_rate<float>(rates.threads, libxsmm_smmdispatch);
  rates.copy_bytes = copy_rate(rates.threads);
  return rates;
}

}  // namespace gdpa
