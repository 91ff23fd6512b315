package text

import (
	"fmt"
	"io"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "cat", Summary: "Concatenate files to standard output.", Usage: "cat [-AbeEnstTuv] [file...]", Run: cat},
		&core.Command{Name: "tac", Summary: "Concatenate files, last line first.", Usage: "tac [-b] [-s separator] [file...]", Run: tac},
		&core.Command{Name: "rev", Summary: "Reverse the characters of each line.", Usage: "rev [file...]", Run: rev},
	)
}

type catState struct {
	number, numberText, squeeze, ends, tabs, visible bool
	line                                             int
	blank, middle                                    bool
}

func cat(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "AbeEnstTuv", Long: "show-all/A number-nonblank/b show-ends/E number/n squeeze-blank/s show-tabs/T show-nonprinting/v"}.Parse(c)
	if !ok {
		return 1
	}
	s := &catState{}
	for _, option := range options {
		switch option.Name {
		case "A":
			s.visible, s.ends, s.tabs = true, true, true
		case "e":
			s.visible, s.ends = true, true
		case "t":
			s.visible, s.tabs = true, true
		case "b":
			s.numberText = true
		case "n":
			s.number = true
		case "s":
			s.squeeze = true
		case "E":
			s.ends = true
		case "T":
			s.tabs = true
		case "v":
			s.visible = true
		}
	}
	plain := !(s.visible || s.ends || s.tabs || s.number || s.numberText || s.squeeze)
	return each(c, names, func(_ string, reader io.Reader) error {
		if plain {
			return passThrough(c, reader)
		}
		return core.Lines(reader, '\n', func(line []byte, terminated bool) bool { s.show(c, line, terminated); return true })
	})
}

// passThrough hands each block on at once, so that a slow producer shows.
func passThrough(c *core.Ctx, reader io.Reader) error {
	block := make([]byte, 64<<10)
	for {
		n, err := reader.Read(block)
		c.Out.Write(block[:n])
		c.Out.Flush()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *catState) show(c *core.Ctx, line []byte, terminated bool) {
	isBlank := len(line) == 0
	if s.squeeze && isBlank && s.blank {
		return
	}
	s.blank = isBlank
	if !s.middle && (s.number && !s.numberText || s.numberText && !isBlank) {
		s.line++
		fmt.Fprintf(c.Out, "%6d\t", s.line)
	}
	s.middle = !terminated
	if s.visible || s.tabs {
		line = s.reveal(line)
	}
	c.Out.Write(line)
	if terminated {
		if s.ends {
			c.Out.WriteByte('$')
		}
		c.Out.WriteByte('\n')
	}
}

func (s *catState) reveal(line []byte) []byte {
	out := make([]byte, 0, len(line)+8)
	for _, b := range line {
		if b == '\t' {
			if s.tabs {
				out = append(out, '^', 'I')
			} else {
				out = append(out, b)
			}
			continue
		}
		if !s.visible {
			out = append(out, b)
			continue
		}
		if b >= 128 {
			out = append(out, 'M', '-')
			b -= 128
		}
		switch {
		case b < 32:
			out = append(out, '^', b+64)
		case b == 127:
			out = append(out, '^', '?')
		default:
			out = append(out, b)
		}
	}
	return out
}

func tac(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "brs:", Long: "before/b regex/r separator=/s"}.Parse(c)
	if !ok {
		return 1
	}
	separator, before := "\n", false
	for _, option := range options {
		switch option.Name {
		case "s":
			separator = option.Value
		case "b":
			before = true
		}
	}
	return each(c, names, func(_ string, reader io.Reader) error {
		data, err := io.ReadAll(reader)
		if err != nil {
			return err
		}
		writeReversed(c, string(data), separator, before)
		return nil
	})
}

func writeReversed(c *core.Ctx, data, separator string, before bool) {
	var starts []int
	starts = append(starts, 0)
	for i := 0; i+len(separator) <= len(data); {
		if data[i:i+len(separator)] != separator {
			i++
			continue
		}
		if before {
			if i > 0 {
				starts = append(starts, i)
			}
		} else if i+len(separator) < len(data) {
			starts = append(starts, i+len(separator))
		}
		i += len(separator)
	}
	end := len(data)
	for i := len(starts) - 1; i >= 0; i-- {
		c.Out.WriteString(data[starts[i]:end])
		end = starts[i]
	}
}

func rev(c *core.Ctx) int {
	_, names, ok := core.Options{}.Parse(c)
	if !ok {
		return 1
	}
	return each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, '\n', func(line []byte, terminated bool) bool {
			for len(line) > 0 {
				_, size := utf8.DecodeLastRune(line)
				c.Out.Write(line[len(line)-size:])
				line = line[:len(line)-size]
			}
			if terminated {
				c.Out.WriteByte('\n')
			}
			return true
		})
	})
}
