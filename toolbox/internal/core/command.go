// Package core holds what every command shares: its context, output streams, option parsing, file access and GNU-style error texts.
package core

import (
	"context"
	"fmt"
	"io"
	"sort"
)

// Func is one command: it reads c.Args, c.Stdin and files, writes c.Out and c.Stderr, and returns its exit status.
type Func func(c *Ctx) int

// Command is an entry of the registry.
type Command struct {
	Name    string
	Summary string // one line, shown by --help
	Usage   string // synopsis and options, shown by --help
	Run     Func
	RawHelp bool // the command wants to see --help itself (echo, test, true, false, sh)
}

var registry = map[string]*Command{}

// Register adds commands; called from init functions only, so that the snapshot holds the finished table.
func Register(commands ...*Command) {
	for _, command := range commands {
		registry[command.Name] = command
	}
}

// Lookup returns the command of that name, or nil.
func Lookup(name string) *Command { return registry[name] }

// Names returns all command names in order.
func Names() []string {
	names := make([]string, 0, len(registry))
	for name := range registry {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Ctx is the world of one running command.
type Ctx struct {
	context.Context
	Name   string
	Args   []string // without the command's own name
	Env    []string
	Dir    string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Out    *Out
	noted  int
	FDs    map[int]any // open descriptors above 2, for /dev/fd/N
	// Exec runs another command in the same shell environment (functions excluded), for xargs, env, find -exec and the like.
	Exec func(c *Ctx, argv []string) int
}

// Getenv returns the value of an environment variable, or "".
func (c *Ctx) Getenv(name string) string {
	value, _ := c.LookupEnv(name)
	return value
}

// LookupEnv returns the value of an environment variable and whether it is set.
func (c *Ctx) LookupEnv(name string) (string, bool) {
	for i := len(c.Env) - 1; i >= 0; i-- {
		entry := c.Env[i]
		if len(entry) > len(name) && entry[len(name)] == '=' && entry[:len(name)] == name {
			return entry[len(name)+1:], true
		}
	}
	return "", false
}

// Errorf writes "name: message" to standard error.
func (c *Ctx) Errorf(format string, args ...any) {
	c.Out.Flush()
	fmt.Fprintf(c.Stderr, "%s: %s\n", c.Name, fmt.Sprintf(format, args...))
}

// Fail is Errorf followed by the exit status, for use in return statements.
func (c *Ctx) Fail(code int, format string, args ...any) int {
	c.Errorf(format, args...)
	return code
}

// Usage reports a usage error in the way of GNU tools.
func (c *Ctx) Usage(code int, format string, args ...any) int {
	c.Errorf(format, args...)
	fmt.Fprintf(c.Stderr, "Try '%s --help' for more information.\n", c.Name)
	return code
}

// Child returns a copy of the context with other streams sharing nothing but the environment.
func (c *Ctx) Child(stdin io.Reader, stdout, stderr io.Writer) *Ctx {
	child := *c
	child.Stdin, child.Stdout, child.Stderr = stdin, stdout, stderr
	child.Out = NewOut(stdout)
	return &child
}

// Invoke runs a registered command, answers --help, flushes its output and turns a broken pipe or a kill into its exit status.
func Invoke(command *Command, c *Ctx) (code int) {
	c.Name = command.Name
	c.Out = NewOut(c.Stdout)
	defer func() {
		if reason := recover(); reason != nil {
			end, ok := reason.(*Death)
			if !ok {
				c.Errorf("internal error: %v", reason)
				code = 125
				return
			}
			code = end.Code
		}
	}()
	if !command.RawHelp && len(c.Args) > 0 && c.Args[0] == "--help" {
		fmt.Fprintf(c.Out, "Usage: %s\n%s\n", command.Usage, command.Summary)
		c.Out.Flush()
		return 0
	}
	code = command.Run(c)
	c.Out.Flush()
	return code
}

// Death ends a command from the inside, as a signal would.
type Death struct{ Code int }

var (
	brokenPipe = &Death{Code: 141}
	killed     = &Death{Code: 143}
)

// Check ends the command when its context was cancelled; long loops call it.
func (c *Ctx) Check() {
	if c.Context != nil && c.Context.Err() != nil {
		panic(killed)
	}
}

// SetCode notes a failure that should not stop the work; Code returns the highest noted.
func (c *Ctx) SetCode(code int) { c.noted = max(c.noted, code) }

// Code returns what SetCode noted.
func (c *Ctx) Code() int { return c.noted }
