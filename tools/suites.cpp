// Reads the embedded suites.
#include "suites.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "command.h"
#include "suites_embedded.h"

namespace gdpa::tool {
namespace {

const Json& suite(const std::string& name) {
  const auto found = suites().find(name);
  if (found != suites().end()) return *found;
  std::string names;
  for (const auto& [known, unused] : suites().items()) names += (names.empty() ? "" : ", ") + known;
  throw UsageError(fmt::format("--suite: expected one of {}; got '{}'", names, name));
}

}  // namespace

const Json& suites() {
  static const Json parsed = Json::parse(embedded_suites);
  return parsed;
}

std::vector<ProblemOptions> problems_of_suite(const std::string& name, const ProblemOptions& options,
                                              double batch_factor) {
  const Json& described = suite(name);
  std::vector<ProblemOptions> problems;
  for (const Json& shape : described.at("shapes")) {
    ProblemOptions problem = options;
    const double batch = std::round(described.at("batch").get<double>() * batch_factor);
    problem.batch = std::max<int64_t>(1, static_cast<int64_t>(batch));
    problem.heads = described.at("heads");
    problem.head_dim = shape.at("head_dim");
    problem.max_length = shape.at("length_q");
    problem.max_length_k = shape.at("length_k");
    problem.fill = shape.value("fill", 1.0);
    problem.fill_k = shape.value("fill_k", 1.0);
    problem.shared_q = shape.value("shared_q", false) ? problem.max_length : 0;
    problem.shared_k = shape.value("shared_kv", false) ? problem.max_length_k : 0;
    problems.push_back(problem);
  }
  return problems;
}

SuiteDefaults defaults_of_suite(const std::string& name) {
  return {suite(name).at("dtype"), suite(name).at("activation")};
}

}  // namespace gdpa::tool
