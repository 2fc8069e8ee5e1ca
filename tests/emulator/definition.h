// Runs a problem of score_problem.h once, with random operands, and compares its results with the definition.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "score_problem.h"

namespace gdpa::test {

/// Returns the results, of which O and all gradients are expected to be near the definition.
inline ScoreResults expect_definition(const ScoreCase& of) {
  std::random_device seeds;
  const unsigned seed = seeds();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  ScoreProblem problem(of, seed);
  ScoreResults results = problem.computed();
  problem.expect_near(results);
  return results;
}

}  // namespace gdpa::test
