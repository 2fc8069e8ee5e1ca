// NoConfig: the specification of a kernel of which all calls use one instance.
#pragma once

#include <compare>

#include "gpu/config_text.h"
#include "gpu/kernel.h"

namespace gdpa::gpu {

struct NoConfig {
  static constexpr bool reads_function = false, reads_mask = false;
  auto operator<=>(const NoConfig&) const = default;
  SourceParts source(const Expressions& /*expressions*/) const { return {.config = ConfigText().text()}; }
};

}  // namespace gdpa::gpu
