// What the specifications of attention kernels share: the kernels that go over tiles of queries and keys.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "codegen/function.h"
#include "gpu/call.h"
#include "gpu/config_text.h"
#include "gpu/kernel.h"
#include "gpu/kernels/element.h"
#include "gpu/kernels/mask.h"

namespace gdpa::gpu {

struct GpuPlan;

/// Config::Epilogue (kernels/common/epilogues.cuh), in the order of name_of() in attention.cpp.
enum class Epilogue : std::uint8_t { scale, row_scale, addend };

struct AttentionKernel : MaskForm {
  GpuElement element = GpuElement::bfloat16;
  int head_dim = 0;
  int head_dim_v = 0;
  int tile_queries = 0;
  int tile_keys = 0;
  int warps = 0;  ///< warps that compute, along the rows of the tile that the CTA owns
  int stages = 0;
  bool aligned = false;
  bool has_output_offsets = false;  ///< O and dO have rows of their own
  Epilogue epilogue = Epilogue::scale;

  static constexpr bool reads_function = true, reads_mask = true;
  auto operator<=>(const AttentionKernel&) const = default;
};

/// The members of kernels that evaluate f.
struct FunctionForm {
  unsigned tensor_types = 0;           ///< of the tensors that f reads, as in Problem
  Accuracy accuracy = Accuracy::fast;  ///< of f
  bool scales_scores = true;           ///< otherwise f is homogeneous, and its argument is Q K^T

  auto operator<=>(const FunctionForm&) const = default;
};

/// The members that depend on the operands of the call alone.
AttentionKernel attention_kernel_for(const Call& call);
FunctionForm function_form_for(const Call& call);

/// Sets the members of a kernel with a mask. The tile sizes are set. `reads_query_lists`: the kernel owns keys, and
/// reads the lists of their query tiles.
void choose_mask(const Call& call, bool reads_query_lists, AttentionKernel& kernel, GpuPlan& plan);

/// Writes the members of Config that all of these kernels have: Element, Mask, Epilogue, and the sizes.
void write_attention(const AttentionKernel& kernel, const Expressions& expressions, ConfigText& config);

/// Writes Config::Inputs, the inputs of a score: the printed struct, or none. `function` is null if the kernel
/// evaluates no function or reads the inputs in another way.
void write_inputs(const activation::Function* function, ConfigText& config);

/// A struct for Config::Layout, and its header.
struct LayoutName {
  std::string_view name, header;
};
constexpr LayoutName packed_layout = {"PackedLayout", "common/packed_layout.cuh"},
                     paged_layout = {"PagedLayout", "common/paged_layout.cuh"};

/// Writes Config::Layout, with a name in the namespace `scope` ("gdpa::").
void write_layout(std::string_view scope, const LayoutName& layout, bool has_output_offsets, ConfigText& config);

/// The condition of the mask and the structs of f. `activation` has what is special about the kernel.
std::string function_source(const AttentionKernel& kernel, const FunctionForm& form, const Expressions& expressions,
                            activation::ForwardForm activation = {});

/// "BFloat16 d=128 paged d_v=128 tile 128x64, 8 warps, 2 stages". `properties` is " paged".
std::string describe(const AttentionKernel& kernel, std::string_view properties, int warps);

/// A word of such a description, for a function of this accuracy.
inline std::string_view exact_or_fast(Accuracy accuracy) { return accuracy == Accuracy::exact ? " exact" : ""; }

}  // namespace gdpa::gpu
