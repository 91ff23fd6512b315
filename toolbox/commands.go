package main

// Each package registers its commands when it is imported.
import (
	_ "sandkeep/toolbox/internal/archive"
	_ "sandkeep/toolbox/internal/awk"
	_ "sandkeep/toolbox/internal/calc"
	_ "sandkeep/toolbox/internal/files"
	_ "sandkeep/toolbox/internal/jq"
	_ "sandkeep/toolbox/internal/network"
	_ "sandkeep/toolbox/internal/search"
	_ "sandkeep/toolbox/internal/sed"
	_ "sandkeep/toolbox/internal/system"
	_ "sandkeep/toolbox/internal/text"
)
