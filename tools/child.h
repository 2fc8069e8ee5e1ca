// A child process with a time limit: this program again, with which the parent exchanges lines.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gdpa::tool {

/// The file descriptor of the lines in a child. Its standard output is free for anything that a library prints.
constexpr int child_lines = 3;

class Child {
 public:
  /// Starts this program with `arguments` and more environment variables ("NAME=value"), in a process group. Throws
  /// MachineError.
  Child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// Kills the process group.
  ~Child();

  /// Sends a line. A child that has ended does not receive it, and receive() finds that out.
  void send(const std::string& line);

  /// Returns the next line, or nothing if the child has ended or sends no line within `seconds`.
  std::optional<std::string> receive(double seconds);

  /// Kills the process group, waits for its end, and returns the end in words, such as "ended by signal 11
  /// (Segmentation fault)". If the child did not end by itself, the text is empty. Throws MachineError if the child
  /// cannot be killed, as when the driver does not give up its GPU.
  std::string end();

  /// The last lines that the child wrote to standard output and standard error.
  std::string last_words() const;

 private:
  /// The exit status, if the process ends within `seconds`.
  std::optional<int> wait(double seconds);

  pid_t process_ = -1;
  int lines_ = -1;
  int output_ = -1;
  std::string received_;
};

/// Called by the child: ends it when its parent ends.
void end_with_parent();

}  // namespace gdpa::tool
