package text

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "od", Summary: "Dump files in octal and other formats.", Usage: "od [-A RADIX] [-t TYPE] [-j SKIP] [-N COUNT] [-w WIDTH] [-abcdosxv] [file...]", Run: od},
		&core.Command{Name: "hexdump", Summary: "Dump files in hexadecimal.", Usage: "hexdump [-bcCdox] [-v] [-n COUNT] [-s SKIP] [-e FORMAT] [file...]", Run: hexdump},
		&core.Command{Name: "hd", Summary: "Dump files in canonical hexadecimal.", Usage: "hd [-v] [-n COUNT] [-s SKIP] [file...]", Run: hexdump},
	)
}

type dumpType struct {
	kind  byte // a c d o u x f
	size  int
	ascii bool
}

type dumper struct {
	c       *core.Ctx
	radix   string
	types   []dumpType
	width   int
	verbose bool
	skip    int64
	count   int64
}

func odTypes(text string) ([]dumpType, bool) {
	var out []dumpType
	for i := 0; i < len(text); {
		t := dumpType{kind: text[i], size: 4}
		i++
		if strings.IndexByte("acdoufx", t.kind) < 0 {
			return nil, false
		}
		if t.kind == 'a' || t.kind == 'c' {
			t.size = 1
		}
		if t.kind == 'f' {
			t.size = 8
		}
		start := i
		for i < len(text) && text[i] >= '0' && text[i] <= '9' {
			i++
		}
		if i > start {
			t.size, _ = strconv.Atoi(text[start:i])
		} else if i < len(text) && strings.IndexByte("CSILFD", text[i]) >= 0 {
			t.size = map[byte]int{'C': 1, 'S': 2, 'I': 4, 'L': 8, 'F': 4, 'D': 8}[text[i]]
			i++
		}
		if i < len(text) && text[i] == 'z' {
			t.ascii = true
			i++
		}
		out = append(out, t)
	}
	return out, true
}

func od(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "A:t:j:N:w::abcdosxvilfheS:", Long: "address-radix=/A format=/t skip-bytes=/j read-bytes=/N width?/w output-duplicates/v"}.Parse(c)
	if !ok {
		return 1
	}
	d := &dumper{c: c, radix: "%07o", width: 16, count: math.MaxInt64}
	short := map[string]string{"a": "a", "b": "o1", "c": "c", "d": "u2", "o": "o2", "s": "d2", "x": "x2", "i": "d4", "l": "d8", "f": "f4", "h": "x2", "e": "f8"}
	for _, option := range options {
		switch option.Name {
		case "A":
			layout, known := map[string]string{"o": "%07o", "d": "%07d", "x": "%06x", "n": ""}[option.Value]
			if !known {
				return c.Fail(1, "invalid output address radix '%s'; it must be one character from [doxn]", option.Value)
			}
			d.radix = layout
		case "t":
			types, good := odTypes(option.Value)
			if !good {
				return c.Fail(1, "invalid type string ‘%s’", option.Value)
			}
			d.types = append(d.types, types...)
		case "j":
			d.skip, _ = parseSize(option.Value)
		case "N":
			d.count, _ = parseSize(option.Value)
		case "w":
			d.width = 32
			if option.Given {
				d.width = int(parseInt(option.Value))
			}
		case "v":
			d.verbose = true
		default:
			types, _ := odTypes(short[option.Name])
			d.types = append(d.types, types...)
		}
	}
	if len(d.types) == 0 {
		d.types = []dumpType{{kind: 'o', size: 2}}
	}
	data, status := d.read(names)
	d.dump(data)
	return status
}

func (d *dumper) read(names []string) ([]byte, int) {
	var data []byte
	status := each(d.c, names, func(_ string, reader io.Reader) error {
		limit := reader
		if d.count != math.MaxInt64 {
			limit = io.LimitReader(reader, d.skip+d.count-int64(len(data)))
		}
		more, err := io.ReadAll(limit)
		data = append(data, more...)
		return err
	})
	data = data[min(d.skip, int64(len(data))):]
	if int64(len(data)) > d.count {
		data = data[:d.count]
	}
	return data, status
}

func cellWidth(t dumpType) int {
	switch t.kind {
	case 'a', 'c':
		return 3
	case 'x':
		return t.size * 2
	case 'o':
		return (t.size*8 + 2) / 3
	case 'u':
		return map[int]int{1: 3, 2: 5, 4: 10, 8: 20}[t.size]
	case 'd':
		return map[int]int{1: 4, 2: 6, 4: 11, 8: 20}[t.size]
	}
	return map[int]int{4: 15, 8: 24}[t.size]
}

func (d *dumper) dump(data []byte) {
	var previous []byte
	starred := false
	offset := 0
	widest := 0.0
	for _, t := range d.types {
		widest = max(widest, float64(cellWidth(t)+1)/float64(t.size))
	}
	for offset < len(data) {
		row := data[offset:min(offset+d.width, len(data))]
		if !d.verbose && previous != nil && len(row) == d.width && string(row) == string(previous) {
			if !starred {
				d.c.Out.WriteString("*\n")
				starred = true
			}
			offset += d.width
			continue
		}
		starred = false
		previous = row
		for i, t := range d.types {
			if i == 0 {
				d.address(int64(offset) + d.skip)
			} else if d.radix != "" {
				d.c.Out.WriteString(strings.Repeat(" ", len(fmt.Sprintf(d.radix, 0))))
			}
			d.row(row, t, int(widest*float64(t.size)))
			d.c.Out.WriteByte('\n')
		}
		offset += d.width
	}
	if d.radix != "" {
		d.address(int64(len(data)) + d.skip)
		d.c.Out.WriteByte('\n')
	}
}

func (d *dumper) address(offset int64) {
	if d.radix != "" {
		fmt.Fprintf(d.c.Out, d.radix, offset)
	}
}

func (d *dumper) row(row []byte, t dumpType, cell int) {
	printed := 0
	for i := 0; i < len(row); i += t.size {
		var raw [8]byte
		copy(raw[:], row[i:min(i+t.size, len(row))])
		text := formatCell(t, raw)
		fmt.Fprintf(d.c.Out, "%*s", cell, text)
		printed++
	}
	if t.ascii {
		d.c.Out.WriteString(strings.Repeat(" ", (d.width/t.size-printed)*cell) + "  >" + printable(row) + "<")
	}
}

func printable(row []byte) string {
	out := make([]byte, len(row))
	for i, b := range row {
		if out[i] = b; b < 32 || b > 126 {
			out[i] = '.'
		}
	}
	return string(out)
}

var asciiNames = strings.Fields("nul soh stx etx eot enq ack bel bs ht nl vt ff cr so si dle dc1 dc2 dc3 dc4 nak syn etb can em sub esc fs gs rs us sp")

func formatCell(t dumpType, raw [8]byte) string {
	value := binary.LittleEndian.Uint64(raw[:])
	if t.size < 8 {
		value &= 1<<(8*t.size) - 1
	}
	switch t.kind {
	case 'a':
		b := raw[0] & 127
		if b <= 32 {
			return asciiNames[b]
		}
		if b == 127 {
			return "del"
		}
		return string(rune(b))
	case 'c':
		b := raw[0]
		if at := strings.IndexByte("\x00\a\b\f\n\r\t\v", b); at >= 0 {
			return `\` + string("0abfnrtv"[at])
		}
		if b < 32 || b > 126 {
			return fmt.Sprintf("%03o", b)
		}
		return string(rune(b))
	case 'x':
		return fmt.Sprintf("%0*x", t.size*2, value)
	case 'o':
		return fmt.Sprintf("%0*o", (t.size*8+2)/3, value)
	case 'u':
		return strconv.FormatUint(value, 10)
	case 'd':
		shift := 64 - 8*t.size
		return strconv.FormatInt(int64(value<<shift)>>shift, 10)
	}
	if t.size == 4 {
		return strconv.FormatFloat(float64(math.Float32frombits(uint32(value))), 'g', 8, 32)
	}
	return strconv.FormatFloat(math.Float64frombits(value), 'g', 17, 64)
}

func hexdump(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "bcCdoxvn:s:e:", Long: "canonical/C length=/n skip=/s no-squeezing/v"}.Parse(c)
	if !ok {
		return 1
	}
	d := &dumper{c: c, radix: "%07x", width: 16, count: math.MaxInt64}
	canonical := c.Name == "hd"
	format := ""
	for _, option := range options {
		switch option.Name {
		case "C":
			canonical = true
		case "n":
			d.count, _ = parseSize(option.Value)
		case "s":
			d.skip, _ = parseSize(option.Value)
		case "v":
			d.verbose = true
		case "e":
			format = option.Value
		case "b":
			d.types = append(d.types, dumpType{kind: 'o', size: 1})
		case "c":
			d.types = append(d.types, dumpType{kind: 'c', size: 1})
		case "d":
			d.types = append(d.types, dumpType{kind: 'u', size: 2})
		case "o":
			d.types = append(d.types, dumpType{kind: 'o', size: 2})
		case "x":
			d.types = append(d.types, dumpType{kind: 'x', size: 2})
		}
	}
	data, status := d.read(names)
	switch {
	case format != "":
		hexFormat(c, data, format)
	case canonical:
		d.canonical(data)
	default:
		if len(d.types) == 0 {
			d.types = []dumpType{{kind: 'x', size: 2}}
		}
		if len(data) > 0 {
			d.dump(data)
		}
	}
	return status
}

// hexFormat supports the usual one-liners such as '1/1 "%02x"' and '"%d\n"'.
func hexFormat(c *core.Ctx, data []byte, format string) {
	open := strings.IndexByte(format, '"')
	end := strings.LastIndexByte(format, '"')
	if open < 0 || end <= open {
		return
	}
	size := 1
	if _, width, ok := strings.Cut(strings.TrimSpace(format[:open]), "/"); ok {
		size = max(1, int(parseInt(width)))
	}
	layout := unescape(format[open+1 : end])
	for i := 0; i < len(data); i += size {
		var raw [8]byte
		copy(raw[:], data[i:min(i+size, len(data))])
		fmt.Fprintf(c.Out, layout, binary.LittleEndian.Uint64(raw[:]))
	}
}

func (d *dumper) canonical(data []byte) {
	previous, starred := "", false
	for offset := 0; offset < len(data); offset += 16 {
		row := data[offset:min(offset+16, len(data))]
		if !d.verbose && offset > 0 && len(row) == 16 && string(row) == previous {
			if !starred {
				d.c.Out.WriteString("*\n")
			}
			starred = true
			continue
		}
		previous, starred = string(row), false
		fmt.Fprintf(d.c.Out, "%08x ", int64(offset)+d.skip)
		for i := 0; i < 16; i++ {
			if i == 8 {
				d.c.Out.WriteByte(' ')
			}
			if i < len(row) {
				fmt.Fprintf(d.c.Out, " %02x", row[i])
			} else {
				d.c.Out.WriteString("   ")
			}
		}
		d.c.Out.WriteString("  |" + printable(row) + "|\n")
	}
	if len(data) > 0 {
		fmt.Fprintf(d.c.Out, "%08x\n", int64(len(data))+d.skip)
	}
}
