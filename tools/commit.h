// The commit that the program was built from, for --version and for the rows of the benchmark.
#pragma once

namespace gdpa::tool {

const char* commit();

}  // namespace gdpa::tool
