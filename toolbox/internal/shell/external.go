package shell

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/host"
)

// systemDirs are where our commands seem to live.
var systemDirs = map[string]bool{"/bin": true, "/usr/bin": true, "/usr/local/bin": true, "/sbin": true, "/usr/sbin": true}

// external runs something that is neither function nor builtin.
func (s *Shell) external(argv []string) int {
	c := s.context(argv)
	c.Env = append(c.Env, s.exportedFunctions()...)
	if handler := s.funcs["command_not_found_handle"]; handler != nil && !canRun(c, argv[0]) {
		return s.inSubshell(func(sub *Shell) { sub.callFunction("command_not_found_handle", handler, argv) })
	}
	code, problem := runExternal(c, argv)
	if problem != "" {
		s.errorf("%s: %s", argv[0], problem)
	}
	return code
}

func (s *Shell) exportedFunctions() []string {
	var out []string
	for name, fn := range s.funcs {
		if fn.export {
			text := functionText(name, fn)
			out = append(out, "BASH_FUNC_"+name+"%%=()"+strings.TrimPrefix(text, name+" ()"))
		}
	}
	return out
}

// execFromCommand is what xargs, env, find and the like call.
func execFromCommand(c *core.Ctx, argv []string) int {
	code, problem := runExternal(c, argv)
	if problem != "" {
		if problem == "command not found" {
			problem = "No such file or directory"
		}
		caller := c.Name
		if caller == "env" {
			fmt.Fprintf(c.Stderr, "env: ‘%s’: %s\n", argv[0], problem)
		} else {
			fmt.Fprintf(c.Stderr, "%s: %s: %s\n", caller, argv[0], problem)
		}
	}
	return code
}

func canRun(c *core.Ctx, name string) bool {
	if strings.Contains(name, "/") {
		return true
	}
	return lookPath(c, name) != ""
}

// RunArgv runs a command line from outside any shell.
func RunArgv(c *core.Ctx, argv []string) int {
	c.Exec = execFromCommand
	code, problem := runExternal(c, argv)
	if problem != "" {
		fmt.Fprintf(c.Stderr, "%s: %s\n", argv[0], problem)
	}
	return code
}

// runExternal finds and runs a command; problem is the text to report when it could not be started.
func runExternal(c *core.Ctx, argv []string) (code int, problem string) {
	name := argv[0]
	if name == "" {
		return 127, "command not found"
	}
	if strings.Contains(name, "/") {
		full := c.Path(name)
		if isOurs(full) {
			return runKnown(c, path.Base(full), argv), ""
		}
		if _, err := core.Stat(full); err == nil {
			return runFile(c, full, argv)
		}
		return 127, "No such file or directory"
	}
	found, ours := findCommand(c, name)
	switch {
	case found == "":
		return 127, "command not found"
	case ours:
		return runKnown(c, name, argv), ""
	}
	return runFile(c, found, argv)
}

// isOurs tells whether a path stands for a built-in command: in a system directory where no mount has a file of that name.
func isOurs(full string) bool {
	if !systemDirs[path.Dir(full)] || !isKnown(path.Base(full)) {
		return false
	}
	if len(core.Mounts) == 0 {
		return true
	}
	_, err := core.Stat(full)
	return err != nil
}

func isKnown(name string) bool { return core.Lookup(name) != nil || host.IsCommand(name) }

func runKnown(c *core.Ctx, name string, argv []string) int {
	child := *c
	child.Args = argv[1:]
	if child.Exec == nil {
		child.Exec = execFromCommand
	}
	if command := core.Lookup(name); command != nil {
		return core.Invoke(command, &child)
	}
	return host.Run(&child, append([]string{name}, argv[1:]...))
}

func lookPath(c *core.Ctx, name string) string {
	found, _ := findCommand(c, name)
	return found
}

// findCommand finds a name in PATH: files in the mounts first in their order, our own commands in the system directories.
func findCommand(c *core.Ctx, name string) (full string, ours bool) {
	paths, ok := c.LookupEnv("PATH")
	if !ok {
		paths = "/usr/bin:/bin"
	}
	for dir := range strings.SplitSeq(paths, ":") {
		if dir == "" {
			dir = "."
		}
		dir = c.Path(dir)
		mayBeOurs := systemDirs[dir] && dir != "/usr/local/bin"
		if core.IsNowhere(dir) && !core.HasMountBelow(dir) {
			if mayBeOurs && isKnown(name) {
				return dir + "/" + name, true
			}
			continue
		}
		full := path.Join(dir, name)
		if mayBeOurs && isOurs(full) {
			return full, true
		}
		if info, err := core.Stat(full); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return full, false
		}
	}
	return "", false
}

// LookPath is for the command "which".
func LookPath(c *core.Ctx, name string) string { return lookPath(c, name) }

// runFile runs a script through its interpreter.
func runFile(c *core.Ctx, full string, argv []string) (int, string) {
	info, err := core.Stat(full)
	if err != nil {
		return 127, core.Reason(err)
	}
	if info.IsDir() {
		return 126, "Is a directory"
	}
	if info.Mode()&0o111 == 0 {
		return 126, "Permission denied"
	}
	file, err := os.Open(full)
	if err != nil {
		return 126, core.Reason(err)
	}
	line, _ := bufio.NewReader(io.LimitReader(file, 256)).ReadString('\n')
	file.Close()
	interpreter, found := strings.CutPrefix(line, "#!")
	if !found {
		if strings.HasPrefix(line, "\x00asm") || strings.HasPrefix(line, "\x7fELF") {
			return 126, "cannot execute binary file: Exec format error"
		}
		return runKnown(c, "bash", append([]string{"bash", argv[0]}, argv[1:]...)), ""
	}
	words := strings.Fields(interpreter)
	if len(words) > 0 && path.Base(words[0]) == "env" {
		words = words[1:]
		if len(words) > 0 && words[0] == "-S" {
			words = words[1:]
		}
	}
	if len(words) == 0 {
		return 126, "bad interpreter"
	}
	program := path.Base(words[0])
	if !isKnown(program) {
		return 126, words[0] + ": bad interpreter: No such file or directory"
	}
	script := argv[0]
	if !strings.Contains(script, "/") {
		script = full
	}
	line2 := append(append([]string{program}, words[1:]...), script)
	return runKnown(c, program, append(line2, argv[1:]...)), ""
}

func (s *Shell) execBuiltin(call *syntax.CallExpr, args []string, undo []saved) {
	s.status = 0
	if call != nil && len(call.Assigns) > 0 && len(args) > 0 {
		s.pushTemporary(call.Assigns)
		defer s.popTemporary()
	}
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		switch args[0] {
		case "-c", "-l", "--":
		case "-a":
			args = args[1:]
		}
		if len(args) > 0 {
			args = args[1:]
		}
	}
	if len(args) == 0 {
		s.keep(undo)
		return
	}
	s.status = s.external(args)
	delete(s.traps, "EXIT")
	s.flow = exiting
}

// searchPathFile finds a readable file in PATH for "source".
func (s *Shell) searchPathFile(name string) string {
	for _, dir := range strings.Split(s.get("PATH"), ":") {
		full := path.Join(s.path(dir), name)
		if info, err := core.Stat(full); err == nil && info.Mode().IsRegular() {
			return full
		}
	}
	return ""
}

func (s *Shell) kindOfCommand(name string, skipFunctions bool) (kind, where string) {
	if _, ok := s.aliases[name]; ok && s.shopt["expand_aliases"] {
		return "alias", s.aliases[name].value
	}
	for _, keyword := range keywords {
		if keyword == name {
			return "keyword", ""
		}
	}
	if s.funcs[name] != nil && !skipFunctions {
		return "function", ""
	}
	if builtins[name] != nil && !s.disabled[name] {
		return "builtin", ""
	}
	if strings.Contains(name, "/") {
		full := s.path(name)
		if info, err := core.Stat(full); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 || isOurs(full) {
			return "file", name
		}
		return "", ""
	}
	if found := lookPath(s.context(nil), name); found != "" {
		return "file", found
	}
	return "", ""
}

func typeBuiltin(s *Shell, argv []string) int {
	mode, all, skipFunctions := byte(0), false, false
	args := argv[1:]
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		for _, letter := range args[0][1:] {
			switch letter {
			case 'a':
				all = true
			case 'f':
				skipFunctions = true
			case 't', 'p', 'P':
				mode = byte(letter)
			default:
				s.errorf("type: -%c: invalid option", letter)
				return 2
			}
		}
		args = args[1:]
	}
	status := 0
	for _, name := range args {
		kind, where := s.kindOfCommand(name, skipFunctions)
		if mode == 'P' {
			kind, where = "", lookPath(s.context(nil), name)
			if where != "" {
				kind = "file"
			}
		}
		if kind == "" {
			if mode == 0 {
				s.errorf("type: %s: not found", name)
			}
			status = 1
			continue
		}
		s.describe(name, kind, where, mode)
		if all && kind != "file" {
			if kind != "builtin" && builtins[name] != nil {
				s.describe(name, "builtin", "", mode)
			}
			if found := lookPath(s.context(nil), name); found != "" {
				s.describe(name, "file", found, mode)
			}
		}
	}
	return status
}

func (s *Shell) describe(name, kind, where string, mode byte) {
	switch {
	case mode == 't':
		s.print(kind, "\n")
	case mode == 'p' || mode == 'P':
		if kind == "file" {
			s.print(where, "\n")
		}
	case kind == "alias":
		s.print(name, " is aliased to `", where, "'\n")
	case kind == "keyword":
		s.print(name, " is a shell keyword\n")
	case kind == "function":
		s.print(name, " is a function\n", functionText(name, s.funcs[name]), "\n")
	case kind == "builtin":
		s.print(name, " is a shell builtin\n")
	default:
		s.print(name, " is ", where, "\n")
	}
}

func commandBuiltin(s *Shell, argv []string) int {
	mode := byte(0)
	args := argv[1:]
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		switch args[0] {
		case "-v", "-V":
			mode = args[0][1]
		case "-p", "--":
		default:
			s.errorf("command: %s: invalid option", args[0])
			return 2
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return 0
	}
	if mode == 0 {
		if builtin := builtins[args[0]]; builtin != nil && !s.disabled[args[0]] {
			return builtin(s, args)
		}
		return s.external(args)
	}
	status := 0
	for _, name := range args {
		kind, where := s.kindOfCommand(name, false)
		switch {
		case kind == "":
			if mode == 'V' {
				s.errorf("command: %s: not found", name)
			}
			status = 1
		case mode == 'V':
			s.describe(name, kind, where, 0)
		case kind == "alias":
			s.print("alias ", name, "=", quoteForReuse(where), "\n")
		case kind == "file":
			s.print(where, "\n")
		default:
			s.print(name, "\n")
		}
	}
	return status
}

func builtinBuiltin(s *Shell, argv []string) int {
	if len(argv) < 2 {
		return 0
	}
	builtin := builtins[argv[1]]
	if builtin == nil {
		s.errorf("builtin: %s: not a shell builtin", argv[1])
		return 1
	}
	return builtin(s, argv[1:])
}

func hashBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	if len(args) == 0 {
		if len(s.hashes) == 0 {
			s.print("hash: hash table empty\n")
			return 0
		}
		s.print("hits\tcommand\n")
		for _, name := range sortedKeys(s.hashes) {
			s.print("   1\t", s.hashes[name], "\n")
		}
		return 0
	}
	status := 0
	for _, name := range args {
		if name == "-r" {
			s.hashes = map[string]string{}
			continue
		}
		if strings.HasPrefix(name, "-") {
			continue
		}
		found := lookPath(s.context(nil), name)
		if found == "" && builtins[name] == nil {
			s.errorf("hash: %s: not found", name)
			status = 1
			continue
		}
		s.hashes[name] = found
	}
	return status
}
