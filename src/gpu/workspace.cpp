// See workspace.h.
#include "gpu/workspace.h"

#include <algorithm>

namespace gdpa::gpu {

int64_t Side::length() const { return form == Form::dense && batch > 0 ? rows / batch : rows; }

int64_t Side::mean_length() const { return form == Form::shared ? rows : rows / std::max<int64_t>(1, batch); }

int64_t Side::most_tiles(int64_t tile, int64_t splits) const {
  if (form == Form::jagged) return rows / tile + batch + 2;
  return (form == Form::shared ? splits : batch) * divide_up(length(), tile);
}

Side queries_of(const Problem& problem) { return {problem.query_form, problem.rows_q, problem.batch}; }
Side keys_of(const Problem& problem) { return {problem.key_form, problem.rows_k, problem.key_entries()}; }

bool has_shared_queries(const Problem& problem) {
  const bool is_only_side = problem.query_form == Form::shared && problem.key_form != Form::shared;
  return problem.shares_queries() || (problem.deterministic && is_only_side);
}
bool has_shared_keys(const Problem& problem) {
  const bool is_only_side = problem.key_form == Form::shared && problem.query_form != Form::shared;
  return problem.shares_keys() || (problem.deterministic && is_only_side);
}

}  // namespace gdpa::gpu
