// The built-in benchmark suites, which are lists of shapes. Both benchmarks read python/gdpa/bench/suites.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "problem.h"

namespace gdpa::tool {

/// Returns the whole file, for --list-suites.
const Json& suites();

/// A shape: a problem without its function. The functions of a shape alternate.
struct SuiteShape {
  std::optional<std::string> name;
  ProblemOptions problem;
  std::vector<std::string> activations;
  std::vector<std::string> directions = {"fwd", "bwd"};  ///< the directions to time
};

/// Options of the command line that override the suite.
struct SuiteOverrides {
  double batch_factor = 1.0;  ///< of every batch
  std::optional<std::string> dtype, mask;
  std::vector<std::string> activations;
};

/// Returns the shapes of a suite. `overrides` has precedence over the suite, and the suite has precedence over
/// `options`. Throws UsageError for an unknown name.
std::vector<SuiteShape> shapes_of_suite(const std::string& name, const ProblemOptions& options,
                                        const SuiteOverrides& overrides);

}  // namespace gdpa::tool
