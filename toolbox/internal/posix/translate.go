package posix

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// translate rewrites a POSIX expression in the syntax of package regexp; backrefs tells that only the slow engine can run it.
func translate(source string, o Options) (out string, backrefs bool, err error) {
	switch {
	case o.Fixed:
		return regexp.QuoteMeta(source), false, nil
	case o.Perl:
		return source, false, nil
	}
	t := &translation{source: source, o: o, atStart: true}
	if err := t.run(); err != nil {
		return "", false, err
	}
	return t.out.String(), t.backrefs, nil
}

type translation struct {
	source   string
	pos      int
	o        Options
	out      strings.Builder
	backrefs bool
	depth    int
	groups   int
	atStart  bool // at the beginning of an expression or alternative: "*" is literal, "^" an anchor
}

func (t *translation) run() error {
	for t.pos < len(t.source) {
		c := t.source[t.pos]
		var err error
		switch {
		case c == '\\':
			err = t.escape()
		case c == '[':
			err = t.bracket()
		case t.o.Extended:
			err = t.extended(c)
		default:
			t.basic(c)
		}
		if err != nil {
			return err
		}
	}
	if t.depth > 0 {
		if t.o.Extended {
			return errors.New("Unmatched ( or \\(")
		}
		return errors.New("Unmatched ( or \\(")
	}
	return nil
}

func (t *translation) emit(text string) {
	t.out.WriteString(text)
	t.atStart = false
}

func (t *translation) literal() {
	_, size := utf8.DecodeRuneInString(t.source[t.pos:])
	t.emit(regexp.QuoteMeta(t.source[t.pos : t.pos+size]))
	t.pos += size
}

func (t *translation) basic(c byte) {
	switch {
	case c == '*' && !t.atStart:
		t.repeat("*")
	case c == '^' && (t.pos == 0 || t.atStart):
		t.out.WriteByte('^')
		t.pos++
	case c == '$' && t.isEndHere():
		t.emit("$")
		t.pos++
	case c == '.':
		t.emit(".")
		t.pos++
	default:
		t.literal()
	}
}

func (t *translation) isEndHere() bool {
	rest := t.source[t.pos+1:]
	return rest == "" || strings.HasPrefix(rest, `\)`) || strings.HasPrefix(rest, `\|`)
}

// repeat drops a doubled quantifier, which Go refuses or reads as lazy.
func (t *translation) repeat(operator string) {
	t.pos++
	text := t.out.String()
	if n := len(text); n > 0 && strings.IndexByte("*+?", text[n-1]) >= 0 && !(n > 1 && text[n-2] == '\\' && !(n > 2 && text[n-3] == '\\')) {
		if text[n-1] == operator[0] {
			return
		}
		t.out.Reset()
		t.out.WriteString(text[:n-1] + "*")
		return
	}
	t.emit(operator)
}

func (t *translation) extended(c byte) error {
	switch c {
	case '*', '+', '?':
		if t.atStart {
			if c == '*' {
				t.literal()
			} else {
				t.pos++
			}
			return nil
		}
		t.repeat(string(c))
	case '{':
		return t.interval(t.pos + 1)
	case '(':
		t.open(1)
	case ')':
		if t.depth == 0 {
			t.literal()
			return nil
		}
		t.close(1)
	case '|':
		t.out.WriteByte('|')
		t.atStart = true
		t.pos++
	case '^':
		t.out.WriteByte('^')
		t.pos++
	case '$', '.':
		t.emit(string(c))
		t.pos++
	default:
		t.literal()
	}
	return nil
}

func (t *translation) open(width int) {
	t.out.WriteByte('(')
	t.depth++
	t.groups++
	t.pos += width
	t.atStart = true
}

func (t *translation) close(width int) {
	t.emit(")")
	t.depth--
	t.pos += width
}

var intervalPattern = regexp.MustCompile(`^(\d*)(,?)(\d*)(\\?)\}`)

func (t *translation) interval(from int) error {
	match := intervalPattern.FindStringSubmatch(t.source[from:])
	if match == nil || match[1] == "" && match[2] == "" || t.o.Extended == (match[4] != "") {
		if t.o.Extended {
			t.literal()
			return nil
		}
		return errors.New("Unmatched { or \\{")
	}
	low := match[1]
	if low == "" {
		low = "0"
	}
	text := "{" + low + match[2] + match[3] + "}"
	least, _ := strconv.Atoi(low)
	most, err := strconv.Atoi(match[3])
	if err != nil {
		most = least
	}
	if most < least {
		return errors.New("Invalid content of \\{\\}")
	}
	if least > 1000 || most > 1000 {
		return errors.New("Regular expression too big")
	}
	t.pos = from + len(match[0])
	if t.atStart {
		t.emit(regexp.QuoteMeta(text))
		return nil
	}
	t.emit(text)
	return nil
}

func (t *translation) escape() error {
	if t.pos+1 >= len(t.source) {
		return errors.New("Trailing backslash")
	}
	c := t.source[t.pos+1]
	if !t.o.Extended {
		switch c {
		case '(':
			t.open(2)
			return nil
		case ')':
			if t.depth == 0 {
				return errors.New("Unmatched ) or \\)")
			}
			t.close(2)
			return nil
		case '{':
			if t.atStart {
				return errors.New("Invalid preceding regular expression")
			}
			return t.interval(t.pos + 2)
		case '|':
			t.out.WriteByte('|')
			t.atStart = true
			t.pos += 2
			return nil
		case '+', '?':
			if t.atStart {
				break
			}
			t.pos++
			t.repeat(string(c))
			return nil
		}
	}
	t.pos += 2
	switch {
	case c >= '1' && c <= '9':
		if int(c-'0') > t.groups {
			return errors.New("Invalid back reference")
		}
		t.backrefs = true
		t.emit(`(?:\` + string(c) + `)`)
	case c == '<' || c == '>' || c == 'b':
		t.emit(`\b`)
	case c == '`':
		t.out.WriteString(`\A`)
	case c == '\'':
		t.emit(`\z`)
	case strings.IndexByte("wWsSB", c) >= 0:
		t.emit(`\` + string(c))
	case t.o.Escapes && c == 'n':
		t.emit(`\n`)
	case t.o.Escapes && strings.IndexByte("tfvr", c) >= 0:
		t.emit(`\` + string(c))
	case c == '\n':
		t.emit(`\n`)
	default:
		t.pos--
		t.literal()
	}
	return nil
}

var classNames = map[string]string{"alpha": `[:alpha:]\p{L}`, "alnum": `[:alnum:]\p{L}\p{N}`, "upper": `[:upper:]\p{Lu}`, "lower": `[:lower:]\p{Ll}`,
	"digit": `[:digit:]`, "xdigit": `[:xdigit:]`, "space": `[:space:]`, "blank": `[:blank:]`, "punct": `[:punct:]`, "cntrl": `[:cntrl:]`,
	"print": `[:print:]\p{L}\p{N}\p{S}\p{P}`, "graph": `[:graph:]\p{L}\p{N}\p{S}\p{P}`}

// bracket translates [...], where a backslash is an ordinary character.
func (t *translation) bracket() error {
	i := t.pos + 1
	var out strings.Builder
	out.WriteByte('[')
	if i < len(t.source) && t.source[i] == '^' {
		out.WriteByte('^')
		i++
	}
	for first := true; ; first = false {
		if i >= len(t.source) {
			return errors.New("Unmatched [, [^, [:, [., or [=")
		}
		c := t.source[i]
		if c == ']' && !first {
			break
		}
		if c == '[' && i+1 < len(t.source) && strings.IndexByte(":.=", t.source[i+1]) >= 0 {
			used, text, err := t.special(i)
			if err != nil {
				return err
			}
			out.WriteString(text)
			i += used
			continue
		}
		if c == '\\' && i+1 < len(t.source) && t.o.Escapes && strings.IndexByte("ntrfv]\\", t.source[i+1]) >= 0 {
			if next := t.source[i+1]; next == ']' {
				out.WriteString(`\\`)
				i++
				continue
			} else {
				out.WriteString(`\` + string(next))
			}
			i += 2
			continue
		}
		_, size := utf8.DecodeRuneInString(t.source[i:])
		isRange := c == '-' && !first && i+1 < len(t.source) && t.source[i+1] != ']'
		switch {
		case isRange:
			out.WriteByte('-')
		case size == 1 && !isWordByte(c):
			out.WriteString(`\` + string(c))
		default:
			out.WriteString(t.source[i : i+size])
		}
		i += size
	}
	out.WriteByte(']')
	t.pos = i + 1
	t.emit(out.String())
	return nil
}

func (t *translation) special(i int) (used int, text string, err error) {
	kind := t.source[i+1]
	end := strings.Index(t.source[i+2:], string(kind)+"]")
	if end < 0 {
		return 0, "", errors.New("Unmatched [, [^, [:, [., or [=")
	}
	name := t.source[i+2 : i+2+end]
	if kind != ':' {
		return end + 4, regexp.QuoteMeta(name), nil
	}
	class, ok := classNames[name]
	if !ok {
		return 0, "", errors.New("Invalid character class name")
	}
	return end + 4, class, nil
}
