// The command line of gdpa: runs a subcommand, and converts every error to a message and an exit code.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <new>
#include <vector>

#include "command.h"
#include "commit.h"
#include "gdpa/gdpa.h"

namespace gdpa::tool {
namespace {

const char* const description =
    "Generalized Dot-Product Attention: O = out_scale * f(scale * Q K^T) V for any elementwise f, over jagged "
    "batches,\n"
    "forward and backward.";

const char* const footer =
    "Each subcommand has its own help, such as gdpa run --help.\n\n"
    "Exit codes:\n"
    "  0  success\n"
    "  1  a result is outside its promise (gdpa run, gdpa verify), a call crashed or did not end (gdpa verify), or "
    "the\n"
    "     self-check failed (gdpa doctor)\n"
    "  2  an argument is unknown or impossible\n"
    "  3  the machine cannot run the command: no GPU, too little memory, an unwritable file, a missing library";

int fail(ExitCode code, const char* message) {
  fmt::print(stderr, "gdpa: {}\n", message);
  return code;
}

int run_program(int argc, char** argv) {
  CLI::App app(description, "gdpa");
  app.footer(footer);
  app.set_version_flag("--version", fmt::format("gdpa {} (commit {})", GDPA_VERSION, commit()),
                       "Print the version and the commit");
  app.require_subcommand(1);
  const std::vector<Command> commands = {add_run(app),    add_explain(app), add_compile(app),     add_bench(app),
                                         add_doctor(app), add_verify(app),  add_verify_child(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? success : wrong_usage;
  }
  for (const Command& command : commands) {
    if (command.parser->parsed()) return command.execute();
  }
  return wrong_usage;
}

}  // namespace
}  // namespace gdpa::tool

int main(int argc, char** argv) {
  using namespace gdpa::tool;
  try {
    return run_program(argc, argv);
  } catch (const UsageError& error) {
    return fail(wrong_usage, error.what());
  } catch (const MachineError& error) {
    return fail(machine_lacks, error.what());
  } catch (const gdpa::Error& error) {
    const bool is_usage = error.kind() == gdpa::ErrorKind::value || error.kind() == gdpa::ErrorKind::type;
    return fail(is_usage ? wrong_usage : machine_lacks, error.what());
  } catch (const std::bad_alloc&) {
    return fail(machine_lacks, "out of memory: take a smaller batch or shorter lengths");
  } catch (const std::exception& error) {
    return fail(machine_lacks, error.what());
  }
}
