// The command line's memory on a GPU: a copy to the host waits for the computation.
#include "device_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "fake_driver.h"

extern "C" int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                              void**, void**);

namespace gdpa::tool {
namespace {

TEST(DeviceMemory, ACopyFromItWaitsForWhatIsStillComputed) {
  const std::vector<float> numbers = {1, 2, 3};
  DeviceMemory memory(0, numbers.size() * sizeof(float));
  memory.upload(numbers.data());
  const DeviceStream stream(0);
  cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, stream.handle(), nullptr, nullptr);
  std::vector<float> copied(numbers.size());
  memory.download(copied.data());
  EXPECT_EQ(copied, numbers);
}

}  // namespace
}  // namespace gdpa::tool
