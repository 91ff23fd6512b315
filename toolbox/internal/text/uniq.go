package text

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "uniq", Summary: "Report or omit repeated lines.", Usage: "uniq [-cdDiuz] [-f N] [-s N] [-w N] [input [output]]", Run: uniq},
		&core.Command{Name: "comm", Summary: "Compare two sorted files line by line.", Usage: "comm [-123z] [--total] [--output-delimiter=TEXT] file1 file2", Run: comm},
	)
}

func uniq(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "cdDiuzf:s:w:", Long: "count/c repeated/d all-repeated?/D ignore-case/i unique/u zero-terminated/z skip-fields=/f skip-chars=/s check-chars=/w group?/G"}.Parse(c)
	if !ok {
		return 1
	}
	on := map[string]bool{}
	number := map[string]int{"w": -1}
	separate := "none"
	for _, option := range options {
		on[option.Name] = true
		switch option.Name {
		case "f", "s", "w":
			value, err := strconv.Atoi(option.Value)
			if err != nil {
				return c.Fail(1, "%s: invalid number of bytes to compare", option.Value)
			}
			number[option.Name] = value
		case "D":
			if option.Given {
				separate = option.Value
			}
		}
	}
	delimiter := byte('\n')
	if on["z"] {
		delimiter = 0
	}
	key := func(line []byte) []byte {
		for i := 0; i < number["f"]; i++ {
			line = bytes.TrimLeft(line, " \t")
			for len(line) > 0 && !isBlank(line[0]) {
				line = line[1:]
			}
		}
		line = line[min(number["s"], len(line)):]
		if number["w"] >= 0 && len(line) > number["w"] {
			line = line[:number["w"]]
		}
		if on["i"] {
			line = bytes.ToLower(line)
		}
		return line
	}
	out := c.Out
	if len(names) > 1 {
		file, err := c.Create(names[1])
		if err != nil {
			return c.Fail(1, "%s: %s", names[1], core.Reason(err))
		}
		defer file.Close()
		out = core.NewOut(file)
		names = names[:1]
	}
	var group [][]byte
	var current []byte
	count, groups := 0, 0
	flush := func() {
		if count == 0 || on["d"] && count < 2 || on["u"] && count > 1 || on["D"] && count < 2 {
			return
		}
		if on["D"] {
			if separate == "prepend" || separate == "separate" && groups > 0 {
				out.WriteByte(delimiter)
			}
			groups++
			for _, line := range group {
				out.Write(line)
				out.WriteByte(delimiter)
			}
			return
		}
		if on["c"] {
			fmt.Fprintf(out, "%7d ", count)
		}
		out.Write(current)
		out.WriteByte(delimiter)
	}
	status := each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, delimiter, func(line []byte, _ bool) bool {
			if count > 0 && bytes.Equal(key(line), key(current)) {
				count++
				if on["D"] {
					group = append(group, bytes.Clone(line))
				}
				return true
			}
			flush()
			current = append(current[:0], line...)
			count = 1
			if on["D"] {
				group = [][]byte{bytes.Clone(line)}
			}
			return true
		})
	})
	flush()
	out.Flush()
	return status
}

func comm(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "123z", Long: "check-order nocheck-order total output-delimiter= zero-terminated/z"}.Parse(c)
	if !ok {
		return 1
	}
	if len(names) != 2 {
		if len(names) < 2 {
			return c.Usage(1, "missing operand")
		}
		return c.Usage(1, "extra operand ‘%s’", names[2])
	}
	hide := map[string]bool{}
	separator, total, delimiter := "\t", false, byte('\n')
	for _, option := range options {
		switch option.Name {
		case "output-delimiter":
			separator = option.Value
		case "total":
			total = true
		case "z":
			delimiter = 0
		default:
			hide[option.Name] = true
		}
	}
	var sides [2][][]byte
	for i, name := range names {
		data, err := readAll(c, name)
		if err != nil {
			return c.Fail(1, "%s: %s", name, core.Reason(err))
		}
		sides[i] = splitLines(data, delimiter)
	}
	var counted [3]int
	emit := func(column int, line []byte) {
		counted[column]++
		if hide[strconv.Itoa(column+1)] {
			return
		}
		for i := 0; i < column; i++ {
			if !hide[strconv.Itoa(i+1)] {
				c.Out.WriteString(separator)
			}
		}
		c.Out.Write(line)
		c.Out.WriteByte(delimiter)
	}
	left, right := sides[0], sides[1]
	for len(left) > 0 || len(right) > 0 {
		order := 0
		switch {
		case len(left) == 0:
			order = 1
		case len(right) == 0:
			order = -1
		default:
			order = bytes.Compare(left[0], right[0])
		}
		switch {
		case order < 0:
			emit(0, left[0])
			left = left[1:]
		case order > 0:
			emit(1, right[0])
			right = right[1:]
		default:
			emit(2, left[0])
			left, right = left[1:], right[1:]
		}
	}
	status := 0
	for i, side := range sides {
		if counted[0]+counted[1] > 0 && !slices.IsSortedFunc(side, bytes.Compare) {
			c.Errorf("file %d is not in sorted order", i+1)
			status = 1
		}
	}
	if status != 0 {
		c.Errorf("input is not in sorted order")
	}
	if total {
		fmt.Fprintf(c.Out, "%d%s%d%s%d%stotal\n", counted[0], separator, counted[1], separator, counted[2], separator)
	}
	return status
}
