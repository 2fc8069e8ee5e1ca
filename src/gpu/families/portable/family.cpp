// The portable kernels: mma.sync and cp.async, which every supported GPU has.
#include <algorithm>

#include "gpu/families/family.h"
#include "gpu/kernels/portable_backward.h"
#include "gpu/kernels/portable_backward_query.h"
#include "gpu/kernels/portable_forward.h"
#include "gpu/kernels/portable_parameter_gradients.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {
namespace {

/// Splits of the batch, so that the CTAs that own the tiles of a shared operand occupy all multiprocessors.
int64_t splits_for(const Side& side, int64_t heads, int64_t tile, const Gpu& gpu, int ctas) {
  const int64_t owners = std::max<int64_t>(1, heads * divide_up(side.length(), tile));
  const int64_t wanted = divide_up(int64_t{2} * gpu.multiprocessors * ctas, owners);
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, side.batch));
}

template <class Spec>
void add(const Call& call, Spec& kernel, bool owns_keys, int64_t ctas, GpuPlan& plan) {
  choose_mask(call, owns_keys, kernel, plan);
  plan.add_products(launch(kernel, ctas), kernel);
}

int64_t query_tiles(const Call& call, const PortableKernel& kernel, int64_t splits) {
  return call.problem.heads_q * queries_of(call.problem).most_tiles(kernel.tile_queries, splits);
}

void add_forward(const Call& call, GpuPlan& plan) {
  plan.reason = "one CTA owns a tile of queries and iterates over the keys";
  PortableForward kernel = portable_forward_for(call);
  const std::optional<double> factor = factor_of_scale(call);
  // fp16 ends at 65504, which scores of head dim 128 reach.
  if (factor && kernel.element != GpuElement::float16) {
    kernel.scales_scores = false;
    plan.output_factor = *factor;
  }
  add(call, kernel, false, query_tiles(call, kernel, call.problem.batch), plan);
}

void add_backward(const Call& call, GpuPlan& plan) {
  const Problem& problem = call.problem;
  const bool keys_shared = has_shared_keys(problem), queries_shared = has_shared_queries(problem);
  const WantedGradients& wanted = problem.wanted;
  const bool wants_keys = wanted.key || wanted.value;
  // Additions of many batch entries to the few rows of a shared query would wait for each other.
  const bool has_query_kernel = wanted.query && (problem.deterministic || queries_shared || !wants_keys);
  const bool adds_to_query = wanted.query && !has_query_kernel;
  plan.deterministic = !adds_to_query;
  plan.reason = has_query_kernel ? "dQ has a kernel of its own, which sums in one order"
                : adds_to_query  ? "one CTA owns a tile of keys and adds to dQ in fp32"
                                 : "one CTA owns a tile of keys, and dQ is not wanted";

  PortableBackward kernel = portable_backward_for(call, adds_to_query, false);
  PortableBackwardQuery query_kernel = portable_backward_query_for(call, queries_shared);
  if (keys_shared && wants_keys) {
    plan.splits = splits_for(keys_of(problem), problem.heads_k, kernel.tile_keys, call.gpu, kernel.ctas);
  }
  const bool has_query_partials = has_query_kernel && queries_shared;
  if (has_query_partials) {
    plan.splits =
        splits_for(queries_of(problem), problem.heads_q, query_kernel.tile_queries, call.gpu, query_kernel.ctas);
  }
  if (has_query_partials || adds_to_query) {
    const int64_t splits = has_query_partials ? plan.splits : 1;
    plan.grad_query = plan.reserve_accumulators(call, &Params::grad_query, splits);
    if (adds_to_query) plan.clear(plan.grad_query.offset, plan.workspace.bytes());
  }
  if (keys_shared) plan.reserve_key_partials(call);
  if (wants_keys) {
    add(call, kernel, true, problem.heads_k * keys_of(problem).most_tiles(kernel.tile_keys, plan.splits), plan);
  }
  if (has_query_kernel) add(call, query_kernel, false, query_tiles(call, query_kernel, plan.splits), plan);
}

void add_portable_attention(const Call& call, GpuPlan& plan) {
  (call.problem.direction == Direction::forward ? add_forward : add_backward)(call, plan);
}

void add_gradients_of_tensors(const Call& call, const ParameterGradientsForm& form, GpuPlan& plan) {
  PortableParameterGradients kernel = portable_parameter_gradients_for(call, form);
  add(call, kernel, false, query_tiles(call, kernel, call.problem.batch), plan);
}

std::string never(const Call& /*call*/) { return {}; }

}  // namespace

const Family portable_family = {"portable", never, add_portable_attention, never, add_gradients_of_tensors};

}  // namespace gdpa::gpu
