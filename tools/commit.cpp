// The commit has a separate source file, so that a new commit causes only one file to be compiled again.
#include "commit.h"

#include "commit_embedded.h"

namespace gdpa::tool {

const char* commit() { return GDPA_COMMIT; }

}  // namespace gdpa::tool
