// See portable_backward_query.h.
#include "gpu/kernels/portable_backward_query.h"
#include "codegen/function.h"

namespace gdpa::gpu {
namespace {

// As in portable_forward.cpp.
constexpr PortableTile backward_query_16_bit[] = {
    {128, 64, 8, 1, 2, 1, 128, 96}, {128, 32, 8, 1, 2, 1, 160, 128}, {64, 32, 4, 1, 2, 1, 160, 128},
    {64, 32, 4, 2, 2, 1, 160, 128}, {64, 16, 4, 1, 2, 1, 160, 128},  {64, 16, 4, 2, 1, 1, 160, 128},
};
constexpr PortableTile backward_query_32_bit[] = {
    {64, 16, 4, 1, 2, 1, 96, 80},
    {64, 16, 4, 2, 2, 1, 112, 80},
    {64, 16, 4, 2, 1, 1, 112, 80},
    {32, 16, 2, 2, 1, 1, 112, 80},
};

}  // namespace

TileNeeds PortableBackwardQuery::needs() const {
  return {bytes_of_queries_and_output(*this) + bytes_of_key_stages(*this),
          registers_of_warp(tile_queries / warps, portable_columns_of_warp(*this, head_dim) + 2 * tile_keys)};
}

std::string PortableBackwardQuery::description() const {
  return describe(names, *this, exact_or_fast(accuracy), warps * column_warps);
}

SourceParts PortableBackwardQuery::source(const Expressions& expressions) const {
  ConfigText config;
  write_attention(*this, expressions, config);
  config.type("Activation", "::ActivationWithDerivative");
  write_inputs(&expressions.function, config);
  write_portable(*this, "PackedLayout", "common/packed_layout.cuh", "warps", config);
  config.flag("queries_shared", queries_shared);
  const activation::ForwardForm form{.has_fp16_p = element == GpuElement::float16};
  return portable_source(
      *this,
      condition_of(*this, expressions) + activation::cuda_source(expressions.function, accuracy, form, tensor_types),
      config);
}

PortableBackwardQuery portable_backward_query_for(const Call& call, bool queries_shared) {
  PortableBackwardQuery kernel{{attention_kernel_for(call)}, function_form_for(call), queries_shared};
  const std::span<const PortableTile> tiles =
      bytes_of(kernel.element) == 2 ? std::span<const PortableTile>(backward_query_16_bit) : backward_query_32_bit;
  choose_portable_tile(
      tiles, call.gpu, needs_many_registers(call), [&] { return kernel.needs(); }, kernel);
  return kernel;
}

}  // namespace gdpa::gpu
