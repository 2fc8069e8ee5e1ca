// See kernel.h.
#include "gpu/kernel.h"

#include <fmt/format.h>

namespace gdpa::gpu {
namespace {

/// Returns the statement that ends a kernel which is not for the sequences of keys of the call.
std::string end_of_other_overlap(const KernelNames& names, std::optional<bool> wanted) {
  if (!wanted) return {};
  const std::string_view dot = names.common.empty() ? "" : ".";
  return fmt::format("  if ((*arguments.{}{}keys_overlap != 0) != {}) return;\n", names.common, dot, *wanted);
}

}  // namespace

std::string Kernel::description() const {
  const std::string properties = self_->properties();
  const std::string text = properties.empty() ? std::string(names().name)
                                              : fmt::format("{}: {} {}", names().family, names().name, properties);
  if (!wanted_overlap_) return text;
  return text + (*wanted_overlap_ ? ", if keys overlap" : ", if keys are apart");
}

std::string Kernel::source(const Expressions& expressions) const {
  const KernelNames& names = self_->names;
  const SourceParts parts = self_->source(expressions);
  return fmt::format(
      "{macros}#include \"{family}/{header}.cuh\"\n\n"
      "{functions}\n{config}\n"
      "extern \"C\" __constant__ int {threads} = gdpa::{family}::{name}_cta<Config>::threads;\n"
      "extern \"C\" __constant__ int {shared} = gdpa::{family}::{name}_cta<Config>::shared_bytes;\n"
      "extern \"C\" __global__ void __launch_bounds__(gdpa::{family}::{name}_cta<Config>::threads, {ctas})\n"
      "{kernel}(const __grid_constant__ gdpa::{family}::{arguments} arguments) {{\n"
      "{begin}"
      "  gdpa::{family}::{name}<Config>(arguments);\n"
      "}}\n",
      fmt::arg("macros", parts.macros), fmt::arg("family", names.family), fmt::arg("header", names.header),
      fmt::arg("functions", parts.functions), fmt::arg("config", parts.config),
      fmt::arg("threads", SourceNames::threads), fmt::arg("name", names.name),
      fmt::arg("shared", SourceNames::shared_bytes), fmt::arg("ctas", parts.ctas),
      fmt::arg("kernel", SourceNames::kernel), fmt::arg("arguments", names.arguments),
      fmt::arg("begin", parts.begin + end_of_other_overlap(names, wanted_overlap_)));
}

std::strong_ordering Kernel::operator<=>(const Kernel& other) const {
  if (const auto of_type = std::compare_three_way()(self_->type, other.self_->type); of_type != 0) return of_type;
  if (const auto of_overlap = wanted_overlap_ <=> other.wanted_overlap_; of_overlap != 0) return of_overlap;
  return self_->compare(*other.self_);
}

}  // namespace gdpa::gpu
