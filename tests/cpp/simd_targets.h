// Runs a test once for every instruction set that the library was compiled for and this processor has.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "hwy/targets.h"

namespace gdpa::testing {

/// For suites that are instantiated with all_simd_targets(); dispatch goes to the parameter's target meanwhile.
class OnEveryTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

inline auto all_simd_targets() { return ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()); }

inline std::string target_name(const ::testing::TestParamInfo<int64_t>& info) { return hwy::TargetName(info.param); }

}  // namespace gdpa::testing
