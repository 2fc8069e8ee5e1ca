// Colour, columns, JSON lines and progress for the commands.
#include "terminal.h"

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "command.h"

namespace gdpa::tool {
namespace {

std::string coloured(const std::string& text, int colour) {
  static const bool allowed = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  return allowed ? fmt::format("\x1b[{}m{}\x1b[0m", colour, text) : text;
}

bool looks_like_a_number(const std::string& text) {
  return !text.empty() && (text[0] == '-' || text[0] == '.' || (text[0] >= '0' && text[0] <= '9'));
}

}  // namespace

std::string good(const std::string& text) { return coloured(text, 32); }
std::string bad(const std::string& text) { return coloured(text, 31); }

std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  std::vector<bool> to_the_right;
  for (std::size_t column = 0; column < header.size(); ++column) {
    std::size_t width = header[column].size();
    bool numbers = !rows.empty();
    for (const auto& row : rows) {
      width = std::max(width, row[column].size());
      numbers = numbers && looks_like_a_number(row[column]);
    }
    widths.push_back(width);
    to_the_right.push_back(numbers && column > 0);
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t column = 0; column < cells.size(); ++column) {
      const char* const separator = column == 0 ? "" : "  ";
      line += to_the_right[column] ? fmt::format("{}{:>{}}", separator, cells[column], widths[column])
                                   : fmt::format("{}{:<{}}", separator, cells[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append(header);
  for (const auto& row : rows) append(row);
  return text;
}

void JsonOutput::write(const Json& value) {
  const std::string line = value.dump() + "\n";
  if (replaces_text()) {
    std::fputs(line.c_str(), stdout);
    return;
  }
  std::ofstream file(path, started_ ? std::ios::app : std::ios::trunc);
  file << line << std::flush;
  if (!file) throw MachineError(fmt::format("--json {}: the file cannot be written", path));
  started_ = true;
}

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)), total_(total), visible_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (visible_ && shown_percent_ >= 0) std::fputs("\r\x1b[K", stderr);
}

void Progress::advance_to(int64_t done) {
  if (!visible_ || total_ <= 0) return;
  const int percent = static_cast<int>(100 * done / total_);
  if (percent == shown_percent_) return;
  shown_percent_ = percent;
  fmt::print(stderr, "\r\x1b[K{}  {} %", what_, percent);
  std::fflush(stderr);
}

}  // namespace gdpa::tool
