package text

import (
	"bufio"
	"bytes"
	"io"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "paste", Summary: "Merge lines of files.", Usage: "paste [-s] [-z] [-d LIST] [file...]", Run: paste},
		&core.Command{Name: "join", Summary: "Join lines of two sorted files on a common field.", Usage: "join [-a N] [-v N] [-e TEXT] [-i] [-1 F] [-2 F] [-j F] [-o FORMAT] [-t CHAR] file1 file2", Run: join},
	)
}

func pasteDelimiters(value string) []string {
	if value == "" {
		return []string{""}
	}
	var out []string
	for i := 0; i < len(value); i++ {
		if value[i] == '\\' && i+1 < len(value) {
			i++
			if value[i] == '0' {
				out = append(out, "")
			} else {
				out = append(out, unescape(`\`+string(value[i])))
			}
			continue
		}
		out = append(out, string(value[i]))
	}
	return out
}

func paste(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "sd:z", Long: "serial/s delimiters=/d zero-terminated/z"}.Parse(c)
	if !ok {
		return 1
	}
	serial, delimiters, end := false, []string{"\t"}, byte('\n')
	for _, option := range options {
		switch option.Name {
		case "s":
			serial = true
		case "d":
			delimiters = pasteDelimiters(option.Value)
		case "z":
			end = 0
		}
	}
	if serial {
		return each(c, names, func(_ string, reader io.Reader) error {
			i := -1
			err := core.Lines(reader, end, func(line []byte, _ bool) bool {
				if i >= 0 {
					c.Out.WriteString(delimiters[i%len(delimiters)])
				}
				i++
				c.Out.Write(line)
				return true
			})
			c.Out.WriteByte(end)
			return err
		})
	}
	if len(names) == 0 {
		names = []string{"-"}
	}
	shared := bufio.NewReader(c.Stdin)
	readers := make([]*bufio.Reader, len(names))
	for i, name := range names {
		if name == "-" {
			readers[i] = shared
			continue
		}
		file, err := c.Open(name)
		if err != nil {
			return c.Fail(1, "%s: %s", name, core.Reason(err))
		}
		defer file.Close()
		readers[i] = bufio.NewReader(file)
	}
	pasteColumns(c, readers, delimiters, end)
	return 0
}

func pasteColumns(c *core.Ctx, readers []*bufio.Reader, delimiters []string, end byte) {
	for {
		var row bytes.Buffer
		any := false
		for i, reader := range readers {
			if i > 0 {
				row.WriteString(delimiters[(i-1)%len(delimiters)])
			}
			line, err := reader.ReadBytes(end)
			if len(line) > 0 {
				any = true
				if err == nil {
					line = line[:len(line)-1]
				}
				row.Write(line)
			}
		}
		if !any {
			return
		}
		c.Out.Write(row.Bytes())
		c.Out.WriteByte(end)
	}
}

type joiner struct {
	c         *core.Ctx
	field     [2]int
	separator string
	empty     string
	format    []string
	fold      bool
	header    bool
	unpaired  [2]bool
	only      bool
	auto      bool
	widths    [2]int
}

func join(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "a:v:e:i1:2:j:o:t:z", Long: "ignore-case/i check-order nocheck-order header zero-terminated/z"}.Parse(c)
	if !ok {
		return 1
	}
	j := &joiner{c: c}
	for _, option := range options {
		number := int(parseInt(option.Value))
		switch option.Name {
		case "a", "v":
			if number < 1 || number > 2 {
				return c.Fail(1, "invalid file number: ‘%s’", option.Value)
			}
			j.unpaired[number-1] = true
			j.only = j.only || option.Name == "v"
		case "e":
			j.empty = option.Value
		case "i":
			j.fold = true
		case "1":
			j.field[0] = number - 1
		case "2":
			j.field[1] = number - 1
		case "j":
			j.field = [2]int{number - 1, number - 1}
		case "o":
			if option.Value == "auto" {
				j.auto = true
			} else {
				j.format = append(j.format, strings.FieldsFunc(option.Value, func(r rune) bool { return r == ',' || r == ' ' })...)
			}
		case "t":
			j.separator = option.Value
		case "header":
			j.header = true
		}
	}
	if len(names) != 2 {
		return c.Usage(1, "missing operand")
	}
	var sides [2][][]string
	for i, name := range names {
		data, err := readAll(c, name)
		if err != nil {
			return c.Fail(1, "%s: %s", name, core.Reason(err))
		}
		for _, line := range splitLines(data, '\n') {
			sides[i] = append(sides[i], j.split(string(line)))
		}
		if len(sides[i]) > 0 {
			j.widths[i] = len(sides[i][0])
		}
	}
	j.merge(sides[0], sides[1])
	return 0
}

func parseInt(text string) int64 {
	number := int64(0)
	for i := 0; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
		number = number*10 + int64(text[i]-'0')
	}
	return number
}

func (j *joiner) split(line string) []string {
	if j.separator == "" {
		return strings.Fields(line)
	}
	return strings.Split(line, j.separator)
}

func (j *joiner) key(row []string, side int) string {
	if j.field[side] >= len(row) {
		return ""
	}
	if j.fold {
		return strings.ToLower(row[j.field[side]])
	}
	return row[j.field[side]]
}

func (j *joiner) merge(left, right [][]string) {
	if j.header && len(left) > 0 && len(right) > 0 {
		j.print(left[0], right[0])
		left, right = left[1:], right[1:]
	}
	for len(left) > 0 || len(right) > 0 {
		order := 0
		switch {
		case len(left) == 0:
			order = 1
		case len(right) == 0:
			order = -1
		default:
			order = strings.Compare(j.key(left[0], 0), j.key(right[0], 1))
		}
		if order < 0 {
			if j.unpaired[0] {
				j.print(left[0], nil)
			}
			left = left[1:]
			continue
		}
		if order > 0 {
			if j.unpaired[1] {
				j.print(nil, right[0])
			}
			right = right[1:]
			continue
		}
		same := j.key(left[0], 0)
		n, m := 1, 1
		for n < len(left) && j.key(left[n], 0) == same {
			n++
		}
		for m < len(right) && j.key(right[m], 1) == same {
			m++
		}
		if !j.only {
			for _, a := range left[:n] {
				for _, b := range right[:m] {
					j.print(a, b)
				}
			}
		}
		left, right = left[n:], right[m:]
	}
}

func (j *joiner) print(left, right []string) {
	separator := j.separator
	if separator == "" {
		separator = " "
	}
	var fields []string
	pick := func(row []string, index int) string {
		if index < len(row) && row[index] != "" {
			return row[index]
		}
		return j.empty
	}
	joinField := func() string {
		if left != nil {
			return pick(left, j.field[0])
		}
		return pick(right, j.field[1])
	}
	if len(j.format) > 0 {
		for _, item := range j.format {
			switch {
			case item == "0":
				fields = append(fields, joinField())
			case strings.HasPrefix(item, "1."):
				fields = append(fields, pick(left, int(parseInt(item[2:]))-1))
			default:
				fields = append(fields, pick(right, int(parseInt(strings.TrimPrefix(item, "2.")))-1))
			}
		}
	} else {
		fields = append(fields, joinField())
		for side, row := range [2][]string{left, right} {
			width := len(row)
			if j.auto {
				width = j.widths[side]
			}
			for i := 0; i < width; i++ {
				if i != j.field[side] {
					fields = append(fields, pick(row, i))
				}
			}
		}
	}
	j.c.Out.WriteString(strings.Join(fields, separator) + "\n")
}
