// The interface of a subcommand, and the exit codes.
#pragma once

#include <functional>
#include <stdexcept>

namespace CLI {
class App;  // its header takes seconds to compile, so only files that define options include it
}

namespace gdpa::tool {

/// The exit codes, which are a part of the interface; see docs/command-line.md.
enum ExitCode : int {
  success = 0,
  check_failed = 1,   ///< a result is outside its promise
  wrong_usage = 2,    ///< an argument is unknown or impossible
  machine_lacks = 3,  ///< too little memory, a file that cannot be written, a missing library
};

/// An argument that the command line refuses; exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The machine cannot run the command; exit code 3.
struct MachineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Too little memory for the operands; exit code 3.
struct OutOfMemory : MachineError {
  using MachineError::MachineError;
};

/// A subcommand: its parser, and a function that returns an exit code.
struct Command {
  CLI::App* parser;
  std::function<int()> execute;
};

Command add_run(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_compile(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_verify(CLI::App& app);
Command add_verify_child(CLI::App& app);

}  // namespace gdpa::tool
