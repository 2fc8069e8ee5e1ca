// Writes the report of `gdpa verify`: the machine, the table, the failures and the rates.
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

#include "command.h"
#include "commit.h"
#include "device.h"
#include "gdpa/system.h"
#include "verify.h"

namespace gdpa::tool {
namespace {

/// "Debian GNU/Linux 12 (bookworm), Linux 6.1.0".
std::string operating_system() {
  std::string name = "Linux";
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    const std::string key = "PRETTY_NAME=";
    if (line.rfind(key, 0) != 0) continue;
    name = line.substr(key.size());
    std::erase(name, '"');
  }
  utsname kernel{};
  return ::uname(&kernel) == 0 ? fmt::format("{}, {} {}", name, kernel.sysname, kernel.release) : name;
}

/// The variables of gdpa that are set, such as a limit of shared memory.
std::vector<std::string> variables() {
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string(*variable).rfind("GDPA_", 0) == 0) found.emplace_back(*variable);
  }
  return found;
}

Json machine(Device device) {
  const System system = inspect_system();
  Json json = {{"version", system.version}, {"commit", commit()}, {"compiler", system.compiler}};
  if (device.kind == DeviceKind::cuda) {
    const GpuDevice gpu = gpu_of(device);
    json["device"] = fmt::format("cuda:{}", device.index);
    json["gpu"] = gpu.name;
    json["compute_capability"] = fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor);
    json["multiprocessors"] = gpu.multiprocessors;
    json["memory_bytes"] = gpu.memory_bytes;
    for (const Component& component : system.components) {
      if (component.name == "CUDA driver") json["driver"] = component.version;
      if (component.name == "NVRTC") json["nvrtc"] = component.version;
    }
  } else {
    json["device"] = "cpu";
    json["targets"] = fmt::format("{}, {}", system.vector_target, system.product_target);
  }
  json["processor"] = system.processor;
  json["threads"] = system.threads;
  json["system"] = operating_system();
  json["environment"] = variables();
  return json;
}

std::string counts_text(const Row& row) {
  std::string text;
  for (const auto& [kind, count] : row.failures) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, kind);
  if (row.lacks_memory > 0) {
    text += fmt::format("{}{} without enough memory", text.empty() ? "" : ", ", row.lacks_memory);
  }
  return text;
}

std::string result_text(const Row& row) {
  const std::string text = counts_text(row);
  return text.empty() ? good("ok") : row.failures.empty() ? text : bad(text);
}

/// The first failures of each row. JSON has all.
std::string failures_text(const Verification& verification) {
  constexpr int most_of_a_row = 3;
  std::string text;
  for (const Row& row : verification.rows) {
    int shown = 0, others = 0;
    for (const Failure& failure : verification.failures) {
      if (failure.row != row.key) continue;
      if (++shown > most_of_a_row) {
        ++others;
        continue;
      }
      text += fmt::format("\n{} {} {}: {}\n  {}\n  repeat: {}\n", row.key.family, row.key.type, row.key.direction,
                          bad(failure.kind), failure.text, failure.command);
    }
    if (others > 0) {
      text += fmt::format("\n{} {} {}: {} more, see --json\n", row.key.family, row.key.type, row.key.direction, others);
    }
  }
  return text;
}

std::string rate_text(double tflops) { return tflops > 0 ? fmt::format("{:.4g}", tflops) : "-"; }

std::string share_text(double tflops, double product) {
  return tflops > 0 && product > 0 ? fmt::format("{:.2f}", tflops / product) : "-";
}

std::string rates_text(const Verification& verification) {
  std::vector<std::vector<std::string>> rows;
  std::string version, notes;
  for (const RateRow& rate : verification.rates) {
    rows.push_back({rate.problem, rate_text(rate.forward), rate_text(rate.backward), rate_text(rate.product),
                    share_text(rate.forward, rate.product), share_text(rate.backward, rate.product)});
    if (!rate.product_version.empty()) version = rate.product_version;
    const std::string note = fmt::format("{}\n", rate.note);
    if (!rate.note.empty() && notes.find(note) == std::string::npos) notes += note;
  }
  const bool is_gpu = verification.device.kind == DeviceKind::cuda;
  return fmt::format("\nTFLOP/s, medians; a matrix product by {} {} in the same process\n{}{}",
                     is_gpu ? "cuBLAS" : "libxsmm", is_gpu ? version : "",
                     table({"problem", "forward", "backward", "product", "share fwd", "share bwd"}, rows), notes);
}

std::string verdict(const Verification& verification) {
  int problems = 0;
  for (const Row& row : verification.rows) problems += row.problems;
  std::string text = verification.ok()
                         ? fmt::format("{}: {} checks", good("no failure"), problems)
                         : bad(fmt::format("{} of {} checks failed", verification.failures.size(), problems));
  if (verification.not_run > 0) {
    text += fmt::format("; {} problems were not computed, after hangs of others", verification.not_run);
  }
  if (!verification.lacks_memory.empty()) text += "; too little memory: " + verification.lacks_memory;
  if (!verification.ended_early.empty()) text += "; ended early: " + verification.ended_early;
  return text + "\n";
}

}  // namespace

Row& Verification::row(const RowKey& key) {
  const auto known = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.key == key; });
  if (known != rows.end()) return *known;
  rows.emplace_back().key = key;
  return rows.back();
}

std::string describe_machine(Device device) {
  const Json known = machine(device);
  const auto text = [&](const char* key) { return known.value(key, std::string("unknown")); };
  std::string lines =
      fmt::format("gdpa       {} (commit {}), built by {}\n", text("version"), text("commit"), text("compiler"));
  if (device.kind == DeviceKind::cuda) {
    lines += fmt::format("GPU        {}, compute capability {}, {} multiprocessors, {:.1f} GiB\n", text("gpu"),
                         text("compute_capability"), known["multiprocessors"].get<int>(),
                         known["memory_bytes"].get<double>() / (1 << 30));
    lines += fmt::format("driver     {}\nNVRTC      {}\n", text("driver"), text("nvrtc"));
  }
  lines += fmt::format("processor  {}, {} threads\n", text("processor"), known["threads"].get<int>());
  lines += fmt::format("system     {}\n", text("system"));
  for (const Json& variable : known["environment"])
    lines += fmt::format("variable   {}\n", variable.get<std::string>());
  return lines;
}

std::string report(const Verification& verification) {
  std::string text = fmt::format("gdpa verify --seed {} --problems {}\n", verification.seed, verification.problems) +
                     describe_machine(verification.device) + "\n";
  std::vector<std::vector<std::string>> rows;
  for (const Row& row : verification.rows) {
    rows.push_back({row.key.family, row.key.type, row.key.direction, std::to_string(row.problems),
                    row.worst_output.empty() ? "-" : fmt::format("{:.2f}", row.worst), row.worst_output,
                    result_text(row)});
  }
  text += table({"family", "type", "direction", "problems", "error/promise", "of", "result"}, rows);
  text += failures_text(verification);
  if (!verification.rates.empty()) text += rates_text(verification);
  return text + "\n" + verdict(verification);
}

Json to_json(const Verification& verification) {
  Json rows = Json::array(), failures = Json::array(), rates = Json::array();
  for (const Row& row : verification.rows) {
    rows.push_back({{"family", row.key.family},
                    {"type", row.key.type},
                    {"direction", row.key.direction},
                    {"problems", row.problems},
                    {"worst_error_by_promise", row.worst},
                    {"worst_output", row.worst_output},
                    {"failures", row.failures},
                    {"lacks_memory", row.lacks_memory}});
  }
  for (const Failure& failure : verification.failures) {
    failures.push_back({{"family", failure.row.family},
                        {"type", failure.row.type},
                        {"direction", failure.row.direction},
                        {"kind", failure.kind},
                        {"text", failure.text},
                        {"command", failure.command}});
  }
  for (const RateRow& rate : verification.rates) {
    rates.push_back({{"problem", rate.problem},
                     {"forward_tflops", rate.forward},
                     {"backward_tflops", rate.backward},
                     {"product_tflops", rate.product},
                     {"product_version", rate.product_version},
                     {"note", rate.note}});
  }
  return {{"seed", verification.seed},
          {"problems", verification.problems},
          {"machine", machine(verification.device)},
          {"rows", rows},
          {"failures", failures},
          {"rates", rates},
          {"not_run", verification.not_run},
          {"lacks_memory", verification.lacks_memory},
          {"ended_early", verification.ended_early},
          {"ok", verification.ok() && verification.is_complete()}};
}

}  // namespace gdpa::tool
