// See find_overlap.h.
#include "gpu/kernels/find_overlap.h"

#include "definition/divide.h"
#include "gpu/kernels/no_config.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {
namespace {

struct FindOverlap : NoConfig {
  using Arguments = portable::FindOverlapArguments;
  static constexpr KernelNames names = {"portable", "find_overlap", "find_overlap", "FindOverlapArguments"};
  auto operator<=>(const FindOverlap&) const = default;
  std::string description() const { return std::string(names.name); }
};

}  // namespace

Launch find_overlap(const Problem& problem, int64_t offset) {
  const int64_t ctas = divide_up(problem.key_entries(), int64_t{portable::find_overlap_sequences});
  return Launch::of(FindOverlap(), ctas, [offset](const BoundCall& call) {
    int* const overlap = call.at<int>(offset);
    portable::FindOverlapArguments arguments{call.params.keys, call.problem.key_entries(), call.problem.rows_k,
                                             reinterpret_cast<unsigned*>(overlap + 1), overlap};
    arguments.side.map = {};
    return arguments;
  });
}

}  // namespace gdpa::gpu
