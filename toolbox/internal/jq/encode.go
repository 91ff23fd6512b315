package jq

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

// encoder writes values in jq's layout.
type encoder struct {
	indent string
	color  bool
	ascii  bool
	sorted bool
	out    []byte
}

const (
	colorNull   = "\x1b[1;30m"
	colorBool   = "\x1b[0;39m"
	colorNumber = "\x1b[0;39m"
	colorString = "\x1b[0;32m"
	colorArray  = "\x1b[1;39m"
	colorKey    = "\x1b[34;1m"
	colorReset  = "\x1b[0m"
)

func (e *encoder) painted(code, text string) {
	if e.color {
		e.out = append(append(append(e.out, code...), text...), colorReset...)
		return
	}
	e.out = append(e.out, text...)
}

func (e *encoder) value(v any, level int) {
	switch v := v.(type) {
	case nil:
		e.painted(colorNull, "null")
	case bool:
		e.painted(colorBool, strconv.FormatBool(v))
	case int:
		e.painted(colorNumber, strconv.Itoa(v))
	case float64:
		e.painted(colorNumber, floatText(v))
	case *big.Int:
		e.painted(colorNumber, v.String())
	case json.Number:
		e.painted(colorNumber, numberText(v))
	case string:
		if e.color {
			e.painted(colorString, string(e.quote(nil, v)))
		} else {
			e.out = e.quote(e.out, v)
		}
	case []any:
		e.array(v, level)
	case *gojq.Map:
		e.object(v, level)
	}
}

// numberText keeps a literal's digits where a double would not, and drops needless zeros as jq 1.7 does.
func numberText(v json.Number) string {
	number, err := v.Float64()
	if err != nil || math.IsInf(number, 0) {
		return floatText(number)
	}
	return floatText(number)
}

func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "null"
	case math.IsInf(f, 1):
		f = math.MaxFloat64
	case math.IsInf(f, -1):
		f = -math.MaxFloat64
	}
	if f == math.Trunc(f) && math.Abs(f) < 1e17 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	text := strconv.FormatFloat(f, 'g', 17, 64)
	if short := strconv.FormatFloat(f, 'g', -1, 64); len(short) < len(text) {
		text = short
	}
	if absolute := math.Abs(f); absolute >= 1e-5 && absolute < 1e17 {
		text = strconv.FormatFloat(f, 'f', -1, 64)
	}
	return text
}

func (e *encoder) newline(level int) {
	if e.indent == "" {
		return
	}
	e.out = append(e.out, '\n')
	for i := 0; i < level; i++ {
		e.out = append(e.out, e.indent...)
	}
}

func (e *encoder) raw(code, text string) {
	if e.color {
		e.out = append(e.out, code...)
	}
	e.out = append(e.out, text...)
}

func (e *encoder) array(items []any, level int) {
	if len(items) == 0 {
		e.painted(colorArray, "[]")
		return
	}
	e.raw(colorArray, "[")
	for i, item := range items {
		if i > 0 {
			e.raw(colorArray, ",")
		}
		e.newline(level + 1)
		if e.color {
			e.out = append(e.out, colorReset...)
		}
		e.value(item, level+1)
	}
	if e.color {
		e.out = append(e.out, colorArray...)
	}
	e.newline(level)
	e.painted(colorArray, "]")
}

func (e *encoder) object(m *gojq.Map, level int) {
	if m.Len() == 0 {
		e.painted(colorArray, "{}")
		return
	}
	e.raw(colorArray, "{")
	first := true
	write := func(key string, value any) {
		if !first {
			e.raw(colorArray, ",")
		}
		first = false
		e.newline(level + 1)
		if e.color {
			e.out = append(e.out, colorReset...)
			e.painted(colorKey, string(e.quote(nil, key)))
		} else {
			e.out = e.quote(e.out, key)
		}
		e.raw(colorArray, ":")
		if e.indent != "" {
			e.out = append(e.out, ' ')
		}
		if e.color {
			e.out = append(e.out, colorReset...)
		}
		e.value(value, level+1)
	}
	if e.sorted {
		for _, key := range m.Sorted() {
			value, _ := m.Get(key)
			write(key, value)
		}
	} else {
		for key, value := range m.All() {
			write(key, value)
		}
	}
	if e.color {
		e.out = append(e.out, colorArray...)
	}
	e.newline(level)
	e.painted(colorArray, "}")
}

const hexDigits = "0123456789abcdef"

func (e *encoder) quote(out []byte, text string) []byte {
	out = append(out, '"')
	start := 0
	for i := 0; i < len(text); {
		b := text[i]
		if b >= 0x20 && b != '"' && b != '\\' && b != 0x7f && b < utf8.RuneSelf {
			i++
			continue
		}
		if b >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError && size == 1 {
				out = append(append(out, text[start:i]...), "\ufffd"...)
				i++
				start = i
				continue
			}
			if e.ascii {
				out = append(out, text[start:i]...)
				out = appendASCII(out, r)
				start = i + size
			}
			i += size
			continue
		}
		out = append(out, text[start:i]...)
		if at := strings.IndexByte("\"\\\n\t\r\b\f", b); at >= 0 {
			out = append(out, '\\', `"\ntrbf`[at])
		} else {
			out = append(out, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		}
		i++
		start = i
	}
	return append(append(out, text[start:]...), '"')
}

func appendASCII(out []byte, r rune) []byte {
	put := func(code rune) {
		out = append(out, '\\', 'u', hexDigits[code>>12&15], hexDigits[code>>8&15], hexDigits[code>>4&15], hexDigits[code&15])
	}
	if r >= 0x10000 {
		r -= 0x10000
		put(0xd800 + r>>10)
		put(0xdc00 + r&0x3ff)
		return out
	}
	put(r)
	return out
}
