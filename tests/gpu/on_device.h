// OnDevice: the tensors of a test in the memory of the GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device.h"
#include "gdpa/attention.h"
#include "strided.h"

namespace gdpa::test {

/// A problem and its results in the memory of the GPU.
class OnDevice {
 public:
  OnDevice(const Gpu& gpu, std::size_t guard) : gpu_(gpu), guard_(guard) {}

  TensorView input(const Strided& host) { return moved(host.view(), take(host)); }
  MutableTensorView output(Strided& host) { return moved(host.mutable_view(), take(host)); }

  Workspace workspace(int64_t bytes) {
    if (bytes == 0) return {};
    const std::vector<std::byte> poison(static_cast<std::size_t>(bytes), std::byte{0xff});
    copies_.push_back({nullptr, std::make_unique<GuardedMemory>(gpu_, poison, guard_)});
    return {copies_.back().memory->data(), bytes};
  }

  /// Copies results to the host. Checks that inputs and guards have not changed.
  void fetch(const std::vector<Strided*>& results) {
    for (Copy& copy : copies_) {
      copy.memory->fetch();
      EXPECT_TRUE(copy.memory->guards_are_intact()) << "the call has written outside an operand";
      if (copy.host == nullptr) continue;
      const std::vector<std::byte> content = copy.memory->content();
      const auto result = std::find(results.begin(), results.end(), copy.host);
      if (result == results.end()) {
        EXPECT_EQ(content, copy.host->bytes()) << "the call has changed an input";
      } else {
        (*result)->bytes() = content;
      }
    }
  }

 private:
  struct Copy {
    const Strided* host;  ///< null for the workspace
    std::unique_ptr<GuardedMemory> memory;
  };

  /// The offset in bytes between the memory of the host and its copy on the GPU.
  std::uintptr_t take(const Strided& host) {
    copies_.push_back({&host, std::make_unique<GuardedMemory>(gpu_, host.bytes(), guard_)});
    return reinterpret_cast<std::uintptr_t>(copies_.back().memory->data()) -
           reinterpret_cast<std::uintptr_t>(host.bytes().data());
  }

  template <class View>
  static View moved(View view, std::uintptr_t distance) {
    view.data = reinterpret_cast<decltype(view.data)>(reinterpret_cast<std::uintptr_t>(view.data) + distance);
    view.device = {DeviceKind::cuda, 0};
    return view;
  }

  const Gpu& gpu_;
  std::size_t guard_;
  std::vector<Copy> copies_;
};

}  // namespace gdpa::test
