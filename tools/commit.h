// The commit of this build, for --version and for the rows of the benchmark.
#pragma once

namespace gdpa::tool {

const char* commit();

}  // namespace gdpa::tool
