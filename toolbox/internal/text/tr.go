package text

import (
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "tr", Summary: "Translate, squeeze or delete characters.", Usage: "tr [-cCdst] SET1 [SET2]", Run: tr})
}

func tr(c *core.Ctx) int {
	options, sets, ok := core.Options{Short: "cCdst", Long: "complement/c delete/d squeeze-repeats/s truncate-set1/t", Stop: true}.Parse(c)
	if !ok {
		return 1
	}
	inverse, remove, squeeze, truncate := false, false, false, false
	for _, option := range options {
		switch option.Name {
		case "c", "C":
			inverse = true
		case "d":
			remove = true
		case "s":
			squeeze = true
		case "t":
			truncate = true
		}
	}
	if len(sets) == 0 {
		return c.Usage(1, "missing operand")
	}
	if len(sets) == 1 && !remove && !squeeze {
		return c.Usage(1, "missing operand after ‘%s’", sets[0])
	}
	if len(sets) > 2 || len(sets) == 2 && remove && !squeeze {
		return c.Usage(1, "extra operand ‘%s’", sets[len(sets)-1])
	}
	first, err := expandSet(sets[0], -1)
	if err != "" {
		return c.Fail(1, "%s", err)
	}
	var second []rune
	if len(sets) == 2 {
		if second, err = expandSet(sets[1], len(first)); err != "" {
			return c.Fail(1, "%s", err)
		}
		if !remove && len(second) == 0 && !truncate {
			return c.Fail(1, "when not truncating set1, string2 must be non-empty")
		}
		if truncate && len(first) > len(second) {
			first = first[:len(second)]
		}
	}
	t := newTranslator(first, second, inverse, remove, squeeze, len(sets) == 2)
	return t.run(c)
}

type translator struct {
	isFirst func(rune) bool
	mapped  map[rune]rune
	table   [256]rune // ASCII fast path; -1 delete
	squeeze map[rune]bool
	all     func(rune) bool
	remove  bool
	inverse bool
	last    rune
	fill    rune
}

func newTranslator(first, second []rune, inverse, remove, squeeze, two bool) *translator {
	t := &translator{mapped: map[rune]rune{}, remove: remove, inverse: inverse, last: -1, fill: -1}
	members := map[rune]bool{}
	for _, r := range first {
		members[r] = true
	}
	t.isFirst = func(r rune) bool { return members[r] != inverse }
	if two && !remove {
		if inverse {
			t.fill = second[len(second)-1]
		} else {
			for i, r := range first {
				to := second[min(i, len(second)-1)]
				t.mapped[r] = to
			}
		}
	}
	if squeeze {
		t.squeeze = map[rune]bool{}
		set := second
		if !two {
			set = first
			if inverse {
				t.all = t.isFirst
			}
		}
		for _, r := range set {
			t.squeeze[r] = true
		}
	}
	return t
}

func (t *translator) run(c *core.Ctx) int {
	block := make([]byte, 64<<10)
	carried := 0
	for {
		n, err := c.Stdin.Read(block[carried:])
		data := block[:carried+n]
		carried = 0
		if err == nil {
			carried = incompleteSuffix(data)
		}
		t.block(c, data[:len(data)-carried])
		copy(block, data[len(data)-carried:])
		if err != nil {
			if err == io.EOF {
				return 0
			}
			return c.Fail(1, "read error: %s", core.Reason(err))
		}
	}
}

func (t *translator) block(c *core.Ctx, data []byte) {
	out := make([]byte, 0, len(data)+16)
	for i := 0; i < len(data); {
		r, size := rune(data[i]), 1
		if r >= utf8.RuneSelf {
			if r, size = utf8.DecodeRune(data[i:]); r == utf8.RuneError && size == 1 {
				r = rune(data[i]) + 0x110000
			}
		}
		i += size
		if t.remove {
			if t.isFirst(r) {
				continue
			}
		} else if t.fill >= 0 {
			if t.isFirst(r) {
				r = t.fill
			}
		} else if to, ok := t.mapped[r]; ok {
			r = to
		}
		if t.squeeze != nil && r == t.last && (t.squeeze[r] || t.all != nil && t.all(r)) {
			continue
		}
		t.last = r
		switch {
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case r >= 0x110000:
			out = append(out, byte(r-0x110000))
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	c.Out.Write(out)
}

var trClasses = map[string]func(byte) bool{
	"alpha": func(b byte) bool { return b|32 >= 'a' && b|32 <= 'z' }, "digit": func(b byte) bool { return b >= '0' && b <= '9' },
	"alnum": func(b byte) bool { return b|32 >= 'a' && b|32 <= 'z' || b >= '0' && b <= '9' }, "upper": func(b byte) bool { return b >= 'A' && b <= 'Z' },
	"lower": func(b byte) bool { return b >= 'a' && b <= 'z' }, "space": func(b byte) bool { return b == ' ' || b >= 9 && b <= 13 },
	"blank": func(b byte) bool { return b == ' ' || b == 9 }, "cntrl": func(b byte) bool { return b < 32 || b == 127 },
	"print": func(b byte) bool { return b >= 32 && b < 127 }, "graph": func(b byte) bool { return b > 32 && b < 127 },
	"punct":  func(b byte) bool { return b > 32 && b < 127 && !(b|32 >= 'a' && b|32 <= 'z' || b >= '0' && b <= '9') },
	"xdigit": func(b byte) bool { return b >= '0' && b <= '9' || b|32 >= 'a' && b|32 <= 'f' },
}

// expandSet expands ranges, classes, escapes and [x*n]; fill is the length to which [x*] grows.
func expandSet(source string, fill int) (set []rune, problem string) {
	chars, escaped := trChars(source)
	star, starRune := -1, rune(0)
	for i := 0; i < len(chars); i++ {
		if chars[i] == '[' && !escaped[i] && i+1 < len(chars) {
			if name, used, ok := trClass(chars[i:]); ok {
				member, known := trClasses[name]
				if !known {
					return nil, "invalid character class ‘" + name + "’"
				}
				for b := 0; b < 128; b++ {
					if member(byte(b)) {
						set = append(set, rune(b))
					}
				}
				i += used - 1
				continue
			}
			if chars[i+1] == '=' && i+4 < len(chars) && chars[i+3] == '=' && chars[i+4] == ']' {
				set = append(set, chars[i+2])
				i += 4
				continue
			}
			if i+3 < len(chars) && chars[i+2] == '*' {
				if end := indexRune(chars[i+3:], ']'); end >= 0 {
					digits := string(chars[i+3 : i+3+end])
					repeat, err := strconv.ParseInt(digits, 0, 32)
					if digits == "" || err == nil && repeat == 0 {
						star, starRune = len(set), chars[i+1]
						i += 3 + end
						continue
					}
					if err == nil {
						for ; repeat > 0; repeat-- {
							set = append(set, chars[i+1])
						}
						i += 3 + end
						continue
					}
				}
			}
		}
		if i+2 < len(chars) && chars[i+1] == '-' && !escaped[i+1] {
			if chars[i+2] < chars[i] {
				return nil, "range-endpoints of ‘" + string(chars[i:i+3]) + "’ are in reverse collating sequence order"
			}
			for r := chars[i]; r <= chars[i+2]; r++ {
				set = append(set, r)
			}
			i += 2
			continue
		}
		set = append(set, chars[i])
	}
	if star >= 0 && fill > len(set) {
		padding := make([]rune, fill-len(set))
		for i := range padding {
			padding[i] = starRune
		}
		set = append(set[:star:star], append(padding, set[star:]...)...)
	}
	return set, ""
}

func indexRune(chars []rune, r rune) int {
	for i, c := range chars {
		if c == r {
			return i
		}
	}
	return -1
}

func trClass(chars []rune) (name string, used int, ok bool) {
	if len(chars) < 4 || chars[1] != ':' {
		return "", 0, false
	}
	text := string(chars)
	end := strings.Index(text, ":]")
	if end < 2 {
		return "", 0, false
	}
	return text[2:end], utf8.RuneCountInString(text[:end+2]), true
}

func trChars(source string) (chars []rune, escaped []bool) {
	for i := 0; i < len(source); {
		r, size := utf8.DecodeRuneInString(source[i:])
		if r == '\\' && i+1 < len(source) {
			c := source[i+1]
			if at := strings.IndexByte("abfnrtv\\", c); at >= 0 {
				chars, escaped = append(chars, rune("\a\b\f\n\r\t\v\\"[at])), append(escaped, true)
				i += 2
				continue
			}
			digits := 0
			for digits < 3 && i+1+digits < len(source) && source[i+1+digits] >= '0' && source[i+1+digits] <= '7' {
				digits++
			}
			if digits > 0 {
				number, _ := strconv.ParseUint(source[i+1:i+1+digits], 8, 16)
				chars, escaped = append(chars, rune(number&255)), append(escaped, true)
				i += 1 + digits
				continue
			}
			r, size = utf8.DecodeRuneInString(source[i+1:])
			chars, escaped = append(chars, r), append(escaped, true)
			i += 1 + size
			continue
		}
		chars, escaped = append(chars, r), append(escaped, false)
		i += size
	}
	return chars, escaped
}
