// The fixed-width integers for the host and for NVRTC, which has no <cstdint>. Like every header that device code
// includes, this header includes no standard headers in device code.
#pragma once

#ifdef __CUDACC_RTC__
using int32_t = int;
using int64_t = long;
#else
#include <cstdint>
#endif

#ifdef __CUDACC__
#define GDPA_HOST_DEVICE __host__ __device__
#else
#define GDPA_HOST_DEVICE
#endif
