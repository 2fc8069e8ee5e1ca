// Which problems the Hopper kernels take, and in which tiles. Pure functions; docs/notebook/hopper-forward.md and
// hopper-backward.md have the measurements.
#pragma once

#include <string>

#include "plan/gpu_plan.h"

namespace gdpa::plan {

/// Why the Hopper kernel of the problem's direction does not take it, or an empty string. Of the kernel, alignment and
/// head dims are read.
std::string why_not_hopper(const Problem& problem, const Gpu& gpu, const KernelSpec& kernel, TensorMaps tensor_maps);

/// Sets the family, tile, warps and buffers, for keys of this mean length and queries that no sequence has more of (or
/// any number, where it is not known). Where keys are few, K and V need few buffers to stay, and Q gets several, since
/// it streams; where queries are, a second warpgroup would have none. With a head dim above 128 registers and shared
/// memory decide.
void choose_hopper_tiles(KernelSpec& kernel, int64_t most_queries, int64_t mean_keys);

/// The same of a backward kernel, for queries of this mean length, or all of them where the batch shares the keys. With
/// head dims up to 64 there are registers for tiles of 128 queries, unless the function needs many; sequences must be
/// long for that, and a window would make tiles of keys wait for each other.
void choose_hopper_backward_tiles(KernelSpec& kernel, FunctionRegisters function, const Mask& mask,
                                  int64_t mean_queries);

/// Up to how many keys of a sequence one CTA takes in backward, so that it stores dQ at once: four tiles where there
/// are many sequences for each CTA, two where there is one, else one tile; none where the batch shares the queries,
/// whose gradient is a sum over the batch, where a head dim is above 128, or where dQ is not wanted.
int direct_keys(const Problem& problem, const Gpu& gpu);

/// Whether the first tile of keys that queries meet begins the sums of their dQ, and the last one ends them: where they
/// are of one sequence, and the kernel is not that of head dims above 128, which it made slower.
bool begins_sums(const Problem& problem, const Gpu& gpu);

/// Whether dQ is wanted and some of it goes through fp32 sums in the workspace.
bool sums_grad_query(const Problem& problem, const Gpu& gpu);

/// Whether backward's schedule has rows of dQ to look for: sums, or rows that no sequence has. False where dQ is not
/// wanted.
bool has_rows_to_prepare(const Problem& problem, const Gpu& gpu);

/// Where tiles of keys wait for each other, of how many heads their tiles stand in rows (kernels/hopper/windows.cuh).
int64_t heads_of_window(const Problem& problem, const Gpu& gpu, int tile_queries);

/// Whether backward stores dQ of every batch entry at once, without sums and in one order: where lengths of keys are
/// known and few.
bool is_all_direct(const Problem& problem, const Gpu& gpu);

}  // namespace gdpa::plan
