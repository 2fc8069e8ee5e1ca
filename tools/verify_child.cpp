// gdpa verify-child: computes the problems that `gdpa verify` sends, one JSON object a line, and answers with lines.
//
//     {"task": "compile", "problems": [[...], ...]}     compiles their kernels, many at a time
//     {"task": "check", "problem": [...]}               computes a problem and checks it
//     {"task": "rate", "problem": [...]}                times a problem, and a matrix product
//
// A problem is a list of options of `gdpa run`. The answer is any number of {"at": STEP}, and then {"result": ...} or
// {"error": TEXT, "kind": KIND}. STEP names what the process does next, until its next line. KIND is memory if the
// operands do not fit, machine if no problem can be set up, and error otherwise.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "check.h"
#include "child.h"
#include "command.h"
#include "cublas.h"
#include "gdpa/gdpa.h"
#include "gdpa/system.h"
#include "measure.h"
#include "problem.h"
#include "rates.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

/// The lines of the parent, and the answers.
class Lines {
 public:
  Lines() : file_(::fdopen(child_lines, "r+")) {
    if (file_ == nullptr) throw UsageError("verify-child is a part of gdpa verify: use gdpa verify");
  }

  /// Returns whether there is another request.
  bool read(Json& request) {
    std::string line;
    for (int c = std::fgetc(file_); c != EOF && c != '\n'; c = std::fgetc(file_)) line += static_cast<char>(c);
    if (line.empty()) return false;
    request = Json::parse(line);
    return true;
  }

  /// Several threads may call write().
  void write(const Json& answer) {
    const std::lock_guard lock(mutex_);
    const std::string line = answer.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t count = ::write(child_lines, line.data() + done, line.size() - done);
      if (count <= 0) return;  // the parent has ended
      done += static_cast<std::size_t>(count);
    }
  }

  void at(const std::string& step) {
    write({{"at", step}});
    step_ = step;
  }
  bool is_setting_up() const { return step_ == setting_up; }

  static constexpr const char* setting_up = "setting up";

 private:
  std::FILE* file_;
  std::mutex mutex_;
  std::string step_;
};

/// What the kernels of a plan belong to: "hopper", "portable", or "cpu".
std::string family_of(const Plan& plan) { return plan.kernel.substr(0, plan.kernel.find_first_of(":.")); }

/// Compiles the kernels of all problems into the cache. An error is found again when its problem is computed.
Json compile_all(const Json& problems, Lines& lines) {
  lines.at("compiling");
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t n = next++; n < problems.size(); n = next++) {
      try {
        const Problem problem = resolve(parse_problem(problems[n]));
        const Workload shapes(problem, Contents::none, 0);
        for (const Direction direction : {Direction::forward, Direction::backward}) {
          compile(shapes.attention(), direction,
                  {.lengths = Lengths::these, .wanted = wanted_gradients("qkv", problem)});
        }
      } catch (const std::exception&) {
      }
      lines.write({{"at", fmt::format("compiled {}", n)}});
    }
  };
  std::vector<std::thread> crew;
  constexpr int at_a_time = 8;
  for (int n = 0; n < at_a_time; ++n) crew.emplace_back(work);
  for (std::thread& thread : crew) thread.join();
  return Json::object();
}

Json check(const ProblemOptions& options, Lines& lines) {
  lines.at(Lines::setting_up);
  const Problem problem = resolve(options);
  Workload workload(problem, Contents::random, options.seed);
  Json result = Json::array();
  const Checked checked = compute_and_check(problem, workload, [&](const std::string& step) { lines.at(step); });
  for (const CheckedDirection& direction : checked) {
    Json outputs = Json::object();
    for (const CheckedOutput& output : direction.outputs) {
      outputs[output.name] = to_json(output);
      outputs[output.name]["complaint"] = output.complaint();
    }
    result.push_back({{"direction", name_of(direction.direction)},
                      {"family", family_of(direction.plan)},
                      {"kernel", direction.plan.kernel},
                      {"outputs", outputs},
                      {"changed_inputs", direction.changed_inputs},
                      {"ok", direction.ok()}});
  }
  return result;
}

ProductRate product_rate(const Problem& problem, double seconds) {
  if (problem.device.kind == DeviceKind::cuda) return cublas_rate(problem.device, problem.dtype, seconds);
  return {rates_of(problem.device, problem.dtype, problem.threads).product_flops, "libxsmm", ""};
}

Json rate(const ProblemOptions& options, Lines& lines) {
  constexpr double seconds = 0.3;
  lines.at(Lines::setting_up);
  const Problem problem = resolve(options);
  Json result;
  {
    Workload workload(problem, Contents::random, options.seed);
    const double flops = forward_flops(problem);
    const auto measure = [&](const char* direction, double of_flops, const std::function<void()>& work) {
      lines.at(fmt::format("compiling {}", direction));
      work();
      workload.output.contents();  // waits
      lines.at(direction);
      const double time = median(workload.time(work, seconds));
      result[direction] = {{"ms", time * 1e3}, {"tflops", of_flops / time * 1e-12}};
    };
    measure("forward", flops, [&] { workload.run_forward(); });
    measure("backward", 2.5 * flops, [&] { workload.run_backward(); });
  }
  lines.at("matrix product");
  const ProductRate product = product_rate(problem, seconds);
  result["product"] = {{"tflops", product.flops * 1e-12}, {"version", product.version}, {"problem", product.problem}};
  return result;
}

Json answer_to(const Json& request, Lines& lines) {
  const std::string task = request["task"];
  if (task == "compile") return compile_all(request["problems"], lines);
  const ProblemOptions options = parse_problem(request["problem"]);
  return task == "check" ? check(options, lines) : rate(options, lines);
}

int execute() {
  end_with_parent();
  Lines lines;
  const auto fail = [&](const char* what, const char* kind) { lines.write({{"error", what}, {"kind", kind}}); };
  for (Json request; lines.read(request);) {
    try {
      lines.write({{"result", answer_to(request, lines)}});
    } catch (const OutOfMemory& error) {
      fail(error.what(), "memory");
    } catch (const std::bad_alloc&) {
      fail("out of memory", "memory");
    } catch (const MachineError& error) {
      fail(error.what(), lines.is_setting_up() ? "machine" : "error");
    } catch (const std::exception& error) {
      fail(error.what(), "error");
    }
  }
  return success;
}

}  // namespace

Command add_verify_child(CLI::App& app) {
  CLI::App* const parser = app.add_subcommand("verify-child", "");
  parser->group("");  // not in the help
  return {parser, [] { return execute(); }};
}

}  // namespace gdpa::tool
