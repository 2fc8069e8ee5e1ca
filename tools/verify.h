// The results of `gdpa verify`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gdpa/tensor.h"
#include "random_problem.h"
#include "terminal.h"

namespace gdpa::tool {

/// A row of the table: what computes, in which type and direction.
struct RowKey {
  std::string family;
  TypeName type;
  std::string direction;  ///< or the step outside both directions in which a problem failed
  bool operator==(const RowKey&) const = default;
};

struct Row {
  RowKey key;
  int problems = 0;                     ///< all that began
  double worst = 0;                     ///< the largest error divided by its promise
  std::string worst_output;             ///< the output with this error
  std::map<std::string, int> failures;  ///< by kind: wrong, error, crash, hang
  int lacks_memory = 0;
};

/// A failed problem.
struct Failure {
  RowKey row;
  std::string kind;
  std::string text;
  std::string command;  ///< that repeats it
};

/// A timed problem.
struct RateRow {
  std::string problem;                            ///< in words
  double forward = 0, backward = 0, product = 0;  ///< TFLOP/s; 0: not measured
  std::string product_version;
  std::string note;  ///< why something was not measured
};

struct Verification {
  Device device;
  uint64_t seed = 0;
  int problems = 0;       ///< for each family and type
  std::vector<Row> rows;  ///< in the order in which the first problem of each was computed
  std::vector<Failure> failures;
  std::vector<RateRow> rates;
  int not_run = 0;           ///< problems that were skipped after several hangs
  std::string lacks_memory;  ///< the message of a problem that did not fit into memory
  std::string ended_early;   ///< why the machine could not go on

  Row& row(const RowKey& key);  ///< which begins empty
  bool ok() const { return failures.empty(); }
  bool is_complete() const { return lacks_memory.empty() && ended_early.empty() && not_run == 0; }
};

/// The report, which can be pasted into a bug report.
std::string report(const Verification& verification);
Json to_json(const Verification& verification);

/// The part of the report that is known before the first problem.
std::string describe_machine(Device device);

}  // namespace gdpa::tool
