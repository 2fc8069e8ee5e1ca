// prepare_mask: the tiles of a mask expression are classified once, and the result is used by several calls.
#pragma once

#include <cstdint>
#include <string>

#include "gdpa/attention.h"
#include "gdpa/export.h"

namespace gdpa {

/// The calls that a mask is prepared for.
struct PrepareOptions {
  bool backward = true;         ///< also for backward
  WantedGradients wanted = {};  ///< the gradients that backward computes; fewer of them need no other preparation
};

/// Returns the bytes of device memory that prepare_mask writes for a call: a multiple of 256, or 0 on the CPU. The size
/// does not depend on the mask. It has room for tiles of every pair of a query and a key up to a limit (docs/masks.md).
GDPA_API int64_t prepared_mask_bytes(const Attention& attention, const PrepareOptions& options = {});

/// Classifies the tiles of `attention.mask_expression` as empty, full or partial, on the stream of `attention`, and
/// writes lists of the others to `data`: device memory of prepared_mask_bytes() bytes, aligned to Workspace::alignment.
/// The host does not wait. The function can be captured into a CUDA graph if its kernels are loaded: by the same call
/// before, or by compile() for a call with this mask.
///
/// Set Attention::prepared_mask to the result. Calls then do not classify tiles themselves, and need a smaller
/// workspace. `data` must stay valid until the work of these calls is done. A call must have the same mask, device,
/// batch, number of rows of each side, number of heads, and forms of operands, and kernels with the same sizes of
/// tiles, which `options` and the head dims, the dtype and the function determine. Otherwise it throws Error (value).
/// The lists are for the offsets and the elements of the tensors at the time of the preparation:
///   - A batch entry whose lengths differ from them is computed without its lists. Its results are correct, but all of
///     its tiles are computed. GDPA_CHECK_OFFSETS=1 prints the first such entry.
///   - The tensors of the mask must have the same elements. A tile that was classified otherwise has wrong results.
///
/// On the CPU there is nothing to prepare: each call classifies its tiles with interval arithmetic. A prepared mask is
/// accepted there and checked in the same way, and `data` is null.
///
///     void* data = nullptr;
///     const int64_t bytes = gdpa::prepared_mask_bytes(attention);
///     cudaMalloc(&data, bytes);
///     attention.prepared_mask = gdpa::prepare_mask(attention, data, bytes);
///
/// Throws Error (value) if there is no mask expression.
GDPA_API PreparedMask prepare_mask(const Attention& attention, void* data, int64_t bytes,
                                   const PrepareOptions& options = {});

}  // namespace gdpa
