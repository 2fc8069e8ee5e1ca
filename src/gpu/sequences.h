// The places of sequences: kernels find them before the kernels of the call if a side has gaps, a batch map, or output
// offsets.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/call.h"
#include "gpu/launch.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {

/// Offsets in the workspace, in bytes; -1: not there.
struct SequencesPlan {
  int64_t queries = -1;  ///< the results of locate_sequences for the queries
  int64_t keys = -1;     ///< the same for the keys of each batch entry
  int64_t owners = -1;   ///< the same for the sequences of keys, with a batch map
  int64_t outputs = -1;  ///< the same for the rows of the output
  int64_t entries = -1;  ///< the results of group_entries
  int64_t first_entry = -1;
  int64_t merged_entries = -1;  ///< an array of the size of `entries`, for its merges
  int64_t overlap = -1;         ///< the result of find_overlap, and after it the bits of the rows
};

/// Whether the kernels need the results of locate_sequences for the queries.
bool locates_queries(const Problem& problem);

/// Reserves the memory of the places, and adds the launches that find them. `finds_overlap`: whether two sequences of
/// keys have a row in common is found too.
SequencesPlan plan_sequences(const Call& call, bool finds_overlap, WorkspaceLayout& workspace,
                             std::vector<Launch>& launches);

/// Sets the places in the arguments of the attention kernels.
void set_sequences(const SequencesPlan& plan, const Problem& problem, const Params& params, std::byte* workspace,
                   CommonArguments& arguments);

}  // namespace gdpa::gpu
