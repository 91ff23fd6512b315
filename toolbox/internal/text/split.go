package text

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "split", Summary: "Split a file into pieces.", Usage: "split [-l LINES | -b BYTES | -n N] [-a N] [-d] [--additional-suffix=TEXT] [file [prefix]]", Run: split},
		&core.Command{Name: "strings", Summary: "Print printable sequences in files.", Usage: "strings [-n MIN] [-t RADIX] [file...]", Run: stringsCommand},
		&core.Command{Name: "tee", Summary: "Copy standard input to files and standard output.", Usage: "tee [-a] [-i] [file...]", Run: tee},
	)
}

type splitter struct {
	c                  *core.Ctx
	prefix, additional string
	width              int
	digits             bool
	from               int
	index              int
}

func (s *splitter) name() string {
	n := s.index + s.from
	s.index++
	suffix := ""
	if s.digits {
		suffix = fmt.Sprintf("%0*d", s.width, n)
	} else {
		for i := 0; i < s.width; i++ {
			suffix = string(rune('a'+n%26)) + suffix
			n /= 26
		}
	}
	return s.prefix + suffix + s.additional
}

func (s *splitter) write(data []byte) bool {
	name := s.name()
	file, err := s.c.Create(name)
	if err != nil {
		s.c.Errorf("%s: %s", name, core.Reason(err))
		return false
	}
	_, err = file.Write(data)
	file.Close()
	return err == nil
}

func split(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "l:b:C:n:a:dx", Long: "lines=/l bytes=/b line-bytes=/C number=/n suffix-length=/a numeric-suffixes?/d additional-suffix= verbose"}.Parse(c)
	if !ok {
		return 1
	}
	s := &splitter{c: c, prefix: "x", width: 2}
	mode, amount := "l", int64(1000)
	byLines := false
	for _, option := range options {
		switch option.Name {
		case "l", "b", "C", "n":
			mode = option.Name
			value := option.Value
			if mode == "n" {
				value, byLines = strings.CutPrefix(value, "l/")
			}
			if amount, ok = parseSize(value); !ok || amount == 0 {
				return c.Fail(1, "invalid number of %s: ‘%s’", map[string]string{"l": "lines", "b": "bytes", "C": "bytes", "n": "chunks"}[mode], option.Value)
			}
		case "a":
			s.width = int(parseInt(option.Value))
		case "d":
			s.digits = true
			s.from = int(parseInt(option.Value))
		case "additional-suffix":
			s.additional = option.Value
		}
	}
	input := "-"
	if len(names) > 0 {
		input = names[0]
	}
	if len(names) > 1 {
		s.prefix = names[1]
	}
	data, err := readAll(c, input)
	if err != nil {
		return c.Fail(1, "cannot open '%s' for reading: %s", input, core.Reason(err))
	}
	for _, piece := range s.pieces(data, mode, amount, byLines) {
		if !s.write(piece) {
			return 1
		}
	}
	return 0
}

func (s *splitter) pieces(data []byte, mode string, amount int64, byLines bool) [][]byte {
	var out [][]byte
	switch mode {
	case "b":
		for len(data) > 0 {
			n := min(amount, int64(len(data)))
			out, data = append(out, data[:n]), data[n:]
		}
	case "n":
		total := int64(len(data))
		start := int64(0)
		for i := int64(1); i <= amount; i++ {
			end := total * i / amount
			if i == amount {
				end = total
			}
			for byLines && end < total && end > 0 && data[end-1] != '\n' {
				end++
			}
			end = max(end, start)
			out, start = append(out, data[start:end]), end
		}
	default:
		lines, start := int64(0), 0
		for i, b := range data {
			if b != '\n' {
				continue
			}
			if lines++; mode == "l" && lines == amount || mode == "C" && int64(i+1-start) >= amount {
				out, start, lines = append(out, data[start:i+1]), i+1, 0
			}
		}
		if start < len(data) {
			out = append(out, data[start:])
		}
	}
	return out
}

func stringsCommand(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "an:t:fe:wo", Long: "all/a bytes=/n radix=/t print-file-name/f encoding=/e", Digit: true}.Parse(c)
	if !ok {
		return 1
	}
	least, radix, showName := 4, "", false
	for _, option := range options {
		switch option.Name {
		case "n", "#":
			number, err := strconv.Atoi(option.Value)
			if err != nil || number < 1 {
				return c.Fail(1, "invalid minimum string length %s", option.Value)
			}
			least = number
		case "t":
			radix = map[string]string{"d": "%7d ", "o": "%7o ", "x": "%7x "}[option.Value]
		case "o":
			radix = "%7o "
		case "f":
			showName = true
		}
	}
	return each(c, names, func(name string, reader io.Reader) error {
		data, err := io.ReadAll(reader)
		if err != nil {
			return err
		}
		start := 0
		for i := 0; i <= len(data); i++ {
			if i < len(data) && (data[i] >= 32 && data[i] < 127 || data[i] == '\t') {
				continue
			}
			if i-start >= least {
				if showName {
					c.Out.WriteString(name + ": ")
				}
				if radix != "" {
					fmt.Fprintf(c.Out, radix, start)
				}
				c.Out.Write(data[start:i])
				c.Out.WriteByte('\n')
			}
			start = i + 1
		}
		return nil
	})
}

func tee(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "aip", Long: "append/a ignore-interrupts/i output-error?/p"}.Parse(c)
	if !ok {
		return 1
	}
	appending := false
	for _, option := range options {
		appending = appending || option.Name == "a"
	}
	status := 0
	var files []core.File
	for _, name := range names {
		open := c.Create
		if appending {
			open = c.Append
		}
		file, err := open(name)
		if err != nil {
			c.Errorf("%s: %s", name, core.Reason(err))
			status = 1
			continue
		}
		defer file.Close()
		files = append(files, file)
	}
	block := make([]byte, 64<<10)
	for {
		n, err := c.Stdin.Read(block)
		for _, file := range files {
			file.Write(block[:n])
		}
		c.Out.Write(block[:n])
		c.Out.Flush()
		if err != nil {
			return status
		}
	}
}
