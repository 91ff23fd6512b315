package text

import (
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "xxd", Summary: "Make a hex dump, or reverse it.", Usage: "xxd [-bipuEr] [-c COLS] [-g BYTES] [-l LEN] [-s SKIP] [infile [outfile]]", Run: xxd})
}

type hexDump struct {
	c                                      *core.Ctx
	columns, group                         int
	bits, plain, upper, include, littleEnd bool
}

func xxd(c *core.Ctx) int {
	for i, arg := range c.Args {
		if strings.HasPrefix(arg, "-") && len(arg) > 2 && (arg == "-ps" || arg == "-plain" || arg == "-postscript") {
			c.Args[i] = "-p"
		}
	}
	options, names, ok := core.Options{Short: "bipuErec:g:l:s:o:n:", Long: "plain/p cols=/c len=/l revert/r bits/b include/i uppercase/u"}.Parse(c)
	if !ok {
		return 1
	}
	d := &hexDump{c: c, columns: -1, group: -1}
	reverse, limit, skip := false, int64(-1), int64(0)
	for _, option := range options {
		number, _ := strconv.ParseInt(option.Value, 0, 64)
		switch option.Name {
		case "b":
			d.bits = true
		case "i":
			d.include = true
		case "p":
			d.plain = true
		case "u":
			d.upper = true
		case "e":
			d.littleEnd = true
		case "r":
			reverse = true
		case "c":
			d.columns = int(number)
		case "g":
			d.group = int(number)
		case "l":
			limit = number
		case "s":
			skip = number
		}
	}
	input := "-"
	if len(names) > 0 {
		input = names[0]
	}
	data, err := readAll(c, input)
	if err != nil {
		return c.Fail(2, "%s: %s", input, core.Reason(err))
	}
	var sink io.Writer = c.Out
	if len(names) > 1 {
		file, err := c.Create(names[1])
		if err != nil {
			return c.Fail(3, "%s: %s", names[1], core.Reason(err))
		}
		defer file.Close()
		sink = file
	}
	if reverse {
		sink.Write(unhex(string(data), d.plain))
		return 0
	}
	if skip < 0 {
		skip = max(0, int64(len(data))+skip)
	}
	data = data[min(skip, int64(len(data))):]
	if limit >= 0 && int64(len(data)) > limit {
		data = data[:limit]
	}
	d.print(sink, data, skip, input)
	return 0
}

func unhex(text string, plain bool) []byte {
	var out []byte
	for _, line := range strings.Split(text, "\n") {
		if !plain {
			if _, rest, ok := strings.Cut(line, ":"); ok {
				line = rest
			}
			if at := strings.Index(strings.TrimLeft(line, " "), "  "); at >= 0 {
				line = strings.TrimLeft(line, " ")[:at]
			}
		}
		var digits []byte
		for i := 0; i < len(line); i++ {
			if b := line[i]; b >= '0' && b <= '9' || b|32 >= 'a' && b|32 <= 'f' {
				digits = append(digits, b)
			}
		}
		raw, _ := hex.DecodeString(string(digits[:len(digits)/2*2]))
		out = append(out, raw...)
	}
	return out
}

func (d *hexDump) print(sink io.Writer, data []byte, skip int64, input string) {
	layout := "%02x"
	if d.upper {
		layout = "%02X"
	}
	switch {
	case d.include:
		d.cSource(sink, data, input, layout)
		return
	case d.plain:
		columns := 30
		if d.columns >= 0 {
			columns = d.columns
		}
		for i, b := range data {
			fmt.Fprintf(sink, layout, b)
			if columns > 0 && (i+1)%columns == 0 {
				io.WriteString(sink, "\n")
			}
		}
		if len(data) > 0 && (columns == 0 || len(data)%columns != 0) {
			io.WriteString(sink, "\n")
		}
		return
	}
	columns, group, cell := 16, 2, 2
	if d.bits {
		columns, group, cell, layout = 6, 1, 8, "%08b"
	}
	if d.littleEnd {
		group = 4
	}
	if d.columns > 0 {
		columns = d.columns
	}
	if d.group >= 0 {
		group = d.group
	}
	for offset := 0; offset < len(data); offset += columns {
		row := data[offset:min(offset+columns, len(data))]
		var hexPart strings.Builder
		for i := 0; i < columns; i++ {
			at := i
			if d.littleEnd {
				at = i/group*group + group - 1 - i%group
			}
			if at < len(row) {
				fmt.Fprintf(&hexPart, layout, row[at])
			} else {
				hexPart.WriteString(strings.Repeat(" ", cell))
			}
			if group > 0 && (i+1)%group == 0 && i+1 < columns {
				hexPart.WriteByte(' ')
			}
		}
		fmt.Fprintf(sink, "%08x: %s  %s\n", int64(offset)+skip, hexPart.String(), printable(row))
	}
}

func (d *hexDump) cSource(sink io.Writer, data []byte, input, layout string) {
	name := ""
	if input != "-" {
		name = strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' || r|32 >= 'a' && r|32 <= 'z' {
				return r
			}
			return '_'
		}, input)
		fmt.Fprintf(sink, "unsigned char %s[] = {", name)
	}
	columns := 12
	if d.columns > 0 {
		columns = d.columns
	}
	for i, b := range data {
		if i > 0 {
			io.WriteString(sink, ",")
		}
		if i%columns == 0 {
			if i > 0 || name != "" {
				io.WriteString(sink, "\n")
			}
			io.WriteString(sink, "  ")
		} else {
			io.WriteString(sink, " ")
		}
		fmt.Fprintf(sink, "0x"+layout, b)
	}
	io.WriteString(sink, "\n")
	if name != "" {
		fmt.Fprintf(sink, "};\nunsigned int %s_len = %d;\n", name, len(data))
	}
}
