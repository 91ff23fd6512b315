//go:build !wasip1

// The native build exists for quick tests of the command code; the product is the WASM module.
package main

import (
	"os"
	"path/filepath"

	"warmcell/toolbox/internal/core"
)

func main() {
	dir, _ := os.Getwd()
	if env := os.Getenv("PWD"); env != "" {
		dir = env
	}
	argv := os.Args
	if filepath.Base(argv[0]) == "toolbox" && len(argv) > 1 {
		argv = argv[1:]
	}
	c := &core.Ctx{Env: os.Environ(), Dir: dir, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	os.Exit(dispatch(c, argv))
}
