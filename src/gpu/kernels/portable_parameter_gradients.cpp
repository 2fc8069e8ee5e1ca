// See portable_parameter_gradients.h.
#include "gpu/kernels/portable_parameter_gradients.h"

namespace gdpa::gpu {
namespace {

// As in portable_forward.cpp. A warp has all columns of its rows.
constexpr PortableTile parameter_gradients_16_bit[] = {
    {128, 64, 8, 1, 2, 1, 128, 96}, {128, 32, 8, 1, 2, 1, 160, 128}, {64, 32, 4, 1, 2, 1, 160, 128},
    {64, 16, 4, 1, 2, 1, 160, 128}, {64, 16, 4, 1, 1, 1, 160, 128},
};
constexpr PortableTile parameter_gradients_32_bit[] = {
    {64, 16, 4, 1, 2, 1, 96, 80},
    {64, 16, 4, 1, 1, 1, 112, 80},
    {32, 16, 2, 1, 1, 1, 112, 80},
    {16, 16, 1, 1, 1, 1, 112, 80},
};

}  // namespace

TileNeeds PortableParameterGradients::needs() const {
  return {bytes_of_queries_and_output(*this) + bytes_of_key_stages(*this) + warps * warp_terms_bytes(tile_keys),
          registers_of_warp(tile_queries / warps, 2 * tile_keys)};
}

std::string PortableParameterGradients::description() const {
  return describe(names, *this, exact_or_fast(accuracy), warps * column_warps);
}

SourceParts PortableParameterGradients::source(const Expressions& expressions) const {
  ConfigText config;
  write_attention(*this, expressions, config);
  write_parameter_gradients(*this, config);
  write_portable(*this, "PackedLayout", "common/packed_layout.cuh", "warps", config);
  return portable_source(
      *this, condition_of(*this, expressions) + parameter_gradients_source(*this, expressions.function, 0), config);
}

PortableParameterGradients portable_parameter_gradients_for(const Call& call, const ParameterGradientsForm& form) {
  PortableParameterGradients kernel{{attention_kernel_for(call)}, form};
  const std::span<const PortableTile> tiles = bytes_of(kernel.element) == 2
                                                  ? std::span<const PortableTile>(parameter_gradients_16_bit)
                                                  : parameter_gradients_32_bit;
  const bool needs_many = call.facts().has_long_steps(form.accuracy);
  choose_portable_tile(
      tiles, call.gpu, needs_many, [&] { return kernel.needs(); }, kernel);
  return kernel;
}

}  // namespace gdpa::gpu
