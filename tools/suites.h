// The built-in benchmark suites: lists of shapes, read from python/gdpa/bench/suites.json, which the Python benchmark
// reads too.
#pragma once

#include <string>
#include <vector>

#include "problem.h"

namespace gdpa::tool {

/// The whole file, for --list-suites.
const Json& suites();

/// The problems of a suite: the shapes are the suite's, everything else is `options`'. `batch_factor` multiplies every
/// batch. Throws UsageError for an unknown name.
std::vector<ProblemOptions> problems_of_suite(const std::string& name, const ProblemOptions& options,
                                              double batch_factor);

/// The type and function that a suite is meant for.
struct SuiteDefaults {
  std::string dtype;
  std::string activation;
};
SuiteDefaults defaults_of_suite(const std::string& name);

}  // namespace gdpa::tool
