// The output of the commands: text, JSON, and colour and progress on a terminal.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace gdpa::tool {

using Json = nlohmann::ordered_json;

/// Returns `text` in green or red if standard output is a terminal and NO_COLOR is not set, otherwise unchanged.
std::string good(const std::string& text);
std::string bad(const std::string& text);

/// Returns rows with aligned columns. The first column and text columns are left-aligned, numbers are right-aligned.
std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

/// The target of JSON: none, standard output ("-", instead of text), or a file in addition to the text.
class JsonOutput {
 public:
  bool replaces_text() const { return requested && (path.empty() || path == "-"); }

  /// Writes `value` as one line (JSON Lines). Throws MachineError if the file cannot be written.
  void write(const Json& value);

  bool requested = false;
  std::string path;

 private:
  bool started_ = false;
};

/// Shows "NAME  37 %" on standard error during a long operation, if standard error is a terminal.
class Progress {
 public:
  Progress(std::string what, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void expect(int64_t total) { total_ = total; }
  void advance_to(int64_t done);

 private:
  std::string what_;
  int64_t total_;
  int shown_percent_ = -1;
  bool visible_;
};

}  // namespace gdpa::tool
