// The toolbox: a shell and its commands in one WASM reactor. The host calls run once per fresh instance.
package main

import (
	"os"
	"runtime/debug"
	"sort"
	"strings"
	_ "unsafe" // for go:linkname

	"warmcell/toolbox/internal/core"
)

//go:linkname startingStackSize runtime.startingStackSize
var startingStackSize uint32

func init() {
	// Collecting costs more than memory in short runs; the limit keeps long ones well inside an instance of 512 MB.
	debug.SetGCPercent(800)
	debug.SetMemoryLimit(300 << 20)
	debug.SetMaxStack(128 << 20)
	// A stage of a pipeline outgrows the usual 2 KiB five times, and each time its stack is copied.
	startingStackSize = 32 << 10
}

// main is never called: the module is a reactor.
func main() {}

//go:wasmexport run
func run() (code int32) {
	refresh()
	argv, env := arguments(), environment()
	core.Mounts = mountNames()
	dir := "/"
	if len(core.Mounts) > 0 {
		dir = core.Mounts[0]
	}
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PWD="); ok && strings.HasPrefix(value, "/") {
			dir = value
		}
	}
	c := &core.Ctx{Env: env, Dir: dir, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	return int32(dispatch(c, argv))
}

func mountNames() []string {
	var names []string
	for _, mount := range preopens {
		names = append(names, mount.name)
	}
	sort.Strings(names)
	return names
}
