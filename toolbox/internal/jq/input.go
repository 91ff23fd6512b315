package jq

import (
	"fmt"
	"io"
	"strings"

	"github.com/itchyny/gojq"

	"warmcell/toolbox/internal/core"
)

// inputs yields the program's inputs, in the mode that the options ask for. All files are one text: a value or a line
// that one file begins goes on in the next.
type inputs struct {
	p       *program
	names   []string
	reader  io.ReadCloser
	source  *decoder
	name    string
	failed  bool
	slurped bool
	pending []any
	ended   bool
}

func newInputs(p *program) *inputs {
	names := p.files
	if len(names) == 0 {
		names = []string{"-"}
	}
	i := &inputs{p: p, names: names}
	i.source = newDecoder(i)
	return i
}

func (i *inputs) currentName() any {
	if i.name == "" || i.name == "-" {
		return nil
	}
	return i.name
}

// lineNumber counts the end of line behind a value, too, but looks only at what was read already: asking for more could
// turn to the next file.
func (i *inputs) lineNumber() int {
	if !i.p.rawInput && i.source.in.Buffered() > 0 {
		if peek, _ := i.source.in.Peek(1); peek[0] == '\n' {
			return i.source.line
		}
	}
	return i.source.line - 1
}

func (i *inputs) position() string {
	switch {
	case i.name == "" && (len(i.p.files) > 0 || i.p.null):
		return "<unknown>"
	case i.name == "" || i.name == "-":
		return fmt.Sprintf("<stdin>:%d", i.source.line-1)
	}
	return fmt.Sprintf("%s:%d", i.name, i.source.line-1)
}

// Read gives the decoder one file after the other, never two at once, so that the name is right.
func (i *inputs) Read(into []byte) (int, error) {
	for {
		if i.reader == nil && !i.open() {
			return 0, io.EOF
		}
		n, err := i.reader.Read(into)
		if n > 0 {
			return n, nil
		}
		if err != nil {
			i.reader.Close()
			i.reader = nil
		}
		if err != nil && err != io.EOF {
			i.failed = true
			i.p.c.Errorf("error: Could not read %s: %s", i.name, core.Reason(err))
		}
	}
}

func (i *inputs) open() bool {
	for len(i.names) > 0 {
		name := i.names[0]
		i.names = i.names[1:]
		reader, err := i.p.c.Open(name)
		if err != nil {
			i.failed = true
			i.p.c.Errorf("error: Could not open %s: %s", name, core.Reason(err))
			continue
		}
		i.reader, i.name, i.source.line = reader, name, 1
		return true
	}
	return false
}

// Next implements gojq.Iter.
func (i *inputs) Next() (any, bool) {
	if i.p.slurp {
		return i.slurpAll()
	}
	return i.one()
}

func (i *inputs) one() (any, bool) {
	if len(i.pending) > 0 {
		value := i.pending[0]
		i.pending = i.pending[1:]
		return value, true
	}
	if i.ended {
		return nil, false
	}
	if i.p.rawInput {
		return i.rawLine()
	}
	value, err := i.source.next()
	switch {
	case err == io.EOF:
		return nil, false
	case err != nil:
		i.ended = true
		return err, true
	case i.p.stream:
		i.pending = streamEvents(nil, []any{}, value, true)
		return i.one()
	}
	return value, true
}

func (i *inputs) rawLine() (any, bool) {
	line, err := i.source.in.ReadString('\n')
	if line == "" && err != nil {
		return nil, false
	}
	if err == nil {
		i.source.line++
	}
	return strings.TrimSuffix(line, "\n"), true
}

func (i *inputs) slurpAll() (any, bool) {
	if i.slurped {
		return nil, false
	}
	i.slurped = true
	if i.p.rawInput {
		var all strings.Builder
		io.Copy(&all, i.source.in)
		return all.String(), true
	}
	items := []any{}
	for {
		value, ok := i.one()
		if !ok {
			return items, true
		}
		if problem, failed := value.(error); failed {
			return problem, true
		}
		items = append(items, value)
	}
}

// streamEvents turns a value into jq --stream events.
func streamEvents(out []any, path []any, value any, top bool) []any {
	clone := func(extra ...any) []any { return append(append([]any{}, path...), extra...) }
	switch v := value.(type) {
	case []any:
		if len(v) == 0 {
			return append(out, []any{clone(), v})
		}
		for index, item := range v {
			out = streamEvents(out, clone(index), item, false)
		}
		out = append(out, []any{clone(len(v) - 1)})
	case *gojq.Map:
		if v.Len() == 0 {
			return append(out, []any{clone(), v})
		}
		last := ""
		for key, item := range v.All() {
			out = streamEvents(out, clone(key), item, false)
			last = key
		}
		out = append(out, []any{clone(last)})
	default:
		out = append(out, []any{clone(), v})
	}
	return out
}
