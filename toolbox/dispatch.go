package main

import (
	"fmt"
	"strings"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/host"
	"warmcell/toolbox/internal/shell"
)

// dispatch runs the command that argv[0] names.
func dispatch(c *core.Ctx, argv []string) int {
	if len(argv) == 0 {
		return 127
	}
	if argv[0] == "toolbox" || argv[0] == "busybox" {
		return list(c, argv[1:])
	}
	return shell.RunArgv(c, argv)
}

// list prints the names that this module answers to.
func list(c *core.Ctx, args []string) int {
	if len(args) == 1 && args[0] == "--list" {
		fmt.Fprintln(c.Stdout, strings.Join(core.Names(), "\n"))
		return 0
	}
	if len(args) == 1 && args[0] == "--list-host" {
		fmt.Fprintln(c.Stdout, strings.Join(host.Commands(), "\n"))
		return 0
	}
	fmt.Fprintln(c.Stdout, "usage: toolbox --list | --list-host")
	return 2
}
