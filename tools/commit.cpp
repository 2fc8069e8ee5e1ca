// Holds the commit in a file of its own: it is all that is compiled again when the commit changes.
#include "commit.h"

#include "commit_embedded.h"

namespace gdpa::tool {

const char* commit() { return GDPA_COMMIT; }

}  // namespace gdpa::tool
