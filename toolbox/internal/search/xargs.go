package search

import (
	"io"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "xargs", Summary: "Build and run command lines from standard input.",
		Usage: "xargs [-0rtx] [-n N] [-L N] [-I TEXT] [-d CHAR] [-P N] [-a FILE] [-E EOF] [command [argument...]]", Run: xargs})
}

type xargsRun struct {
	c            *core.Ctx
	command      []string
	replace      string
	perCall      int
	perLine      int
	trace, noRun bool
	status       int
	stopped      bool
}

func xargs(c *core.Ctx) int {
	options, command, ok := core.Options{Short: "0rtxpn:L:I:i::d:P:a:E:s:l::", Long: "null/0 no-run-if-empty/r verbose/t exit/x max-args=/n max-lines?/l replace?/i delimiter=/d max-procs=/P arg-file=/a eof?/E max-chars=/s interactive/p", Stop: true}.Parse(c)
	if !ok {
		return 1
	}
	x := &xargsRun{c: c, command: command}
	delimiter, hasDelimiter, input, end := byte(0), false, c.Stdin, ""
	for _, option := range options {
		number, err := strconv.Atoi(option.Value)
		switch option.Name {
		case "0":
			hasDelimiter = true
		case "d":
			hasDelimiter = true
			delimiter = '\n'
			value := strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\0`, "\x00", `\\`, `\`).Replace(option.Value)
			if value != "" {
				delimiter = value[0]
			}
		case "r":
			x.noRun = true
		case "t":
			x.trace = true
		case "n":
			if err != nil || number < 1 {
				return c.Fail(1, "value %s for -n option should be >= 1", option.Value)
			}
			x.perCall = number
		case "L", "l":
			x.perLine = max(1, number)
		case "I", "i":
			if x.replace = option.Value; x.replace == "" {
				x.replace = "{}"
			}
		case "a":
			file, err := c.Open(option.Value)
			if err != nil {
				return c.Fail(1, "Cannot open input file ‘%s’: %s", option.Value, core.Reason(err))
			}
			defer file.Close()
			input = file
		case "E":
			end = option.Value
		}
	}
	if len(x.command) == 0 {
		x.command = []string{"echo"}
	}
	data, err := io.ReadAll(input)
	if err != nil {
		return c.Fail(1, "read error: %s", core.Reason(err))
	}
	x.run(string(data), hasDelimiter, delimiter, end)
	return x.status
}

func (x *xargsRun) run(data string, hasDelimiter bool, delimiter byte, end string) {
	var lines [][]string
	if hasDelimiter {
		data = strings.TrimSuffix(data, string(delimiter))
		if data != "" {
			for _, item := range strings.Split(data, string(delimiter)) {
				lines = append(lines, []string{item})
			}
		}
	} else {
		var problem string
		if lines, problem = splitArguments(data, x.replace != ""); problem != "" {
			x.status = x.c.Fail(1, "%s", problem)
			return
		}
	}
	if end != "" {
		lines = untilWord(lines, end)
	}
	switch {
	case x.replace != "":
		for _, line := range lines {
			x.substitute(strings.Join(line, " "))
			if x.stopped {
				return
			}
		}
		return
	case x.perLine > 0:
		for len(lines) > 0 && !x.stopped {
			n := min(x.perLine, len(lines))
			var items []string
			for _, line := range lines[:n] {
				items = append(items, line...)
			}
			x.call(items)
			lines = lines[n:]
		}
		return
	}
	var items []string
	for _, line := range lines {
		items = append(items, line...)
	}
	if len(items) == 0 {
		if !x.noRun {
			x.call(nil)
		}
		return
	}
	for len(items) > 0 && !x.stopped {
		n := len(items)
		if x.perCall > 0 {
			n = min(n, x.perCall)
		}
		n = min(n, 10000)
		x.call(items[:n])
		items = items[n:]
	}
}

func untilWord(lines [][]string, end string) [][]string {
	var out [][]string
	for _, line := range lines {
		for i, word := range line {
			if word == end {
				return append(out, line[:i])
			}
		}
		out = append(out, line)
	}
	return out
}

func (x *xargsRun) substitute(item string) {
	argv := make([]string, len(x.command))
	for i, arg := range x.command {
		argv[i] = strings.ReplaceAll(arg, x.replace, item)
	}
	x.exec(argv)
}

func (x *xargsRun) call(items []string) {
	x.exec(append(append([]string(nil), x.command...), items...))
}

func (x *xargsRun) exec(argv []string) {
	x.c.Check()
	if x.trace {
		io.WriteString(x.c.Stderr, strings.Join(argv, " ")+"\n")
	}
	switch code := x.c.Exec(x.c.Child(core.Null, x.c.Stdout, x.c.Stderr), argv); {
	case code == 0:
	case code == 255:
		x.c.Errorf("%s: exited with status 255; aborting", argv[0])
		x.status, x.stopped = 124, true
	case code == 126 || code == 127:
		x.status, x.stopped = code, true
	default:
		x.status = 123
	}
}

// splitArguments splits at blanks with quotes and backslashes; in replace mode only leading blanks are dropped and lines are whole.
func splitArguments(data string, wholeLines bool) (lines [][]string, problem string) {
	var words []string
	var word strings.Builder
	active := false
	endWord := func() {
		if active {
			words = append(words, word.String())
			word.Reset()
			active = false
		}
	}
	endLine := func() {
		endWord()
		if len(words) > 0 {
			lines = append(lines, words)
			words = nil
		}
	}
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '\n':
			endLine()
		case (c == ' ' || c == '\t') && wholeLines && active:
			word.WriteByte(c)
		case c == ' ' || c == '\t':
			endWord()
		case c == '\\' && i+1 < len(data):
			i++
			word.WriteByte(data[i])
			active = true
		case c == '"' || c == '\'':
			end := strings.IndexByte(data[i+1:], c)
			newline := strings.IndexByte(data[i+1:], '\n')
			if end < 0 || newline >= 0 && newline < end {
				kind := "single"
				if c == '"' {
					kind = "double"
				}
				return nil, "unmatched " + kind + " quote; by default quotes are special to xargs unless you use the -0 option"
			}
			word.WriteString(data[i+1 : i+1+end])
			active = true
			i += end + 1
		default:
			word.WriteByte(c)
			active = true
		}
	}
	endLine()
	return lines, ""
}
