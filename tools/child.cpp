// See child.h.
#include "child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "command.h"

namespace gdpa::tool {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string name_before_equals(const std::string& variable) { return variable.substr(0, variable.find('=') + 1); }

/// The environment of this process, with `more` in place of variables of the same names.
std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> result = more;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const bool is_replaced = std::any_of(more.begin(), more.end(), [&](const std::string& one) {
      return name_before_equals(one) == name_before_equals(*variable);
    });
    if (!is_replaced) result.emplace_back(*variable);
  }
  return result;
}

void check(int error, const char* doing) {
  if (error != 0) throw MachineError(fmt::format("{}: {}", doing, std::strerror(error)));
}

std::string in_words(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("ended by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace

Child::Child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  std::array<int, 2> ends{};
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0 ? 0 : errno, "starting a child process");
  lines_ = ends[0];
  output_ = ::memfd_create("output of a child", MFD_CLOEXEC);
  check(output_ >= 0 ? 0 : errno, "starting a child process");

  std::vector<std::string> words = {"gdpa"}, variables = environment_with(environment);
  words.insert(words.end(), arguments.begin(), arguments.end());
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output_, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, output_, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&files, ends[1], child_lines);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int error = ::posix_spawn(&process_, "/proc/self/exe", &files, &attributes, pointers_to(words).data(),
                                  pointers_to(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  ::close(ends[1]);
  check(error, "starting a child process");
}

Child::~Child() {
  constexpr double seconds_to_end = 5;
  if (process_ > 0) {
    ::kill(-process_, SIGKILL);
    wait(seconds_to_end);
  }
  ::close(lines_);
  ::close(output_);
}

void Child::send(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(lines_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

std::optional<std::string> Child::receive(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    if (const auto end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    const double left = std::chrono::duration<double>(limit - Clock::now()).count();
    pollfd readable{lines_, POLLIN, 0};
    const int ready = left <= 0 ? 0 : ::poll(&readable, 1, static_cast<int>(std::min(left, 1e6) * 1e3) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    std::array<char, 4096> buffer{};
    const ssize_t count = ::recv(lines_, buffer.data(), buffer.size(), 0);
    if (count <= 0) return std::nullopt;
    received_.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::optional<int> Child::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    int status = 0;
    if (::waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (Clock::now() < limit);
  return std::nullopt;
}

std::string Child::end() {
  if (process_ < 0) return {};
  // A child that closed its end of the lines is about to end by itself.
  pollfd closed{lines_, POLLIN, 0};
  char byte = 0;
  const bool ends_by_itself = ::poll(&closed, 1, 0) == 1 && ::recv(lines_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
  constexpr double seconds_to_end = 10, seconds_of_the_driver = 60;
  std::optional<int> status = ends_by_itself ? wait(seconds_to_end) : std::nullopt;
  const std::string words = status ? in_words(*status) : "";
  if (!status) {
    ::kill(-process_, SIGKILL);
    status = wait(seconds_of_the_driver);
  }
  if (!status) {
    throw MachineError(
        fmt::format("process {} was killed and does not end: the driver does not give up its GPU; see dmesg and "
                    "nvidia-smi, and reset the GPU",
                    process_));
  }
  return words;
}

std::string Child::last_words() const {
  constexpr off_t most_bytes = 2000;
  struct stat file {};
  const off_t size = ::fstat(output_, &file) == 0 ? file.st_size : 0;
  const off_t begin = std::max<off_t>(0, size - most_bytes);
  std::string text(static_cast<std::size_t>(std::max<off_t>(0, size - begin)), '\0');
  const ssize_t count = ::pread(output_, text.data(), text.size(), begin);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  // The text may begin within a character, and JSON takes only valid UTF-8.
  const auto is_plain = [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); };
  std::replace_if(
      text.begin(), text.end(), [&](char c) { return !is_plain(c); }, '?');
  return text;
}

void end_with_parent() { ::prctl(PR_SET_PDEATHSIG, SIGKILL); }

}  // namespace gdpa::tool
