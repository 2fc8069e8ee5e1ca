// What the commands write: text for people, JSON for programs, colour and progress on a terminal only.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace gdpa::tool {

using Json = nlohmann::ordered_json;

/// `text` in green or red where standard output is a terminal and NO_COLOR is not set; else as it is.
std::string good(const std::string& text);
std::string bad(const std::string& text);

/// Rows as columns of equal width, the first column and those of text to the left, numbers to the right.
std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

/// Where JSON goes: nowhere, to standard output ("-", in place of text), or to a file beside the text.
class JsonOutput {
 public:
  bool replaces_text() const { return requested && (path.empty() || path == "-"); }

  /// Writes `value` on one line per call (JSON Lines). Throws MachineError when the file cannot be written.
  void write(const Json& value);

  bool requested = false;
  std::string path;

 private:
  bool started_ = false;
};

/// "What  37 %" on standard error while something long is going on, if that is a terminal.
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
