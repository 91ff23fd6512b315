package shell

import (
	"fmt"
	"io"
	"path"
	"strings"

	"warmcell/toolbox/internal/core"
)

func setBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	if len(args) == 0 {
		for _, name := range s.names() {
			if v := s.lookup(name); v.isSet {
				s.print(name, "=", setQuote(v), "\n")
			}
		}
		return 0
	}
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			s.params = append([]string(nil), args[1:]...)
			return 0
		}
		if arg == "-" {
			s.opts.xtrace, s.opts.verbose = false, false
			if len(args) > 1 {
				s.params = append([]string(nil), args[1:]...)
			}
			return 0
		}
		if len(arg) < 2 || arg[0] != '-' && arg[0] != '+' {
			s.params = append([]string(nil), args...)
			return 0
		}
		args = args[1:]
		on := arg[0] == '-'
		for i := 1; i < len(arg); i++ {
			if arg[i] == 'o' {
				if len(args) == 0 {
					s.printOptions(on)
					continue
				}
				if !s.setNamed(args[0], on) {
					return 2
				}
				args = args[1:]
				continue
			}
			option := s.optionByLetter(arg[i])
			if option == nil {
				s.errorf("set: %c%c: invalid option", arg[0], arg[i])
				fmt.Fprintln(s.writer(2), "set: usage: set [-abefhkmnptuvxBCEHPT] [-o option-name] [--] [-] [arg ...]")
				return 2
			}
			*option = on
		}
	}
	return 0
}

func (s *Shell) setNamed(name string, on bool) bool {
	option := s.optionByName(name)
	if option == nil {
		s.errorf("set: %s: invalid option name", name)
		return false
	}
	*option = on
	return true
}

func (s *Shell) printOptions(human bool) {
	for _, entry := range optionTable {
		on := *entry.field(&s.opts)
		if human {
			s.print(fmt.Sprintf("%-15s\t%s\n", entry.name, onOff(on)))
		} else {
			sign := "+"
			if on {
				sign = "-"
			}
			s.print("set ", sign, "o ", entry.name, "\n")
		}
	}
}

func shoptBuiltin(s *Shell, argv []string) int {
	mode := byte(0)
	quiet, reusable, posixNames := false, false, false
	args := argv[1:]
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		for _, letter := range args[0][1:] {
			switch letter {
			case 's', 'u':
				mode = byte(letter)
			case 'q':
				quiet = true
			case 'p':
				reusable = true
			case 'o':
				posixNames = true
			default:
				s.errorf("shopt: -%c: invalid option", letter)
				return 2
			}
		}
		args = args[1:]
	}
	show := func(name string, on bool) {
		switch {
		case reusable && posixNames:
			s.print("set ", map[bool]string{true: "-", false: "+"}[on], "o ", name, "\n")
		case reusable:
			s.print("shopt ", map[bool]string{true: "-s ", false: "-u "}[on], name, "\n")
		default:
			s.print(fmt.Sprintf("%-15s\t%s\n", name, onOff(on)))
		}
	}
	if len(args) == 0 {
		for _, name := range shoptNames {
			if mode == 0 || s.shopt[name] == (mode == 's') {
				show(name, s.shopt[name])
			}
		}
		return 0
	}
	status := 0
	for _, name := range args {
		var option *bool
		if posixNames {
			option = s.optionByName(name)
		} else if isShoptName(name) {
			value := s.shopt[name]
			option = &value
		}
		if option == nil {
			s.errorf("shopt: %s: invalid shell option name", name)
			status = 1
			continue
		}
		if mode != 0 {
			*option = mode == 's'
			if !posixNames {
				s.setShopt(name, *option)
			}
			continue
		}
		if !*option {
			status = 1
		}
		if !quiet {
			show(name, *option)
		}
	}
	return status
}

func cdBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	physical := s.opts.physical
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		switch args[0] {
		case "-P":
			physical = true
		case "-L":
			physical = false
		case "-e", "-@", "--":
		default:
			s.errorf("cd: %s: invalid option", args[0])
			fmt.Fprintln(s.writer(2), "cd: usage: cd [-L|[-P [-e]] [-@]] [dir]")
			return 2
		}
		args = args[1:]
	}
	if len(args) > 1 {
		s.errorf("cd: too many arguments")
		return 1
	}
	target, show := "", false
	switch {
	case len(args) == 0:
		home, ok := s.getOK("HOME")
		if !ok {
			s.errorf("cd: HOME not set")
			return 1
		}
		target = home
	case args[0] == "-":
		old, ok := s.getOK("OLDPWD")
		if !ok {
			s.errorf("cd: OLDPWD not set")
			return 1
		}
		target, show = old, true
	default:
		target = args[0]
		if found, ok := s.searchCDPath(target); ok {
			target, show = found, true
		}
	}
	if target == "" {
		return 0
	}
	if !s.changeDir("cd", target, physical) {
		return 1
	}
	if show {
		s.print(s.dir, "\n")
	}
	return 0
}

func (s *Shell) searchCDPath(target string) (string, bool) {
	paths := s.get("CDPATH")
	if paths == "" || strings.HasPrefix(target, "/") || strings.HasPrefix(target, ".") {
		return "", false
	}
	for _, dir := range strings.Split(paths, ":") {
		if dir == "" || dir == "." {
			continue
		}
		candidate := path.Join(dir, target)
		if info, err := core.Stat(s.path(candidate)); err == nil && info.IsDir() {
			return candidate, true
		}
	}
	return "", false
}

func (s *Shell) changeDir(command, target string, physical bool) bool {
	full := path.Clean(s.path(target))
	info, err := core.Stat(full)
	if err != nil {
		s.errorf("%s: %s: %s", command, target, core.Reason(err))
		return false
	}
	if !info.IsDir() {
		s.errorf("%s: %s: Not a directory", command, target)
		return false
	}
	if physical {
		if real, err := core.RealPath(full); err == nil {
			full = real
		}
	}
	s.set("OLDPWD", s.dir)
	s.dir = full
	s.set("PWD", full)
	s.ensure("PWD").exported = true
	s.ensure("OLDPWD").exported = true
	return true
}

func pwdBuiltin(s *Shell, argv []string) int {
	dir := s.dir
	if len(argv) > 1 && argv[1] == "-P" {
		if real, err := core.RealPath(dir); err == nil {
			dir = real
		}
	}
	s.print(dir, "\n")
	return 0
}

func (s *Shell) tildeDir(dir string) string {
	home := s.get("HOME")
	if home != "" && home != "/" && (dir == home || strings.HasPrefix(dir, home+"/")) {
		return "~" + dir[len(home):]
	}
	return dir
}

func dirsBuiltin(s *Shell, argv []string) int {
	stack := append([]string{s.dir}, s.dirStack...)
	long, perLine, numbered := false, false, false
	for _, arg := range argv[1:] {
		switch arg {
		case "-c":
			s.dirStack = nil
			return 0
		case "-l":
			long = true
		case "-p":
			perLine = true
		case "-v":
			perLine, numbered = true, true
		default:
			index, ok := stackIndex(arg, len(stack))
			if !ok {
				s.errorf("dirs: %s: directory stack index out of range", arg)
				return 1
			}
			s.print(s.tildeDir(stack[index]), "\n")
			return 0
		}
	}
	for i, dir := range stack {
		if !long {
			stack[i] = s.tildeDir(dir)
		}
		if numbered {
			stack[i] = fmt.Sprintf("%2d  %s", i, stack[i])
		}
	}
	separator := " "
	if perLine {
		separator = "\n"
	}
	s.print(strings.Join(stack, separator), "\n")
	return 0
}

// stackIndex resolves +N and -N.
func stackIndex(arg string, size int) (int, bool) {
	if len(arg) < 2 || arg[0] != '+' && arg[0] != '-' {
		return 0, false
	}
	number, ok := isInteger(arg[1:])
	if !ok || int(number) >= size {
		return 0, false
	}
	if arg[0] == '-' {
		return size - 1 - int(number), true
	}
	return int(number), true
}

func pushdBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	stay := false
	if len(args) > 0 && args[0] == "-n" {
		stay, args = true, args[1:]
	}
	if len(args) == 0 {
		if len(s.dirStack) == 0 {
			s.errorf("pushd: no other directory")
			return 1
		}
		here, there := s.dir, s.dirStack[0]
		if !s.changeDir("pushd", there, false) {
			return 1
		}
		s.dirStack[0] = here
		return dirsBuiltin(s, []string{"dirs"})
	}
	stack := append([]string{s.dir}, s.dirStack...)
	if args[0][0] == '+' || args[0][0] == '-' && len(args[0]) > 1 {
		index, ok := stackIndex(args[0], len(stack))
		if !ok {
			s.errorf("pushd: %s: directory stack index out of range", args[0])
			return 1
		}
		rotated := append(append([]string(nil), stack[index:]...), stack[:index]...)
		if !s.changeDir("pushd", rotated[0], false) {
			return 1
		}
		s.dirStack = rotated[1:]
		return dirsBuiltin(s, []string{"dirs"})
	}
	if stay {
		s.dirStack = append([]string{s.path(args[0])}, s.dirStack...)
		return dirsBuiltin(s, []string{"dirs"})
	}
	here := s.dir
	if !s.changeDir("pushd", args[0], false) {
		return 1
	}
	s.dirStack = append([]string{here}, s.dirStack...)
	return dirsBuiltin(s, []string{"dirs"})
}

func popdBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	stay := false
	if len(args) > 0 && args[0] == "-n" {
		stay, args = true, args[1:]
	}
	if len(s.dirStack) == 0 {
		s.errorf("popd: directory stack empty")
		return 1
	}
	index := 0
	if len(args) > 0 {
		var ok bool
		if index, ok = stackIndex(args[0], len(s.dirStack)+1); !ok {
			s.errorf("popd: %s: directory stack index out of range", args[0])
			return 1
		}
	}
	if index > 0 {
		s.dirStack = append(append([]string(nil), s.dirStack[:index-1]...), s.dirStack[index:]...)
		return dirsBuiltin(s, []string{"dirs"})
	}
	next := s.dirStack[0]
	if !stay && !s.changeDir("popd", next, false) {
		return 1
	}
	s.dirStack = append([]string(nil), s.dirStack[1:]...)
	return dirsBuiltin(s, []string{"dirs"})
}

func sourceBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		s.errorf("%s: filename argument required", argv[0])
		fmt.Fprintf(s.writer(2), "%s: usage: %s filename [arguments]\n", argv[0], argv[0])
		return 2
	}
	name := args[0]
	file := name
	if !strings.Contains(name, "/") {
		if found := s.searchPathFile(name); found != "" {
			file = found
		}
	}
	reader, err := s.openRead(file)
	if err != nil {
		s.errorf("%s: %s", name, core.Reason(err))
		return 1
	}
	data, err := io.ReadAll(reader)
	reader.Close()
	if err != nil {
		s.errorf("%s: %s: %s", argv[0], name, core.Reason(err))
		return 1
	}
	if s.sourceDepth > 200 {
		s.errorf("%s: maximum source nesting level exceeded", name)
		return 1
	}
	oldParams := s.params
	replaced := len(args) > 1
	if replaced {
		s.params = args[1:]
	}
	s.frames = append(s.frames, frame{"source", name, s.line})
	line := s.line
	s.sourceDepth++
	s.nested++
	depth := len(s.frames)
	s.status = 0
	defer func() {
		s.frames = s.frames[:depth-1]
		s.sourceDepth--
		s.nested--
		s.line = line
		if replaced {
			s.params = oldParams
		}
	}()
	s.runSource(string(data), name)
	if s.flow == returning {
		s.flow = running
	}
	return s.status
}

func aliasBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	if len(args) > 0 && args[0] == "-p" {
		args = args[1:]
	}
	if len(args) == 0 {
		for _, name := range sortedKeys(s.aliases) {
			s.print("alias ", name, "=", quoteForReuse(s.aliases[name].value), "\n")
		}
		return 0
	}
	status := 0
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if ok && name != "" {
			s.aliases[name] = aliasEntry{value}
			continue
		}
		entry, found := s.aliases[name]
		if !found {
			s.errorf("alias: %s: not found", name)
			status = 1
			continue
		}
		s.print("alias ", name, "=", quoteForReuse(entry.value), "\n")
	}
	return status
}

func unaliasBuiltin(s *Shell, argv []string) int {
	if len(argv) < 2 {
		s.errorf("unalias: usage: unalias [-a] name [name ...]")
		return 2
	}
	status := 0
	for _, name := range argv[1:] {
		if name == "-a" {
			s.aliases = map[string]aliasEntry{}
			continue
		}
		if _, ok := s.aliases[name]; !ok {
			s.errorf("unalias: %s: not found", name)
			status = 1
		}
		delete(s.aliases, name)
	}
	return status
}
