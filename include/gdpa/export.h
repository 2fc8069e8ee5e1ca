// GDPA_API marks the exported symbols of libgdpa. All other symbols are hidden.
#pragma once

#define GDPA_API __attribute__((visibility("default")))
