// The version of gdpa. CMake and the Python package read this line.
#pragma once

#define GDPA_VERSION "0.2.0"
