package shell

import (
	"fmt"
	"io"
	"os"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	const usage = "bash [-abefhkmnptuvxBCHP] [-o option] [-c string | file | -s] [argument...]"
	core.Register(
		&core.Command{Name: "sh", Summary: "Run a shell script.", Usage: strings.Replace(usage, "bash", "sh", 1), Run: shellCommand, RawHelp: true},
		&core.Command{Name: "bash", Summary: "Run a bash script.", Usage: usage, Run: shellCommand, RawHelp: true},
		&core.Command{Name: "echo", Summary: "Write arguments to standard output.", Usage: "echo [-neE] [argument...]", Run: echoCommand, RawHelp: true},
		&core.Command{Name: "printf", Summary: "Format and print arguments.", Usage: "printf format [argument...]", Run: printfCommand},
		&core.Command{Name: "test", Summary: "Evaluate a conditional expression.", Usage: "test expression", Run: testCommand, RawHelp: true},
		&core.Command{Name: "[", Summary: "Evaluate a conditional expression.", Usage: "[ expression ]", Run: testCommand, RawHelp: true},
		&core.Command{Name: "kill", Summary: "Send a signal to a job of the current shell.", Usage: "kill [-s signal | -signal] pid...", Run: killCommand},
	)
}

func killCommand(c *core.Ctx) int {
	s := New(c, "kill")
	defer s.close()
	return killBuiltin(s, append([]string{"kill"}, c.Args...))
}

func echoCommand(c *core.Ctx) int {
	if len(c.Args) == 1 && c.Args[0] == "--help" {
		c.Out.WriteString("Usage: echo [-neE] [argument...]\nWrite arguments to standard output.\n")
		return 0
	}
	c.Out.WriteString(echoText(c.Args, false))
	return 0
}

// shellCommand is sh and bash.
func shellCommand(c *core.Ctx) int {
	s := New(c, c.Name)
	defer s.close()
	s.opts.posix = c.Name == "sh" && false
	source, name, code, ok := s.parseInvocation(c)
	if !ok {
		return code
	}
	return s.guarded(func() { s.runSource(source, name) })
}

// parseInvocation handles options; ok false means that the code is final.
func (s *Shell) parseInvocation(c *core.Ctx) (source, name string, code int, ok bool) {
	args := c.Args
	fromString, fromStdin := false, false
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			break
		}
		if strings.HasPrefix(arg, "--") {
			switch arg {
			case "--help":
				fmt.Fprintf(c.Stdout, "Usage: %s [option] [-c string | file | -s] [argument...]\nRun a shell script.\n", c.Name)
				return "", "", 0, false
			case "--version":
				fmt.Fprintf(c.Stdout, "GNU bash, version %s (wasm32-unknown-wasi)\n", bashVersion)
				return "", "", 0, false
			case "--posix", "--norc", "--noprofile", "--login", "--noediting", "--verbose", "--restricted":
				continue
			case "--rcfile", "--init-file":
				if len(args) > 0 {
					args = args[1:]
				}
				continue
			}
			fmt.Fprintf(c.Stderr, "%s: %s: invalid option\n", c.Name, arg)
			return "", "", 2, false
		}
		on := arg[0] == '-'
		for i := 1; i < len(arg); i++ {
			switch letter := arg[i]; letter {
			case 'c':
				fromString = true
			case 's':
				fromStdin = true
			case 'i', 'l', 'r', 'D':
			case 'o', 'O':
				if len(args) == 0 {
					s.printOptions(on)
					return "", "", 0, false
				}
				if letter == 'o' && !s.setNamed(args[0], on) {
					return "", "", 2, false
				}
				if letter == 'O' {
					s.setShopt(args[0], on)
				}
				args = args[1:]
			default:
				option := s.optionByLetter(letter)
				if option == nil {
					fmt.Fprintf(c.Stderr, "%s: -%c: invalid option\n", c.Name, letter)
					return "", "", 2, false
				}
				*option = on
			}
		}
	}
	switch {
	case fromString:
		if len(args) == 0 {
			fmt.Fprintf(c.Stderr, "%s: -c: option requires an argument\n", c.Name)
			return "", "", 2, false
		}
		if len(args) > 1 {
			s.argv0, s.params = args[1], args[2:]
		}
		return args[0], "", 0, true
	case len(args) > 0 && !fromStdin:
		return s.loadScript(c, args)
	}
	s.params = args
	data, err := io.ReadAll(c.Stdin)
	if err != nil {
		return "", "", 1, false
	}
	s.fds[0].in = newInput(core.Null)
	return string(data), "", 0, true
}

func (s *Shell) loadScript(c *core.Ctx, args []string) (source, name string, code int, ok bool) {
	file, err := c.OpenFile(args[0], os.O_RDONLY)
	if err != nil && !strings.Contains(args[0], "/") {
		if found := s.searchPathFile(args[0]); found != "" {
			file, err = c.OpenFile(found, os.O_RDONLY)
		}
	}
	if err != nil {
		fmt.Fprintf(c.Stderr, "%s: %s: %s\n", c.Name, args[0], core.Reason(err))
		return "", "", 127, false
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	if err != nil {
		fmt.Fprintf(c.Stderr, "%s: %s: %s\n", c.Name, args[0], core.Reason(err))
		return "", "", 126, false
	}
	s.argv0, s.script, s.params = args[0], args[0], args[1:]
	return string(data), args[0], 0, true
}
