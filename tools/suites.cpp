// Reads the embedded suites.
#include "suites.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

bool is_window(const std::string& mask) { return mask == "none" || mask == "causal" || mask.rfind("window:", 0) == 0; }

}  // namespace

const Json& suites() {
  static const Json parsed = Json::parse(embedded_suites);
  return parsed;
}

std::vector<SuiteShape> shapes_of_suite(const std::string& name, const ProblemOptions& options,
                                        const SuiteOverrides& overrides) {
  std::vector<SuiteShape> shapes;
  for (const Json& differences : suite(name).at("shapes")) {
    Json shape = suite(name);
    shape.update(differences);
    ProblemOptions problem = options;
    const double batch = std::round(shape.at("batch").get<double>() * overrides.batch_factor);
    problem.batch = std::max<int64_t>(1, static_cast<int64_t>(batch));
    problem.heads = shape.at("heads");
    problem.head_dim = shape.at("head_dim");
    problem.max_length = shape.at("length_q");
    problem.max_length_k = shape.at("length_k");
    problem.fill = shape.value("fill", 1.0);
    problem.fill_k = shape.value("fill_k", 1.0);
    problem.shared_q = shape.value("shared_q", false) ? problem.max_length : 0;
    problem.shared_k = shape.value("shared_kv", false) ? problem.max_length_k : 0;
    problem.deterministic |= shape.value("deterministic", false);
    problem.dtype = overrides.dtype.value_or(shape.at("dtype"));
    problem.mask = overrides.mask.value_or(shape.value("mask", "none"));
    if (shape.contains("layout") || !is_window(problem.mask)) {
      throw UsageError(
          fmt::format("--suite {}: expected a suite of windows and packed sequences; '{}' is none; run python -m "
                      "gdpa.bench {}",
                      name, shape.value("name", ""), name));
    }
    const Json tensors = shape.value("tensors", Json::object());
    for (const auto& [tensor, value] : tensors.items()) {
      problem.tensors.values.push_back(tensor + "=" + value.get<std::string>());
    }
    problem.tensors.gradients = shape.value("tensor_gradients", problem.tensors.gradients);
    const Json activation = shape.at("activation");
    std::vector<std::string> activations = overrides.activations;
    if (activations.empty() && activation.is_array()) activations = activation;
    if (activations.empty()) activations = {activation};
    SuiteShape& added = shapes.emplace_back(SuiteShape{std::nullopt, problem, activations});
    if (shape.contains("name")) added.name = shape.at("name");
    if (shape.contains("directions")) added.directions = shape.at("directions");
  }
  return shapes;
}

}  // namespace gdpa::tool
