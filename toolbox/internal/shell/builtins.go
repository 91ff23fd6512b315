package shell

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

type builtinFunc func(s *Shell, argv []string) int

var builtins map[string]builtinFunc

func init() {
	builtins = map[string]builtinFunc{
		":": trueBuiltin, "true": trueBuiltin, "false": falseBuiltin, "echo": echoBuiltin, "printf": printfBuiltin,
		"test": testBuiltin, "[": testBuiltin, "cd": cdBuiltin, "pwd": pwdBuiltin, "pushd": pushdBuiltin, "popd": popdBuiltin, "dirs": dirsBuiltin,
		"exit": exitBuiltin, "logout": exitBuiltin, "return": returnBuiltin, "break": breakBuiltin, "continue": breakBuiltin,
		"set": setBuiltin, "shopt": shoptBuiltin, "shift": shiftBuiltin, "unset": unsetBuiltin, "eval": evalBuiltin, ".": sourceBuiltin, "source": sourceBuiltin,
		"read": readBuiltin, "mapfile": mapfileBuiltin, "readarray": mapfileBuiltin, "getopts": getoptsBuiltin, "let": letBuiltin,
		"declare": declareBuiltin, "typeset": declareBuiltin, "local": declareBuiltin, "export": declareBuiltin, "readonly": declareBuiltin,
		"alias": aliasBuiltin, "unalias": unaliasBuiltin, "type": typeBuiltin, "command": commandBuiltin, "builtin": builtinBuiltin, "hash": hashBuiltin,
		"trap": trapBuiltin, "kill": killBuiltin, "wait": waitBuiltin, "jobs": jobsBuiltin, "fg": foregroundBuiltin, "bg": foregroundBuiltin, "disown": disownBuiltin,
		"umask": umaskBuiltin, "ulimit": ulimitBuiltin, "times": timesBuiltin, "caller": callerBuiltin, "enable": enableBuiltin, "help": helpBuiltin,
		"history": historyBuiltin, "fc": historyBuiltin, "compgen": compgenBuiltin, "complete": trueBuiltin, "compopt": trueBuiltin, "bind": trueBuiltin, "suspend": trueBuiltin,
		"exec": func(s *Shell, argv []string) int { s.execBuiltin(nil, argv[1:], nil); return s.status },
	}
}

func isSpecialBuiltin(name string) bool {
	switch name {
	case ":", ".", "break", "continue", "eval", "exec", "exit", "export", "readonly", "return", "set", "shift", "source", "times", "trap", "unset":
		return true
	}
	return false
}

func trueBuiltin(*Shell, []string) int  { return 0 }
func falseBuiltin(*Shell, []string) int { return 1 }

func echoBuiltin(s *Shell, argv []string) int {
	text := echoText(argv[1:], s.shopt["xpg_echo"])
	if !s.print(text) {
		s.errorf("echo: write error: Bad file descriptor")
		return 1
	}
	return 0
}

// echoText renders echo's arguments; it serves the builtin and the command.
func echoText(args []string, escapes bool) string {
	newline := true
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.Trim(args[0][1:], "neE") == "" {
		for _, letter := range args[0][1:] {
			switch letter {
			case 'n':
				newline = false
			case 'e':
				escapes = true
			case 'E':
				escapes = false
			}
		}
		args = args[1:]
	}
	text := strings.Join(args, " ")
	if escapes {
		var stop bool
		if text, stop = echoEscapes(text, false); stop {
			return text
		}
	}
	if newline {
		text += "\n"
	}
	return text
}

// leave parses the optional status of exit and return.
func (s *Shell) leave(argv []string) (int, bool) {
	if len(argv) < 2 {
		return s.status, true
	}
	number, err := strconv.ParseInt(strings.TrimSpace(argv[1]), 10, 64)
	if err != nil {
		s.errorf("%s: %s: numeric argument required", argv[0], argv[1])
		return 2, true
	}
	if len(argv) > 2 {
		s.errorf("%s: too many arguments", argv[0])
		return 1, false
	}
	return int(number & 255), true
}

func exitBuiltin(s *Shell, argv []string) int {
	status, ok := s.leave(argv)
	if ok {
		s.flow = exiting
	}
	return status
}

func returnBuiltin(s *Shell, argv []string) int {
	if len(s.frames) == 0 && s.sourceDepth == 0 {
		s.errorf("return: can only `return' from a function or sourced script")
		return 2
	}
	status, ok := s.leave(argv)
	if ok {
		s.flow = returning
	}
	return status
}

func breakBuiltin(s *Shell, argv []string) int {
	count := 1
	if len(argv) > 1 {
		number, err := strconv.Atoi(argv[1])
		if err != nil {
			s.errorf("%s: %s: numeric argument required", argv[0], argv[1])
			s.flow = exiting
			return 128
		}
		if number < 1 {
			s.errorf("%s: %s: loop count out of range", argv[0], argv[1])
			s.flow, s.flowCount = breaking, s.loopDepth
			return 1
		}
		count = number
	}
	if s.loopDepth == 0 {
		s.errorf("%s: only meaningful in a `for', `while', or `until' loop", argv[0])
		return 0
	}
	s.flow = breaking
	if argv[0] == "continue" {
		s.flow = continuing
	}
	s.flowCount = min(count, s.loopDepth)
	return 0
}

func shiftBuiltin(s *Shell, argv []string) int {
	count := 1
	if len(argv) > 1 {
		number, err := strconv.Atoi(argv[1])
		if err != nil {
			s.errorf("shift: %s: numeric argument required", argv[1])
			return 1
		}
		if number < 0 {
			s.errorf("shift: %s: shift count out of range", argv[1])
			return 1
		}
		count = number
	}
	if count > len(s.params) {
		return 1
	}
	s.params = s.params[count:]
	return 0
}

func unsetBuiltin(s *Shell, argv []string) int {
	mode := byte(0)
	args := argv[1:]
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		if args[0] == "--" {
			args = args[1:]
			break
		}
		mode = args[0][1]
		args = args[1:]
	}
	status := 0
	for _, name := range args {
		if !s.unsetOne(name, mode) {
			status = 1
		}
	}
	return status
}

func (s *Shell) unsetOne(name string, mode byte) bool {
	if mode == 'f' {
		delete(s.funcs, name)
		return true
	}
	if base, sub, ok := cutSubscript(name); ok {
		return s.unsetElement(s.resolve(base), sub)
	}
	if !validName(name) {
		s.errorf("unset: `%s': not a valid identifier", name)
		return false
	}
	target := name
	if mode != 'n' {
		target = s.resolve(name)
		if base, sub, ok := cutSubscript(target); ok {
			return s.unsetElement(base, sub)
		}
	}
	if s.lookup(target) != nil {
		return s.unset(target)
	}
	if mode == 0 {
		delete(s.funcs, name)
	}
	return true
}

func (s *Shell) unsetElement(base, sub string) bool {
	v := s.lookup(base)
	if v == nil {
		return true
	}
	if v.readonly {
		s.errorf("unset: %s: cannot unset: readonly variable", base)
		return false
	}
	switch v.kind {
	case associative:
		if sub == "@" || sub == "*" {
			if _, ok := v.table.get(sub); !ok {
				return s.unset(base)
			}
		}
		if len(sub) > 1 && (sub[0] == '"' || sub[0] == '\'') && sub[len(sub)-1] == sub[0] {
			sub = sub[1 : len(sub)-1]
		}
		v.table.delete(sub)
	case indexed:
		if sub == "@" || sub == "*" {
			return s.unset(base)
		}
		index := int(s.arithText(sub))
		if index < 0 {
			if index += v.maxIndex() + 1; index < 0 {
				s.errorf("unset: [%s]: bad array subscript", sub)
				return false
			}
		}
		v.remove(index)
	default:
		if s.arithText(sub) != 0 {
			s.errorf("unset: %s: not an array variable", base)
			return false
		}
		return s.unset(base)
	}
	return true
}

func evalBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	source := strings.Join(args, " ")
	if strings.TrimSpace(source) == "" {
		return 0
	}
	s.nestedSource(source, "eval")
	return s.status
}

// nestedSource runs text inside the current command: errors unwind further out.
func (s *Shell) nestedSource(source, name string) {
	line := s.line
	s.sourceDepth++
	s.nested++
	defer func() { s.sourceDepth--; s.nested--; s.line = line }()
	s.status = 0
	s.runSource(source, name)
}

func letBuiltin(s *Shell, argv []string) int {
	if len(argv) < 2 {
		s.errorf("let: expression expected")
		return 1
	}
	var last int64
	for _, source := range argv[1:] {
		last = s.arithText(source)
	}
	return int(truth(last == 0))
}

func umaskBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	symbolic := len(args) > 0 && args[0] == "-S"
	if symbolic {
		args = args[1:]
	}
	if len(args) == 0 {
		if symbolic {
			s.print(fmt.Sprintf("u=%s,g=%s,o=%s\n", permLetters(^core.Umask>>6), permLetters(^core.Umask>>3), permLetters(^core.Umask)))
		} else {
			s.print(fmt.Sprintf("%04o\n", core.Umask))
		}
		return 0
	}
	if mask, err := strconv.ParseUint(args[0], 8, 12); err == nil {
		core.Umask = core.FileMode(mask)
		return 0
	}
	mode, ok := core.ParseMode(args[0], ^core.Umask&0o777, false)
	if !ok {
		s.errorf("umask: %s: invalid symbolic mode operator", args[0])
		return 1
	}
	core.Umask = ^mode & 0o777
	return 0
}

func permLetters(bits core.FileMode) string {
	letters := ""
	for i, letter := range "rwx" {
		if bits&(4>>i) != 0 {
			letters += string(letter)
		}
	}
	return letters
}

func ulimitBuiltin(s *Shell, argv []string) int {
	if len(argv) > 1 && (argv[1] == "-a") {
		s.print("open files (-n) 1024\n")
	} else if len(argv) == 2 && argv[1] == "-n" {
		s.print("1024\n")
	} else if len(argv) < 3 {
		s.print("unlimited\n")
	}
	return 0
}

func timesBuiltin(s *Shell, _ []string) int {
	s.print("0m0.000s 0m0.000s\n0m0.000s 0m0.000s\n")
	return 0
}

func callerBuiltin(s *Shell, argv []string) int {
	level := 0
	if len(argv) > 1 {
		level, _ = strconv.Atoi(argv[1])
	}
	at := len(s.frames) - 1 - level
	if at < 0 {
		return 1
	}
	line := strconv.Itoa(s.frames[at].line)
	source, name := s.argv0, "main"
	if s.script != "" {
		source = s.script
	}
	if at > 0 {
		source, name = s.frames[at-1].source, s.frames[at-1].name
	}
	if len(argv) > 1 {
		s.print(line, " ", name, " ", source, "\n")
	} else {
		s.print(line, " ", source, "\n")
	}
	return 0
}

func enableBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	if len(args) > 0 && args[0] == "-n" {
		for _, name := range args[1:] {
			s.disabled[name] = true
		}
		return 0
	}
	if len(args) == 0 || args[0] == "-a" || args[0] == "-p" {
		for _, name := range sortedKeys(builtins) {
			s.print("enable ", name, "\n")
		}
		return 0
	}
	for _, name := range args {
		if builtins[name] == nil {
			s.errorf("enable: %s: not a shell builtin", name)
			return 1
		}
		delete(s.disabled, name)
	}
	return 0
}

func helpBuiltin(s *Shell, argv []string) int {
	if len(argv) > 1 {
		for _, name := range argv[1:] {
			if builtins[name] == nil {
				s.errorf("help: no help topics match `%s'.", name)
				return 1
			}
			s.print(name, ": ", name, " [arguments]\n    Shell builtin, as in bash.\n")
		}
		return 0
	}
	s.print("Shell builtins: ", strings.Join(sortedKeys(builtins), " "), "\n")
	return 0
}

func historyBuiltin(s *Shell, argv []string) int { return 0 }

func compgenBuiltin(s *Shell, argv []string) int {
	var found []string
	prefix := ""
	var sources []func() []string
	args := argv[1:]
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; arg {
		case "-c":
			sources = append(sources, s.commandNames)
		case "-b":
			sources = append(sources, func() []string { return sortedKeys(builtins) })
		case "-a":
			sources = append(sources, func() []string { return sortedKeys(s.aliases) })
		case "-v":
			sources = append(sources, s.names)
		case "-e":
			sources = append(sources, s.exportedNames)
		case "-k":
			sources = append(sources, func() []string { return keywords })
		case "-f", "-d":
			sources = append(sources, func() []string { return nil })
			if i+1 < len(args) {
				prefix = args[i+1]
				i++
			}
			names := s.globFiles(prefix + "*")
			sources = append(sources, func() []string { return names })
		case "-A", "-W":
			if i+1 >= len(args) {
				return 2
			}
			i++
			value := args[i]
			if arg == "-W" {
				words := strings.Fields(value)
				sources = append(sources, func() []string { return words })
			} else if value == "function" {
				sources = append(sources, func() []string { return sortedKeys(s.funcs) })
			} else if value == "variable" {
				sources = append(sources, s.names)
			} else if value == "builtin" {
				sources = append(sources, func() []string { return sortedKeys(builtins) })
			} else if value == "command" {
				sources = append(sources, s.commandNames)
			}
		case "--":
		default:
			prefix = arg
		}
	}
	for _, source := range sources {
		for _, name := range source() {
			if strings.HasPrefix(name, prefix) {
				found = append(found, name)
			}
		}
	}
	for _, name := range found {
		s.print(name, "\n")
	}
	return int(truth(len(found) == 0))
}

func (s *Shell) exportedNames() []string {
	var names []string
	for _, entry := range s.environ() {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	return names
}

func (s *Shell) commandNames() []string {
	seen := map[string]bool{}
	for _, group := range [][]string{sortedKeys(builtins), sortedKeys(s.funcs), sortedKeys(s.aliases), core.Names(), keywords} {
		for _, name := range group {
			seen[name] = true
		}
	}
	names := sortedKeys(seen)
	sort.Strings(names)
	return names
}

var keywords = []string{"if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do", "done", "in", "function", "time", "{", "}", "!", "[[", "]]", "coproc"}
