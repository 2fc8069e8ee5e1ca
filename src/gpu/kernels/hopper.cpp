// See hopper.h.
#include "gpu/kernels/hopper.h"

#include <utility>

#include "definition/environment.h"

namespace gdpa::gpu {
namespace {

bool has_random_delays() {
  static const bool is_asked = is_set("GDPA_RANDOM_DELAYS");
  return is_asked;
}

}  // namespace

SourceParts hopper_source(std::string functions, const ConfigText& config) {
  SourceParts parts;
  if (has_random_delays()) parts.macros = "#define GDPA_RANDOM_DELAYS\n\n";
  parts.functions = "#include \"pipeline/dependent_launch.cuh\"\n" + std::move(functions);
  parts.config = config.text();
  parts.begin = "  gdpa::pipeline::wait_for_previous_kernel();\n";
  return parts;
}

std::string_view delayed() { return has_random_delays() ? " delayed" : ""; }

std::string_view in_source(hopper::Pass pass) {
  switch (pass) {
    case hopper::Pass::only:
      return "only";
    case hopper::Pass::first:
      return "first";
    case hopper::Pass::second:
      return "second";
  }
  return {};
}

std::string_view in_description(hopper::Pass pass) { return pass == hopper::Pass::second ? " second pass" : ""; }

}  // namespace gdpa::gpu
