package text

import (
	"bytes"
	"io"
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "cut", Summary: "Select parts of lines.", Usage: "cut -b LIST | -c LIST | -f LIST [-d DELIM] [-s] [--complement] [--output-delimiter=TEXT] [-z] [file...]", Run: cut})
}

type span struct{ low, high int }

func parseList(c *core.Ctx, list, what string) ([]span, bool) {
	var spans []span
	for _, item := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		low, high, isRange := strings.Cut(item, "-")
		one := span{1, math.MaxInt}
		var err error
		if low != "" {
			one.low, err = strconv.Atoi(low)
		} else if high == "" {
			c.Usage(1, "invalid range with no endpoint: -")
			return nil, false
		}
		if err == nil && high != "" {
			one.high, err = strconv.Atoi(high)
		}
		if !isRange {
			one.high = one.low
		}
		if err != nil {
			c.Usage(1, "invalid %s value ‘%s’", what, item)
			return nil, false
		}
		if one.low < 1 {
			c.Usage(1, "%ss are numbered from 1", what)
			return nil, false
		}
		if one.high < one.low {
			c.Usage(1, "invalid decreasing range")
			return nil, false
		}
		spans = append(spans, one)
	}
	sort.Slice(spans, func(i, j int) bool { return spans[i].low < spans[j].low })
	var merged []span
	for _, one := range spans {
		if n := len(merged); n > 0 && one.low <= merged[n-1].high {
			merged[n-1].high = max(merged[n-1].high, one.high)
			continue
		}
		merged = append(merged, one)
	}
	return merged, true
}

func complement(spans []span) []span {
	var out []span
	next := 1
	for _, one := range spans {
		if one.low > next {
			out = append(out, span{next, one.low - 1})
		}
		if one.high == math.MaxInt {
			return out
		}
		next = one.high + 1
	}
	return append(out, span{next, math.MaxInt})
}

func cut(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "b:c:f:d:nsz", Long: "bytes=/b characters=/c fields=/f delimiter=/d only-delimited/s complement output-delimiter= zero-terminated/z"}.Parse(c)
	if !ok {
		return 1
	}
	mode, list, delimiter, joiner := "", "", "\t", ""
	onlyDelimited, inverse, hasJoiner, hasDelimiter := false, false, false, false
	end := byte('\n')
	for _, option := range options {
		switch option.Name {
		case "b", "c", "f":
			if mode != "" {
				return c.Usage(1, "only one type of list may be specified")
			}
			mode, list = option.Name, option.Value
		case "d":
			if utf8.RuneCountInString(option.Value) > 1 {
				return c.Usage(1, "the delimiter must be a single character")
			}
			delimiter, hasDelimiter = option.Value, true
			if delimiter == "" {
				delimiter = "\x00"
			}
		case "s":
			onlyDelimited = true
		case "complement":
			inverse = true
		case "output-delimiter":
			joiner, hasJoiner = option.Value, true
		case "z":
			end = 0
		}
	}
	if mode == "" {
		return c.Usage(1, "you must specify a list of bytes, characters, or fields")
	}
	if hasDelimiter && mode != "f" {
		return c.Usage(1, "an input delimiter may be specified only when operating on fields")
	}
	what := "field"
	if mode != "f" {
		what = "byte/character position"
	}
	spans, ok := parseList(c, list, what)
	if !ok {
		return 1
	}
	if inverse {
		spans = complement(spans)
	}
	if !hasJoiner && mode == "f" {
		joiner = delimiter
	}
	return each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, end, func(line []byte, _ bool) bool {
			switch mode {
			case "f":
				if !bytes.Contains(line, []byte(delimiter)) {
					if !onlyDelimited {
						c.Out.Write(line)
						c.Out.WriteByte(end)
					}
					return true
				}
				cutFields(c, line, []byte(delimiter), joiner, spans)
			case "b":
				cutBytes(c, line, joiner, spans)
			default:
				cutRunes(c, line, joiner, spans)
			}
			c.Out.WriteByte(end)
			return true
		})
	})
}

func cutFields(c *core.Ctx, line, delimiter []byte, joiner string, spans []span) {
	field, first, at := 0, true, 0
	for {
		field++
		rest := line
		next := bytes.Index(line, delimiter)
		if next >= 0 {
			rest = line[:next]
		}
		for at < len(spans) && field > spans[at].high {
			at++
		}
		if at == len(spans) {
			return
		}
		if field >= spans[at].low {
			if !first {
				c.Out.WriteString(joiner)
			}
			first = false
			c.Out.Write(rest)
		}
		if next < 0 {
			return
		}
		line = line[next+len(delimiter):]
	}
}

func cutBytes(c *core.Ctx, line []byte, joiner string, spans []span) {
	for i, one := range spans {
		if one.low > len(line) {
			return
		}
		if i > 0 {
			c.Out.WriteString(joiner)
		}
		c.Out.Write(line[one.low-1 : min(one.high, len(line))])
	}
}

func cutRunes(c *core.Ctx, line []byte, joiner string, spans []span) {
	runes := []rune(string(line))
	if len(runes) == len(line) {
		cutBytes(c, line, joiner, spans)
		return
	}
	for i, one := range spans {
		if one.low > len(runes) {
			return
		}
		if i > 0 {
			c.Out.WriteString(joiner)
		}
		c.Out.WriteString(string(runes[one.low-1 : min(one.high, len(runes))]))
	}
}
