// Package sed is the stream editor, with GNU's extensions.
package sed

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

func init() {
	core.Register(&core.Command{Name: "sed", Summary: "Edit a stream of text.", Usage: "sed [-nErsuz] [-i[SUFFIX]] [-l N] [-e SCRIPT]... [-f FILE]... [SCRIPT] [file...]", Run: run})
}

func run(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "nErsuzi::e:f:l:b", Long: "quiet/n silent/n regexp-extended/E expression=/e file=/f in-place?/i separate/s unbuffered/u null-data/z line-length=/l posix debug sandbox follow-symlinks binary/b"}.Parse(c)
	if !ok {
		return 1
	}
	s := &stream{c: c, delimiter: '\n', wrap: 70, ranges: map[*instruction]int{}, active: map[*instruction]bool{}}
	var script []string
	given := false
	for _, option := range options {
		switch option.Name {
		case "n":
			s.quiet = true
		case "E", "r":
			s.extended = true
		case "s":
			s.separate = true
		case "z":
			s.delimiter = 0
		case "i":
			s.inPlace, s.separate, s.suffix = true, true, option.Value
		case "l":
			s.wrap, _ = strconv.Atoi(option.Value)
		case "e":
			given = true
			script = append(script, option.Value)
		case "f":
			given = true
			text, err := readScript(c, option.Value)
			if err != nil {
				return c.Fail(1, "couldn't open file %s: %s", option.Value, core.Reason(err))
			}
			script = append(script, text)
		}
	}
	if !given {
		if len(operands) == 0 {
			fmt.Fprintf(c.Stderr, "Usage: sed [OPTION]... {script-only-if-no-other-script} [input-file]...\n")
			return 1
		}
		script, operands = operands[:1], operands[1:]
	}
	p := &parser{source: strings.Join(script, "\n"), extended: s.extended}
	program, err := p.program()
	if err != nil {
		return c.Fail(1, "-e expression #1, char %d: %s", p.pos, err)
	}
	if strings.HasPrefix(p.source, "#n\n") || p.source == "#n" {
		s.quiet = true
	}
	s.program = program
	return s.run(operands)
}

func readScript(c *core.Ctx, name string) (string, error) {
	reader, err := c.Open(name)
	if err != nil {
		return "", err
	}
	defer reader.Close()
	data, err := io.ReadAll(reader)
	text := string(data)
	if strings.HasPrefix(text, "#!") {
		_, text, _ = strings.Cut(text, "\n")
	}
	return strings.TrimSuffix(text, "\n"), err
}

type addressKind uint8

const (
	byLine addressKind = iota + 1
	byLast
	byRegex
	byStep
	byCount    // addr1,+N
	byMultiple // addr1,~N
)

type address struct {
	kind  addressKind
	line  int
	step  int
	regex *posix.Regex // nil means the last one used
}

type instruction struct {
	first, second *address
	negated       bool
	name          byte
	text          string
	number        int
	jump          int // for { b t T: index to go to
	label         string
	substitution  *substitution
	mapping       map[rune]rune
}

type substitution struct {
	regex      *posix.Regex
	parts      []piece
	global     bool
	print      bool
	occurrence int
	evaluate   bool
	file       string
}

// piece is a part of a replacement: text, or a group, with a case change that starts there.
type piece struct {
	text   string
	group  int // -1 for text
	change byte
}
