// The host file of the three kernels of kernels/portable/list_tiles.cuh, which write the lists of partner tiles of a
// mask expression.
#pragma once

#include <algorithm>
#include <vector>

#include "codegen/condition.h"
#include "gpu/kernels/attention.h"
#include "gpu/launch.h"
#include "gpu/workspace.h"
#include "plan/prepared_tiles.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct ListKernel {
  int index = 0;
  bool has_pages = false;

  using Arguments = portable::ListTilesArguments;
  static constexpr bool reads_function = false, reads_mask = false;
  auto operator<=>(const ListKernel&) const = default;

  SourceParts source(const Expressions& /*expressions*/) const { return parts({}, {}); }

 protected:
  SourceParts parts(std::string functions, ConfigText config) const {
    config.number("lists", index);
    write_layout("gdpa::", has_pages ? paged_layout : packed_layout, false, config);
    return {.functions = std::move(functions), .config = config.text()};
  }
};

struct LocateLists : ListKernel {
  static constexpr KernelNames names = {"portable", "locate_lists", "list_tiles", "ListTilesArguments", ""};
  auto operator<=>(const LocateLists&) const = default;
};

struct ListKeyTiles : ListKernel, MaskForm {
  static constexpr KernelNames names = {"portable", "list_key_tiles", "list_tiles", "ListTilesArguments", ""};
  static constexpr bool reads_mask = true;
  auto operator<=>(const ListKeyTiles&) const = default;

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    config.type("Condition", "::ConditionBounds");
    return parts("#include \"common/bounds.cuh\"\n" + condition_of(*this, expressions) +
                     activation::condition_bounds_source(*expressions.mask, mask_types),
                 config);
  }
};

struct ListQueryTiles : ListKernel {
  static constexpr KernelNames names = {"portable", "list_query_tiles", "list_tiles", "ListTilesArguments", ""};
  auto operator<=>(const ListQueryTiles&) const = default;
};

/// Adds the launches that write lists. `index` is their position in Params::tile_lists.
inline void list_tiles(const Problem& problem, const plan::TileListsPlan& lists, int index,
                       std::vector<Launch>& launches) {
  const ListKernel kernel{index, problem.has_pages()};
  const auto arguments = [](const BoundCall& call) { return call.common; };
  const auto ctas_of = [&](const Side& side, int tile) {
    const int64_t batch = std::max<int64_t>(1, problem.batch);
    const int64_t slots = side.form == Form::jagged ? side.most_tiles(tile, 1) : batch * divide_up(side.length(), tile);
    return divide_up(lists.heads * slots, int64_t{portable::list_warps});
  };
  launches.push_back(Launch::of(LocateLists{kernel}, 1, arguments));
  launches.push_back(Launch::of(ListKeyTiles{kernel, mask_form_for(problem, index)},
                                ctas_of(queries_of(problem), lists.tile_queries), arguments));
  if (!lists.has_query_lists) return;
  launches.push_back(Launch::of(ListQueryTiles{kernel}, ctas_of(keys_of(problem), lists.tile_keys), arguments));
}

}  // namespace gdpa::gpu
