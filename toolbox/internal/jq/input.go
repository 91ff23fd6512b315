package jq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/itchyny/gojq"

	"warmcell/toolbox/internal/core"
)

// inputs yields the program's inputs across files, in the mode that the options ask for.
type inputs struct {
	p       *program
	names   []string
	reader  io.ReadCloser
	source  *decoder
	lines   *bufio.Reader
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
	return &inputs{p: p, names: names}
}

func (i *inputs) currentName() any {
	if i.name == "" || i.name == "-" {
		return nil
	}
	return i.name
}

func (i *inputs) lineNumber() int {
	if i.source == nil {
		return 0
	}
	if peek, err := i.source.in.Peek(1); err == nil && peek[0] == '\n' {
		return i.source.line
	}
	return i.source.line - 1
}

func (i *inputs) position() string {
	name := i.name
	if name == "" || name == "-" {
		name = "<stdin>"
	}
	if i.source == nil {
		if len(i.p.files) == 0 && !i.p.null {
			return "<stdin>:0"
		}
		return "<unknown>"
	}
	return fmt.Sprintf("%s:%d", name, i.source.line-1)
}

func (i *inputs) open() bool {
	for len(i.names) > 0 {
		name := i.names[0]
		i.names = i.names[1:]
		reader, err := i.p.c.Open(name)
		if err == nil {
			if probe, ok := reader.(interface{ Read([]byte) (int, error) }); ok && name != "-" {
				if info, statErr := core.Stat(i.p.c.Path(name)); statErr == nil && info.IsDir() {
					err = errors.New("Is a directory")
					_ = probe
				}
			}
		}
		if err != nil {
			i.failed = true
			i.p.c.Errorf("error: Could not open %s: %s", name, core.Reason(err))
			continue
		}
		i.reader, i.name = reader, name
		i.source = newDecoder(reader)
		i.lines = i.source.in
		return true
	}
	return false
}

func (i *inputs) close() {
	if i.reader != nil {
		i.reader.Close()
		i.reader = nil
	}
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
	for {
		if i.reader == nil && !i.open() {
			return nil, false
		}
		if i.p.rawInput {
			line, err := i.lines.ReadString('\n')
			if line == "" && err != nil {
				i.close()
				continue
			}
			i.source.line++
			return strings.TrimSuffix(line, "\n"), true
		}
		value, err := i.source.next()
		if err == io.EOF {
			i.close()
			continue
		}
		if err != nil {
			i.ended = true
			return err, true
		}
		if i.p.stream {
			i.pending = streamEvents(nil, []any{}, value, true)
			return i.one()
		}
		return value, true
	}
}

func (i *inputs) slurpAll() (any, bool) {
	if i.slurped {
		return nil, false
	}
	i.slurped = true
	if i.p.rawInput {
		var all strings.Builder
		for i.reader != nil || i.open() {
			io.Copy(&all, i.lines)
			i.close()
		}
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
