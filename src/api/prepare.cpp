// prepare_mask: checks the calls that a mask is prepared for, and passes them to the CUDA backend.
#include "gdpa/prepared_mask.h"

#include <fmt/format.h>

#include <vector>

#include "api/checks.h"
#include "api/message.h"
#include "gpu/backend.h"
#include "plan/prepared_tiles.h"

namespace gdpa {
namespace {

/// The calls whose kernels may have different tiles: forward, backward with all wanted gradients, with dQ alone, and
/// without dQ.
std::vector<CheckedCall> calls_of(const Attention& attention, const PrepareOptions& options, bool needs_data) {
  if (!attention.mask_expression) {
    api::refuse("prepare_mask", "a mask expression", "none", "set mask_expression; a window needs no preparation");
  }
  Attention unprepared = attention;
  unprepared.prepared_mask = std::nullopt;
  std::vector<CheckedCall> calls;
  const auto add = [&](Direction direction, const WantedGradients& wanted) {
    calls.push_back(api::check_plan(unprepared, direction, false, wanted, needs_data));
  };
  add(Direction::forward, {});
  if (!options.backward || attention.block_table) return calls;
  add(Direction::backward, options.wanted);
  const WantedGradients& wanted = options.wanted;
  if (wanted.query) add(Direction::backward, {true, false, false, 0});
  if (wanted.key || wanted.value) add(Direction::backward, {false, wanted.key, wanted.value, 0});
  return calls;
}

bool is_on_cpu(const std::vector<CheckedCall>& calls) { return calls.front().problem.device.kind == DeviceKind::cpu; }

gpu::MaskPreparation preparation_of(const Attention& attention, const std::vector<CheckedCall>& calls) {
  return {calls, {attention.activation.function(), &attention.mask_expression->function()}};
}

}  // namespace

int64_t prepared_mask_bytes(const Attention& attention, const PrepareOptions& options) {
  const auto calls = calls_of(attention, options, false);
  return is_on_cpu(calls) ? 0 : preparation_of(attention, calls).tiles().bytes;
}

PreparedMask prepare_mask(const Attention& attention, void* data, int64_t bytes, const PrepareOptions& options) {
  const auto calls = calls_of(attention, options, true);
  if (is_on_cpu(calls)) {
    plan::PreparedTiles tiles;
    tiles.call = plan::ListedCall::of(calls.front().problem, attention.mask_expression->function().identity());
    return {nullptr, 0, tiles.text()};
  }
  const gpu::MaskPreparation preparation = preparation_of(attention, calls);
  const plan::PreparedTiles& tiles = preparation.tiles();
  if (data == nullptr || bytes < tiles.bytes) {
    api::refuse("prepare_mask", fmt::format("{} bytes of device memory", tiles.bytes),
                data == nullptr ? "a null pointer" : fmt::format("{}", bytes),
                "ask prepared_mask_bytes() with the same arguments");
  }
  if (reinterpret_cast<std::uintptr_t>(data) % Workspace::alignment != 0) {
    api::refuse("prepare_mask", fmt::format("an address that is a multiple of {} bytes", Workspace::alignment),
                "another one", "pass the address that the device's allocator returned");
  }
  preparation.run(data, attention.stream);
  return {data, tiles.bytes, tiles.text()};
}

}  // namespace gdpa
