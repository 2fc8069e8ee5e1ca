// What main.cpp knows of a subcommand, and the exit codes that they share.
#pragma once

#include <functional>
#include <stdexcept>

namespace CLI {
class App;  // its header takes seconds to compile: only files that define options include it
}

namespace gdpa::tool {

/// Exit codes; part of the interface, see docs/command-line.md.
enum ExitCode : int {
  success = 0,
  check_failed = 1,   ///< something was computed and is not as promised
  wrong_usage = 2,    ///< an argument is unknown or impossible
  machine_lacks = 3,  ///< memory, a file that cannot be written, a missing library
};

/// An argument that the command line itself refuses; exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Something that the machine could not do; exit code 3.
struct MachineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A subcommand: its parser and what it does, which returns an exit code.
struct Command {
  CLI::App* parser;
  std::function<int()> execute;
};

Command add_run(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_compile(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_doctor(CLI::App& app);

}  // namespace gdpa::tool
