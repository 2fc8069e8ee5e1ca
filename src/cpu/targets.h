// The instruction sets that Highway compiles the vectorised loops for: AVX2 and AVX-512. The products need AVX2 too.
// Include this file before Highway.
#pragma once

#define HWY_BASELINE_TARGETS HWY_AVX2
