// How fast this processor multiplies tiles and copies memory: the measured floor of `gdpa explain` and `gdpa bench`.
#include <libxsmm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
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

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Runs `work` on every thread at once for one round; `work` returns the amount it has done by the given time. The
/// best of a few rounds, as amount per second: whatever else runs on the machine only slows a round down.
double best_rate(int threads, const std::function<double(Clock::time_point stop)>& work) {
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> amounts(static_cast<std::size_t>(threads));
    std::vector<std::thread> crew;
    const auto start = Clock::now();
    const auto stop =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_per_round));
    for (double& amount : amounts) crew.emplace_back([&amount, &work, stop] { amount = work(stop); });
    for (std::thread& thread : crew) thread.join();
    const double seconds = seconds_since(start);
    double total = 0;
    for (double amount : amounts) total += amount;
    best = std::max(best, total / seconds);
  }
  return best;
}

libxsmm_smmfunction dispatch(const float* alpha, const float* beta) {
  return libxsmm_smmdispatch(tile_rows, tile_columns, tile_depth, nullptr, nullptr, nullptr, alpha, beta, nullptr,
                             nullptr);
}

libxsmm_dmmfunction dispatch(const double* alpha, const double* beta) {
  return libxsmm_dmmdispatch(tile_rows, tile_columns, tile_depth, nullptr, nullptr, nullptr, alpha, beta, nullptr,
                             nullptr);
}

template <class Number>
double product_rate(int threads) {
  const Number one = 1;
  const Number zero = 0;
  const auto product = dispatch(&one, &zero);
  if (product == nullptr) throw Error(ErrorKind::runtime, "libxsmm makes no product for this processor");
  return best_rate(threads, [product](Clock::time_point stop) {
    const std::vector<Number> a(tile_rows * tile_depth, Number{1});
    const std::vector<Number> b(tile_depth * tile_columns, Number{1});
    std::vector<Number> c(tile_rows * tile_columns);
    double flops = 0;
    while (Clock::now() < stop) {
      for (int i = 0; i < products_between_looks_at_the_clock; ++i) product(a.data(), b.data(), c.data());
      flops += 2.0 * tile_rows * tile_columns * tile_depth * products_between_looks_at_the_clock;
    }
    return flops;
  });
}

/// The arrays are made, and their pages touched, before any round begins.
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
  rates.product_flops =
      dtype == DType::float64 ? product_rate<double>(rates.threads) : product_rate<float>(rates.threads);
  rates.copy_bytes = copy_rate(rates.threads);
  return rates;
}

}  // namespace gdpa
