package undocumented

import _ "github.com/kiln-cache/kiln/env"
