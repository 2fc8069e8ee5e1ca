// Runs tests on every instruction set that the library was compiled for and this processor has.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "cpu/targets.h"
#include "hwy/targets.h"

namespace gdpa::testing {

/// While it lives, run-time dispatch goes to one target.
class WithTarget {
 public:
  explicit WithTarget(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~WithTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  WithTarget(const WithTarget&) = delete;
  WithTarget& operator=(const WithTarget&) = delete;
};

/// For suites that are instantiated with all_simd_targets(); dispatch goes to the parameter's target.
class OnEveryTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { with_target_.emplace(GetParam()); }
  void TearDown() override { with_target_.reset(); }

 private:
  std::optional<WithTarget> with_target_;
};

inline auto all_simd_targets() { return ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()); }

inline std::string target_name(const ::testing::TestParamInfo<int64_t>& info) { return hwy::TargetName(info.param); }

}  // namespace gdpa::testing
