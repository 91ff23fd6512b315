module sandkeep/toolbox

go 1.26.0

require (
	github.com/dlclark/regexp2 v1.12.0
	mvdan.cc/sh/v3 v3.14.1
)
