package main

// Each package registers its commands when it is imported.
import (
	_ "warmcell/toolbox/internal/archive"
	_ "warmcell/toolbox/internal/awk"
	_ "warmcell/toolbox/internal/calc"
	_ "warmcell/toolbox/internal/files"
	_ "warmcell/toolbox/internal/jq"
	_ "warmcell/toolbox/internal/network"
	_ "warmcell/toolbox/internal/search"
	_ "warmcell/toolbox/internal/sed"
	_ "warmcell/toolbox/internal/system"
	_ "warmcell/toolbox/internal/text"
)
