package shell

import (
	"strconv"
	"strings"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// ansiC decodes the inside of $'...'.
func ansiC(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		i++
		switch c := text[i]; c {
		case '\'', '"', '?', '\\':
			out.WriteByte(c)
		case 'c':
			if i+1 < len(text) {
				i++
				out.WriteByte(text[i] & 0x1f)
			}
		default:
			value, used, ok := decodeEscape(text[i:], false)
			if !ok {
				out.WriteByte('\\')
				out.WriteByte(c)
				continue
			}
			if value == "\x00" {
				return out.String()
			}
			out.WriteString(value)
			i += used - 1
		}
	}
	return out.String()
}

// decodeEscape reads one escape after the backslash; zeroOctal is the \0nnn form of echo and %b.
func decodeEscape(text string, zeroOctal bool) (value string, used int, ok bool) {
	if at := strings.IndexByte("abefnrtvE", text[0]); at >= 0 {
		return string("\a\b\x1b\f\n\r\t\v\x1b"[at]), 1, true
	}
	switch c := text[0]; {
	case c == 'x':
		digits := leading(text[1:], 2, 16)
		if digits == 0 {
			return "", 0, false
		}
		number, _ := strconv.ParseUint(text[1:1+digits], 16, 8)
		return string([]byte{byte(number)}), 1 + digits, true
	case c == 'u' || c == 'U':
		width := 4
		if c == 'U' {
			width = 8
		}
		digits := leading(text[1:], width, 16)
		if digits == 0 {
			return "", 0, false
		}
		number, _ := strconv.ParseUint(text[1:1+digits], 16, 32)
		return string(rune(number)), 1 + digits, true
	case zeroOctal && c == '0':
		digits := leading(text[1:], 3, 8)
		number, _ := strconv.ParseUint("0"+text[1:1+digits], 8, 16)
		return string([]byte{byte(number)}), 1 + digits, true
	case c >= '0' && c <= '7':
		digits := leading(text, 3, 8)
		number, _ := strconv.ParseUint(text[:digits], 8, 16)
		return string([]byte{byte(number)}), digits, true
	}
	return "", 0, false
}

func leading(text string, limit, base int) int {
	n := 0
	for n < len(text) && n < limit {
		if _, err := strconv.ParseUint(text[n:n+1], base, 8); err != nil {
			break
		}
		n++
	}
	return n
}

// echoEscapes decodes "echo -e" and printf %b; stop tells that \c was met.
func echoEscapes(text string, octalAnywhere bool) (value string, stop bool) {
	if strings.IndexByte(text, '\\') < 0 {
		return text, false
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		i++
		switch c := text[i]; {
		case c == '\\':
			out.WriteByte('\\')
		case c == 'c':
			return out.String(), true
		case c >= '1' && c <= '7' && !octalAnywhere:
			out.WriteByte('\\')
			out.WriteByte(c)
		default:
			value, used, ok := decodeEscape(text[i:], true)
			if !ok {
				out.WriteByte('\\')
				out.WriteByte(c)
				continue
			}
			out.WriteString(value)
			i += used - 1
		}
	}
	return out.String(), false
}

// EchoEscapes is exported for the commands echo and printf.
func EchoEscapes(text string) (string, bool) { return echoEscapes(text, false) }
