// GDPA_API marks what libgdpa shows to its users; everything else is hidden.
#pragma once

#define GDPA_API __attribute__((visibility("default")))
