package text

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"warmcell/toolbox/internal/bytescan"
	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "wc", Summary: "Count lines, words, bytes and characters.", Usage: "wc [-clLmw] [--files0-from=file] [file...]", Run: wc})
}

type counts struct {
	lines, words, chars, bytes, longest int64
}

func wc(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "clLmw", Long: "bytes/c chars/m lines/l words/w max-line-length/L files0-from= total="}.Parse(c)
	if !ok {
		return 1
	}
	want := map[string]bool{}
	totals := "auto"
	for _, option := range options {
		switch option.Name {
		case "files0-from":
			data, err := readAll(c, option.Value)
			if err != nil {
				return c.Fail(1, "%s: %s", option.Value, core.Reason(err))
			}
			names = append(names, strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")...)
		case "total":
			totals = option.Value
		default:
			want[option.Name] = true
		}
	}
	if len(want) == 0 {
		want["l"], want["w"], want["c"] = true, true, true
	}
	var rows []counts
	var labels []string
	var total counts
	status := each(c, names, func(name string, reader io.Reader) error {
		one, err := count(reader, want)
		if err != nil {
			return err
		}
		rows, labels = append(rows, one), append(labels, name)
		total.add(one)
		return nil
	})
	if len(names) == 0 && len(labels) > 0 {
		labels[0] = ""
	}
	width := columnWidth(c, names, want, total)
	for i, row := range rows {
		if totals != "only" {
			row.print(c, want, width, labels[i])
		}
	}
	if len(names) > 1 && totals == "auto" || totals == "always" || totals == "only" {
		label := "total"
		if totals == "only" {
			label, width = "", 1
		}
		total.print(c, want, width, label)
	}
	return status
}

func readAll(c *core.Ctx, name string) ([]byte, error) {
	reader, err := c.Open(name)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}

// columnWidth follows GNU: one number of one source is not padded, standard input pads to 7.
func columnWidth(c *core.Ctx, names []string, want map[string]bool, total counts) int {
	if len(want) == 1 && len(names) <= 1 {
		return 1
	}
	width := len(fmt.Sprint(total.bytes))
	for _, name := range names {
		if name == "-" {
			return max(7, width)
		}
		if info, err := core.Stat(c.Path(name)); err == nil && !info.Mode().IsRegular() {
			return max(7, width)
		}
	}
	if len(names) == 0 {
		return max(7, width)
	}
	return width
}

func (a *counts) add(b counts) {
	a.lines += b.lines
	a.words += b.words
	a.chars += b.chars
	a.bytes += b.bytes
	a.longest = max(a.longest, b.longest)
}

func (a counts) print(c *core.Ctx, want map[string]bool, width int, label string) {
	var fields []string
	for _, column := range []struct {
		key   string
		value int64
	}{{"l", a.lines}, {"w", a.words}, {"m", a.chars}, {"c", a.bytes}, {"L", a.longest}} {
		if want[column.key] {
			digits := strconv.FormatInt(column.value, 10)
			fields = append(fields, strings.Repeat(" ", max(0, width-len(digits)))+digits)
		}
	}
	if label != "" {
		fields = append(fields, label)
	}
	c.Out.WriteString(strings.Join(fields, " ") + "\n")
}

// Most inputs are small, and memory that was never used is not there yet.
const smallBlock, largeBlock = 4 << 10, 256 << 10

func count(reader io.Reader, want map[string]bool) (counts, error) {
	var total counts
	block := make([]byte, smallBlock)
	inWord := false
	var column int64
	needWords, needChars, needLongest := want["w"], want["m"], want["L"]
	carried := 0
	for {
		n, err := reader.Read(block[carried:])
		data := block[:carried+n]
		total.bytes += int64(n)
		if want["l"] {
			total.lines += int64(bytescan.Count(data[carried:], '\n'))
		}
		carried = 0
		if needWords && !needLongest && !needChars {
			inWord = countWords(data, &total, inWord)
		} else if needWords || needChars || needLongest {
			if err != io.EOF {
				carried = incompleteSuffix(data)
			}
			inWord, column = countRunes(data[:len(data)-carried], &total, inWord, column)
			copy(block, data[len(data)-carried:])
		}
		if err == io.EOF {
			total.longest = max(total.longest, column)
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if len(data) == len(block) && len(block) < largeBlock {
			block = append(make([]byte, 0, largeBlock), block[:carried]...)[:largeBlock]
		}
	}
}

func countWords(data []byte, total *counts, inWord bool) bool {
	for _, b := range data {
		isSpace := b == ' ' || b >= 9 && b <= 13
		if !isSpace && !inWord {
			total.words++
		}
		inWord = !isSpace
	}
	return inWord
}

func incompleteSuffix(data []byte) int {
	for i := 1; i <= 3 && i <= len(data); i++ {
		if utf8.RuneStart(data[len(data)-i]) {
			if !utf8.FullRune(data[len(data)-i:]) {
				return i
			}
			return 0
		}
	}
	return 0
}

func countRunes(data []byte, total *counts, inWord bool, column int64) (bool, int64) {
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		data = data[size:]
		if r != utf8.RuneError || size > 1 {
			total.chars++
		}
		isSpace := unicode.IsSpace(r)
		if !isSpace && !inWord {
			total.words++
		}
		inWord = !isSpace
		switch {
		case r == '\n' || r == '\r' || r == '\f':
			total.longest = max(total.longest, column)
			column = 0
		case r == '\t':
			column += 8 - column%8
		case unicode.IsPrint(r):
			column += int64(core.RuneWidth(r))
		}
	}
	return inWord, column
}
