// The version of gdpa: the one place that says it; CMake and the Python package read this line.
#pragma once

#define GDPA_VERSION "0.1.0"
