// Package system holds the commands about environment, time and processes.
package system

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/shell"
)

func init() {
	core.Register(
		&core.Command{Name: "env", Summary: "Run a program in a modified environment.", Usage: "env [-i] [-u NAME] [-C DIR] [-0] [NAME=VALUE]... [command [argument...]]", Run: env},
		&core.Command{Name: "printenv", Summary: "Print environment variables.", Usage: "printenv [-0] [name...]", Run: printenv},
		&core.Command{Name: "sleep", Summary: "Wait.", Usage: "sleep NUMBER[smhd]...", Run: sleep},
		&core.Command{Name: "timeout", Summary: "Run a command with a time limit.", Usage: "timeout [-s SIGNAL] [-k DURATION] [--preserve-status] DURATION command [argument...]", Run: timeout},
		&core.Command{Name: "watch", Summary: "Run a command repeatedly.", Usage: "watch [-n SECONDS] [-t] [-g] command", Run: watch},
		&core.Command{Name: "nohup", Summary: "Run a command.", Usage: "nohup command [argument...]", Run: prefixed},
		&core.Command{Name: "nice", Summary: "Run a command.", Usage: "nice [-n N] command [argument...]", Run: prefixed},
		&core.Command{Name: "stdbuf", Summary: "Run a command.", Usage: "stdbuf [-i MODE] [-o MODE] [-e MODE] command [argument...]", Run: prefixed},
		&core.Command{Name: "time", Summary: "Run a command and report its time.", Usage: "time command [argument...]", Run: timed},
		&core.Command{Name: "which", Summary: "Locate a command.", Usage: "which [-as] name...", Run: which},
		&core.Command{Name: "true", Summary: "Succeed.", Usage: "true", Run: func(*core.Ctx) int { return 0 }},
		&core.Command{Name: "false", Summary: "Fail.", Usage: "false", Run: func(*core.Ctx) int { return 1 }},
	)
}

func env(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "iu:C:0S:v", Long: "ignore-environment/i unset=/u chdir=/C null/0 split-string=/S", Stop: true}.Parse(c)
	if !ok {
		return 125
	}
	values := append([]string(nil), c.Env...)
	end := "\n"
	if len(operands) > 0 && operands[0] == "-" {
		values, operands = nil, operands[1:]
	}
	for _, option := range options {
		switch option.Name {
		case "i":
			values = nil
		case "u":
			values = without(values, option.Value)
		case "C":
			c.Dir = c.Path(option.Value)
			if info, err := core.Stat(c.Dir); err != nil || !info.IsDir() {
				return c.Fail(125, "cannot change directory to '%s': No such file or directory", option.Value)
			}
		case "0":
			end = "\x00"
		case "S":
			operands = append(strings.Fields(option.Value), operands...)
		}
	}
	for len(operands) > 0 && strings.Contains(operands[0], "=") {
		name, _, _ := strings.Cut(operands[0], "=")
		values = append(without(values, name), operands[0])
		operands = operands[1:]
	}
	if len(operands) == 0 {
		for _, entry := range values {
			if !strings.HasPrefix(entry, "BASH_FUNC_") {
				c.Out.WriteString(entry + end)
			}
		}
		return 0
	}
	child := c.Child(c.Stdin, c.Stdout, c.Stderr)
	child.Env = values
	if _, hasPath := child.LookupEnv("PATH"); !hasPath {
		child.Env = append(child.Env, "PATH="+c.Getenv("PATH"))
	}
	return c.Exec(child, operands)
}

func without(values []string, name string) []string {
	var kept []string
	for _, entry := range values {
		if !strings.HasPrefix(entry, name+"=") {
			kept = append(kept, entry)
		}
	}
	return kept
}

func printenv(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "0", Long: "null/0"}.Parse(c)
	if !ok {
		return 2
	}
	end := "\n"
	if len(options) > 0 {
		end = "\x00"
	}
	if len(names) == 0 {
		for _, entry := range c.Env {
			c.Out.WriteString(entry + end)
		}
		return 0
	}
	status := 0
	for _, name := range names {
		value, found := c.LookupEnv(name)
		if !found {
			status = 1
			continue
		}
		c.Out.WriteString(value + end)
	}
	return status
}

func duration(text string) (time.Duration, bool) {
	unit := time.Second
	if text == "infinity" || text == "inf" {
		return time.Duration(1<<62 - 1), true
	}
	if n := len(text); n > 0 {
		if factor, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[text[n-1]]; ok {
			unit, text = factor, text[:n-1]
		}
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil || number < 0 {
		return 0, false
	}
	return time.Duration(number * float64(unit)), true
}

func sleep(c *core.Ctx) int {
	if len(c.Args) == 0 {
		return c.Usage(1, "missing operand")
	}
	total := time.Duration(0)
	for _, arg := range c.Args {
		one, ok := duration(arg)
		if !ok {
			return c.Usage(1, "invalid time interval ‘%s’", arg)
		}
		total += one
	}
	pause(c, total)
	return 0
}

// pause waits, and ends the command when it is killed meanwhile.
func pause(c *core.Ctx, total time.Duration) {
	timer := time.NewTimer(total)
	defer timer.Stop()
	var done <-chan struct{}
	if c.Context != nil {
		done = c.Context.Done()
	}
	select {
	case <-timer.C:
	case <-done:
		c.Check()
	}
}

func timeout(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "s:k:v", Long: "signal=/s kill-after=/k preserve-status foreground verbose/v", Stop: true}.Parse(c)
	if !ok {
		return 125
	}
	preserve, killed := false, false
	for _, option := range options {
		preserve = preserve || option.Name == "preserve-status"
		killed = killed || option.Name == "s" && (option.Value == "KILL" || option.Value == "9" || option.Value == "SIGKILL")
	}
	if len(operands) < 2 {
		return c.Usage(125, "missing operand")
	}
	limit, ok := duration(operands[0])
	if !ok {
		return c.Usage(125, "invalid time interval ‘%s’", operands[0])
	}
	parent := c.Context
	if parent == nil {
		parent = context.Background()
	}
	if limit == 0 {
		return c.Exec(c.Child(c.Stdin, c.Stdout, c.Stderr), operands[1:])
	}
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	child := c.Child(c.Stdin, c.Stdout, c.Stderr)
	child.Context = ctx
	finished := make(chan int, 1)
	go func() {
		defer func() {
			if recover() != nil {
				finished <- 143
			}
		}()
		finished <- c.Exec(child, operands[1:])
	}()
	select {
	case code := <-finished:
		if ctx.Err() == nil || parent.Err() != nil {
			return code
		}
	case <-ctx.Done():
	}
	switch {
	case parent.Err() != nil:
		c.Check()
	case killed:
		return 137
	case preserve:
		return 143
	}
	return 124
}

func watch(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "n:tgdecx", Long: "interval=/n no-title/t chgexit/g differences?/d errexit/e exec/x color/c", Stop: true}.Parse(c)
	if !ok {
		return 1
	}
	interval, title, untilChange := 2*time.Second, true, false
	for _, option := range options {
		switch option.Name {
		case "n":
			if interval, ok = duration(option.Value); !ok {
				return c.Fail(1, "failed to parse argument: '%s'", option.Value)
			}
		case "t":
			title = false
		case "g":
			untilChange = true
		}
	}
	if len(operands) == 0 {
		return c.Usage(1, "missing command")
	}
	previous, first := "", true
	for {
		var collected strings.Builder
		c.Exec(c.Child(core.Null, &collected, &collected), []string{"sh", "-c", strings.Join(operands, " ")})
		if title {
			fmt.Fprintf(c.Out, "Every %.1fs: %s\n\n", interval.Seconds(), strings.Join(operands, " "))
		}
		c.Out.WriteString(collected.String())
		c.Out.Flush()
		if untilChange && !first && collected.String() != previous {
			return 0
		}
		previous, first = collected.String(), false
		pause(c, interval)
	}
}

// prefixed runs the command behind nohup, nice and stdbuf, which mean nothing here.
func prefixed(c *core.Ctx) int {
	args := c.Args
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if len(args[0]) == 2 && len(args) > 1 {
			args = args[1:]
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return c.Usage(125, "missing operand")
	}
	return c.Exec(c.Child(c.Stdin, c.Stdout, c.Stderr), args)
}

func timed(c *core.Ctx) int {
	args := c.Args
	if len(args) > 0 && args[0] == "-p" {
		args = args[1:]
	}
	if len(args) == 0 {
		return c.Usage(125, "missing operand")
	}
	start := time.Now()
	code := c.Exec(c.Child(c.Stdin, c.Stdout, c.Stderr), args)
	fmt.Fprintf(c.Stderr, "real %.2f\nuser 0.00\nsys 0.00\n", time.Since(start).Seconds())
	return code
}

func which(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "as", Long: "all/a"}.Parse(c)
	if !ok {
		return 2
	}
	silent := false
	for _, option := range options {
		silent = silent || option.Name == "s"
	}
	status := 0
	for _, name := range names {
		found := shell.LookPath(c, name)
		if found == "" {
			status = 1
			continue
		}
		if !silent {
			c.Out.WriteString(found + "\n")
		}
	}
	return status
}
