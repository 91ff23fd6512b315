module warmcell/toolbox

go 1.26.0

require (
	github.com/dlclark/regexp2 v1.12.0
	mvdan.cc/sh/v3 v3.14.1
)

require (
	github.com/benhoyt/goawk v1.31.0 // indirect
	github.com/itchyny/gojq v0.12.19 // indirect
	github.com/itchyny/timefmt-go v0.1.8 // indirect
)
