// Computes a problem forward and backward, and checks the results: `gdpa run` and `gdpa verify`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gdpa/plan.h"
#include "problem.h"
#include "workload.h"

namespace gdpa::tool {

struct CheckedOutput {
  std::string name;
  double error;    ///< relative_error
  double promise;  ///< promised_error, or twice the error of the same computation in the type of the operands
  bool repeats;    ///< a second call gave the same bits, or the plan does not promise them

  bool ok() const { return complaint().empty(); }
  std::string complaint() const;  ///< "above" the promise, "NaN", "other bits in a second call"; empty if ok
};

struct CheckedDirection {
  Direction direction;
  Plan plan;
  std::vector<CheckedOutput> outputs;
  std::vector<std::string> changed_inputs;

  bool ok() const;
};

using Checked = std::vector<CheckedDirection>;

/// Fills the outputs with NaN, calls gdpa twice in each direction, and compares the results with each other, with the
/// reference in fp64, and the inputs with their contents before the calls. The reference in the type is computed if an
/// error is above promised_error. Calls `at` with the name of each step before
/// it begins: compiling forward, forward, compiling backward, backward, reference.
Checked compute_and_check(const Problem& problem, Workload& workload,
                          const std::function<void(const std::string& step)>& at = {});

bool is_ok(const Checked& checked);
const char* name_of(Direction direction);
Json to_json(const CheckedOutput& output);

}  // namespace gdpa::tool
