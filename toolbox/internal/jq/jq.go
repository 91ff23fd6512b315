// Package jq is the command-line side of gojq, with jq's own formatting, options and exit statuses.
package jq

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/itchyny/gojq"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "jq", Summary: "Process JSON.",
		Usage: "jq [-nrjacCMsSeRh] [--tab] [--indent N] [--arg NAME VALUE] [--argjson NAME JSON] [--slurpfile NAME FILE] [--rawfile NAME FILE] [--args] [--jsonargs] [-f FILE] FILTER [file...]", Run: run})
}

// compatibility defines what jq has and gojq leaves out.
const compatibility = "def leaf_paths: paths(scalars); "

type program struct {
	c                                            *core.Ctx
	null, raw, join, slurp, rawInput, exitStatus bool
	seq, stream, rawNul                          bool
	enc                                          encoder
	names                                        []string
	values                                       []any
	filter                                       string
	hasFilter                                    bool
	files                                        []string
	positional                                   []any
	named                                        *gojq.Map
	inputs                                       *inputs
	filterFile                                   bool
	argMode                                      int
}

func run(c *core.Ctx) int {
	p := &program{c: c, enc: encoder{indent: "  "}, named: gojq.NewMap(0), positional: []any{}}
	if code, done := p.parse(); done {
		return code
	}
	if !p.hasFilter {
		fmt.Fprintln(c.Stderr, "Usage:\tjq [OPTIONS] FILTER [FILES...]")
		return 2
	}
	if p.filterFile {
		data, err := readFile(c, p.filter)
		if err != nil {
			return c.Fail(2, "error: Could not open %s: %s", p.filter, core.Reason(err))
		}
		p.filter = string(data)
	}
	args := gojq.NewMap(2)
	args.Set("positional", p.positional)
	args.Set("named", p.named)
	p.define("$ARGS", args)
	query, err := gojq.Parse(compatibility + p.filter)
	if err != nil {
		return p.compileError(err)
	}
	p.inputs = newInputs(p)
	code, err := gojq.Compile(query, gojq.WithEnvironLoader(func() []string { return c.Env }), gojq.WithVariables(p.names), gojq.WithInputIter(p.inputs),
		gojq.WithFunction("input_filename", 0, 0, func(any, []any) any { return p.inputs.currentName() }),
		gojq.WithFunction("input_line_number", 0, 0, func(any, []any) any { return p.inputs.lineNumber() }),
		gojq.WithFunction("debug", 0, 1, func(v any, a []any) any { return p.debug(v, a) }),
		gojq.WithFunction("stderr", 0, 0, func(v any, _ []any) any { fmt.Fprint(c.Stderr, p.compact(v)); return v }))
	if err != nil {
		return p.compileError(err)
	}
	return p.execute(code)
}

func (p *program) define(name string, value any) {
	for i, known := range p.names {
		if known == name {
			p.values[i] = value
			return
		}
	}
	p.names, p.values = append(p.names, name), append(p.values, value)
}

func readFile(c *core.Ctx, name string) ([]byte, error) {
	reader, err := c.Open(name)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}

func (p *program) compileError(err error) int {
	fmt.Fprintf(p.c.Stderr, "jq: error: %s\njq: 1 compile error\n", err)
	return 3
}

func (p *program) debug(v any, args []any) any {
	shown := v
	if len(args) > 0 {
		shown = args[0]
	}
	p.c.Out.Flush()
	fmt.Fprintf(p.c.Stderr, "[\"DEBUG:\",%s]\n", p.compact(shown))
	return v
}

func (p *program) compact(v any) string {
	e := encoder{}
	e.value(v, 0)
	return string(e.out)
}

func (p *program) execute(code *gojq.Code) int {
	status, last := 0, any(nil)
	produced := false
	handle := func(input any) bool {
		iterator := code.Run(input, p.values...)
		for {
			value, ok := iterator.Next()
			if !ok {
				return true
			}
			if problem, failed := value.(error); failed {
				var halt *gojq.HaltError
				if errors.As(problem, &halt) {
					status = p.halt(halt)
					return false
				}
				p.c.Out.Flush()
				fmt.Fprintf(p.c.Stderr, "jq: error (at %s): %s\n", p.inputs.position(), errorText(problem))
				status = 5
				return true
			}
			last, produced = value, true
			p.write(value)
		}
	}
	if p.null {
		handle(nil)
	} else {
		for {
			value, ok := p.inputs.Next()
			if !ok {
				break
			}
			if problem, failed := value.(error); failed {
				p.c.Out.Flush()
				fmt.Fprintf(p.c.Stderr, "jq: error (at %s): %s\n", p.inputs.position(), problem)
				status = 2
				break
			}
			p.c.Check()
			if !handle(value) {
				return status
			}
		}
	}
	if p.inputs.failed && status == 0 {
		status = 2
	}
	if status == 0 && p.exitStatus {
		switch {
		case !produced:
			return 4
		case last == nil || last == false:
			return 1
		}
	}
	return status
}

func (p *program) halt(halt *gojq.HaltError) int {
	if value := halt.Value(); value != nil {
		p.c.Out.Flush()
		if text, ok := value.(string); ok {
			fmt.Fprint(p.c.Stderr, text)
		} else {
			fmt.Fprintln(p.c.Stderr, p.compact(value))
		}
	}
	return halt.ExitCode()
}

// errorText gives jq's own wording where gojq's differs.
func errorText(err error) string {
	var value gojq.ValueError
	if errors.As(err, &value) {
		switch v := value.Value().(type) {
		case string:
			return v
		case nil:
			return "null (null) not a string"
		default:
			e := encoder{}
			e.value(v, 0)
			return string(e.out) + " (not a string)"
		}
	}
	return err.Error()
}

func (p *program) write(value any) {
	out := p.c.Out
	if p.seq {
		out.WriteByte(0x1e)
	}
	text, isText := value.(string)
	if p.raw && isText {
		out.WriteString(text)
	} else {
		p.enc.out = p.enc.out[:0]
		p.enc.value(value, 0)
		out.Write(p.enc.out)
	}
	switch {
	case p.rawNul:
		out.WriteByte(0)
	case !p.join:
		out.WriteByte('\n')
	}
}

// parse handles the command line by hand: options may stand anywhere and some take two values.
func (p *program) parse() (int, bool) {
	args := p.c.Args
	literal := false
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if literal || len(arg) < 2 || arg[0] != '-' {
			if code := p.operand(arg); code != 0 {
				return code, true
			}
			continue
		}
		if arg == "--" {
			literal = true
			continue
		}
		if strings.HasPrefix(arg, "--") {
			used, code := p.long(arg[2:], args[i+1:])
			if code >= 0 {
				return code, true
			}
			i += used
			continue
		}
		for j := 1; j < len(arg); j++ {
			switch arg[j] {
			case 'f':
				p.filterFile = true
			case 'L':
				i++
			case 'h':
				p.c.Out.WriteString("Usage:\tjq [OPTIONS] FILTER [FILES...]\n")
				return 0, true
			case 'V':
				p.c.Out.WriteString("jq-1.7.1\n")
				return 0, true
			default:
				if !p.short(arg[j]) {
					fmt.Fprintf(p.c.Stderr, "jq: Unknown arguments\nUse jq --help for help with command-line options,\nor see the jq manpage, or online docs  at https://jqlang.github.io/jq\n")
					return 2, true
				}
			}
		}
	}
	return 0, false
}

func (p *program) short(letter byte) bool {
	switch letter {
	case 'n':
		p.null = true
	case 'r':
		p.raw = true
	case 'j':
		p.raw, p.join = true, true
	case 'a':
		p.enc.ascii = true
	case 'c':
		p.enc.indent = ""
	case 'C':
		p.enc.color = true
	case 'M':
		p.enc.color = false
	case 's':
		p.slurp = true
	case 'S':
		p.enc.sorted = true
	case 'e':
		p.exitStatus = true
	case 'R':
		p.rawInput = true
	default:
		return false
	}
	return true
}

func (p *program) operand(arg string) int {
	switch {
	case !p.hasFilter:
		p.filter, p.hasFilter = arg, true
	case p.argMode == 1:
		p.positional = append(p.positional, arg)
	case p.argMode == 2:
		value, err := newDecoder(strings.NewReader(arg)).next()
		if err != nil {
			return p.c.Fail(2, "Invalid JSON text passed to --jsonargs")
		}
		p.positional = append(p.positional, value)
	default:
		p.files = append(p.files, arg)
	}
	return 0
}

// long handles one long option; code -1 means go on.
func (p *program) long(name string, rest []string) (used, code int) {
	letters := map[string]byte{"null-input": 'n', "raw-output": 'r', "join-output": 'j', "ascii-output": 'a', "compact-output": 'c', "color-output": 'C', "monochrome-output": 'M', "slurp": 's', "sort-keys": 'S', "exit-status": 'e', "raw-input": 'R'}
	if letter, ok := letters[name]; ok {
		p.short(letter)
		return 0, -1
	}
	switch name {
	case "tab":
		p.enc.indent = "\t"
	case "indent":
		if len(rest) == 0 {
			return 0, p.c.Fail(2, "--indent takes one parameter")
		}
		n, err := strconv.Atoi(rest[0])
		if err != nil || n < 0 {
			return 0, p.c.Fail(2, "Cannot indent less than zero")
		}
		if n > 7 {
			return 0, p.c.Fail(2, "Cannot indent more than 7 characters")
		}
		p.enc.indent = strings.Repeat(" ", n)
		return 1, -1
	case "seq":
		p.seq = true
	case "stream":
		p.stream = true
	case "raw-output0":
		p.raw, p.join, p.rawNul = true, true, true
	case "unbuffered":
	case "from-file":
		p.filterFile = true
	case "args":
		p.argMode = 1
	case "jsonargs":
		p.argMode = 2
	case "arg", "argjson", "slurpfile", "rawfile":
		if len(rest) < 2 {
			return 0, p.c.Fail(2, "--%s takes two parameters (e.g. --%s name value)", name, name)
		}
		return 2, p.variable(name, rest[0], rest[1])
	case "help":
		p.c.Out.WriteString("Usage:\tjq [OPTIONS] FILTER [FILES...]\n")
		return 0, 0
	case "version":
		p.c.Out.WriteString("jq-1.7.1\n")
		return 0, 0
	default:
		fmt.Fprintf(p.c.Stderr, "jq: Unknown arguments\nUse jq --help for help with command-line options,\nor see the jq manpage, or online docs  at https://jqlang.github.io/jq\n")
		return 0, 2
	}
	return 0, -1
}

func (p *program) variable(kind, name, text string) int {
	var value any = text
	switch kind {
	case "argjson":
		parsed, err := newDecoder(strings.NewReader(text)).next()
		if err != nil {
			return p.c.Fail(2, "Invalid JSON text passed to --argjson")
		}
		value = parsed
	case "rawfile", "slurpfile":
		data, err := readFile(p.c, text)
		if err != nil {
			return p.c.Fail(2, "Bad JSON in --%s %s %s: Could not open %s: %s", kind, name, text, text, core.Reason(err))
		}
		if kind == "rawfile" {
			value = string(data)
			break
		}
		items := []any{}
		source := newDecoder(strings.NewReader(string(data)))
		for {
			item, err := source.next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return p.c.Fail(2, "Bad JSON in --%s %s %s: %s", kind, name, text, err)
			}
			items = append(items, item)
		}
		value = items
	}
	p.define("$"+name, value)
	p.named.Set(name, value)
	return -1
}
