// Builds activation Programs by hand, for tests of their evaluators.
#pragma once

#include <cstdint>

#include "expression/program.h"

namespace gdpa::testing {

class ProgramBuilder {
 public:
  using Operation = activation::Operation;

  std::uint16_t score() { return step(Operation::score); }
  std::uint16_t number(double value) {
    program_.steps.push_back({Operation::constant, 0, 0, 0, value});
    return static_cast<std::uint16_t>(program_.steps.size() - 1);
  }
  std::uint16_t step(Operation operation, std::uint16_t a = 0, std::uint16_t b = 0, std::uint16_t c = 0) {
    program_.steps.push_back({operation, a, b, c, 0});
    return static_cast<std::uint16_t>(program_.steps.size() - 1);
  }
  activation::Program with_results(std::vector<std::uint16_t> results) {
    program_.results = std::move(results);
    return program_;
  }

 private:
  activation::Program program_;
};

/// operation(s), or operation(s, number).
inline activation::Program program_of(activation::Operation operation) {
  ProgramBuilder builder;
  return builder.with_results({builder.step(operation, builder.score())});
}
inline activation::Program program_of(activation::Operation operation, double number) {
  ProgramBuilder builder;
  const std::uint16_t score = builder.score();
  return builder.with_results({builder.step(operation, score, builder.number(number))});
}

}  // namespace gdpa::testing
