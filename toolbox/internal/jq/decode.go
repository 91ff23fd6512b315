package jq

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

const maxDepth = 10000

// decoder reads a stream of JSON values, keeping the order of keys.
type decoder struct {
	in           *bufio.Reader
	line, column int
	scratch      []byte
}

func newDecoder(reader io.Reader) *decoder {
	return &decoder{in: bufio.NewReaderSize(reader, 64<<10), line: 1}
}

type parseError struct{ text string }

func (e *parseError) Error() string { return e.text }

func (d *decoder) fail(format string, args ...any) error {
	return &parseError{fmt.Sprintf(format, args...) + fmt.Sprintf(" at line %d, column %d", d.line, d.column)}
}

func (d *decoder) read() (byte, error) {
	b, err := d.in.ReadByte()
	if err == nil {
		d.column++
		if b == '\n' {
			d.line, d.column = d.line+1, 0
		}
	}
	return b, err
}

func (d *decoder) skipSpace() (byte, error) {
	for {
		b, err := d.read()
		if err != nil || b != ' ' && b != '\n' && b != '\t' && b != '\r' && b != 0x1e {
			return b, err
		}
	}
}

// next returns the next value, or io.EOF.
func (d *decoder) next() (any, error) {
	b, err := d.skipSpace()
	if err != nil {
		return nil, err
	}
	if b == 0xef {
		d.in.Discard(2)
		if b, err = d.skipSpace(); err != nil {
			return nil, err
		}
	}
	value, err := d.value(b, 0)
	if err == io.EOF {
		err = d.fail("Unfinished JSON term")
	}
	return value, err
}

func (d *decoder) value(b byte, depth int) (any, error) {
	if depth > maxDepth {
		return nil, d.fail("Exceeds depth limit for parsing")
	}
	switch {
	case b == '{':
		return d.object(depth)
	case b == '[':
		return d.array(depth)
	case b == '"':
		return d.text()
	case b == '-' || b >= '0' && b <= '9':
		return d.number(b)
	case b >= 'a' && b <= 'z' || b == 'N':
		return d.word(b)
	}
	return nil, d.fail("Invalid literal")
}

func (d *decoder) object(depth int) (any, error) {
	m := gojq.NewMap(4)
	b, err := d.skipSpace()
	if err != nil {
		return nil, err
	}
	if b == '}' {
		return m, nil
	}
	for {
		if b != '"' {
			return nil, d.fail("Object keys must be strings")
		}
		key, err := d.text()
		if err != nil {
			return nil, err
		}
		if b, err = d.skipSpace(); err != nil {
			return nil, err
		}
		if b != ':' {
			return nil, d.fail("Objects must consist of key:value pairs")
		}
		if b, err = d.skipSpace(); err != nil {
			return nil, err
		}
		value, err := d.value(b, depth+1)
		if err != nil {
			return nil, err
		}
		m.Set(key.(string), value)
		if b, err = d.skipSpace(); err != nil {
			return nil, err
		}
		if b == '}' {
			return m, nil
		}
		if b != ',' {
			return nil, d.fail("Expected separator between values")
		}
		if b, err = d.skipSpace(); err != nil {
			return nil, err
		}
	}
}

func (d *decoder) array(depth int) (any, error) {
	items := []any{}
	b, err := d.skipSpace()
	if err != nil {
		return nil, err
	}
	if b == ']' {
		return items, nil
	}
	for {
		value, err := d.value(b, depth+1)
		if err != nil {
			return nil, err
		}
		items = append(items, value)
		if b, err = d.skipSpace(); err != nil {
			return nil, err
		}
		if b == ']' {
			return items, nil
		}
		if b != ',' {
			return nil, d.fail("Expected separator between values")
		}
		if b, err = d.skipSpace(); err != nil {
			return nil, err
		}
	}
}

func (d *decoder) text() (any, error) {
	out := d.scratch[:0]
	for {
		b, err := d.read()
		if err != nil {
			return nil, err
		}
		switch {
		case b == '"':
			d.scratch = out
			if !utf8.Valid(out) {
				return string([]rune(string(out))), nil
			}
			return string(out), nil
		case b == '\\':
			if out, err = d.escape(out); err != nil {
				return nil, err
			}
		default:
			out = append(out, b)
		}
	}
}

func (d *decoder) escape(out []byte) ([]byte, error) {
	b, err := d.read()
	if err != nil {
		return nil, err
	}
	switch b {
	case 'n':
		return append(out, '\n'), nil
	case 't':
		return append(out, '\t'), nil
	case 'r':
		return append(out, '\r'), nil
	case 'b':
		return append(out, '\b'), nil
	case 'f':
		return append(out, '\f'), nil
	case '"', '\\', '/':
		return append(out, b), nil
	case 'u':
		r, err := d.hex4()
		if err != nil {
			return nil, err
		}
		if utf16.IsSurrogate(r) {
			if peek, err := d.in.Peek(2); err == nil && peek[0] == '\\' && peek[1] == 'u' {
				d.in.Discard(2)
				low, err := d.hex4()
				if err != nil {
					return nil, err
				}
				r = utf16.DecodeRune(r, low)
			} else {
				r = utf8.RuneError
			}
		}
		return utf8.AppendRune(out, r), nil
	}
	return nil, d.fail("Invalid escape")
}

func (d *decoder) hex4() (rune, error) {
	var digits [4]byte
	for i := range digits {
		b, err := d.read()
		if err != nil {
			return 0, err
		}
		digits[i] = b
	}
	code, err := strconv.ParseUint(string(digits[:]), 16, 32)
	if err != nil {
		return 0, d.fail("Invalid escape")
	}
	return rune(code), nil
}

func (d *decoder) number(first byte) (any, error) {
	out := append(d.scratch[:0], first)
	whole := true
	for {
		b, err := d.read()
		if err != nil && err != io.EOF {
			return nil, err
		}
		if err == nil && (b >= '0' && b <= '9' || b == '.' || b == 'e' || b == 'E' || b == '+' || b == '-') {
			whole = whole && b >= '0' && b <= '9'
			out = append(out, b)
			continue
		}
		if err == nil {
			if b >= 'a' && b <= 'z' {
				return nil, d.fail("Invalid numeric literal")
			}
			d.in.UnreadByte()
			if b != '\n' {
				d.column--
			} else {
				d.line--
			}
		}
		break
	}
	d.scratch = out
	return parseNumber(string(out), whole, d)
}

func parseNumber(text string, whole bool, d *decoder) (any, error) {
	if whole {
		if n, err := strconv.Atoi(text); err == nil {
			return n, nil
		}
		if n, ok := new(big.Int).SetString(text, 10); ok {
			return n, nil
		}
		return nil, d.fail("Invalid numeric literal")
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil && number == 0 {
		return nil, d.fail("Invalid numeric literal")
	}
	return json.Number(text), nil
}

func (d *decoder) word(first byte) (any, error) {
	out := []byte{first}
	for {
		peek, err := d.in.Peek(1)
		if err != nil || !(peek[0] >= 'a' && peek[0] <= 'z' || peek[0] >= 'A' && peek[0] <= 'Z') {
			break
		}
		b, _ := d.read()
		out = append(out, b)
	}
	switch string(out) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "null":
		return nil, nil
	case "nan", "NaN":
		return nil, nil
	}
	d.read()
	return nil, d.fail("Invalid literal")
}
