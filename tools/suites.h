// The built-in benchmark suites: lists of shapes, read from python/gdpa/bench/suites.json, which the Python benchmark
// reads too.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "problem.h"

namespace gdpa::tool {

/// The whole file, for --list-suites.
const Json& suites();

/// One shape: a problem but for its function, which takes turns with the other functions of the shape.
struct SuiteShape {
  std::optional<std::string> name;
  ProblemOptions problem;
  std::vector<std::string> activations;
  std::vector<std::string> directions = {"fwd", "bwd"};  ///< that are worth timing
};

/// What was given on the command line, and is then taken instead of what the suite says.
struct SuiteOverrides {
  double batch_factor = 1.0;  ///< on every batch
  std::optional<std::string> dtype, mask;
  std::vector<std::string> activations;
};

/// The shapes of a suite; what neither the suite nor `overrides` says is `options`'. Throws UsageError for an unknown
/// name.
std::vector<SuiteShape> shapes_of_suite(const std::string& name, const ProblemOptions& options,
                                        const SuiteOverrides& overrides);

}  // namespace gdpa::tool
