package shell

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// pattern is a compiled glob. Patterns with !(...) cannot be a regular expression and take the matcher in extglob.go.
type pattern struct {
	source  string
	literal string // set when the glob has no metacharacters
	isPlain bool
	whole   *regexp.Regexp // ^(?:...)$
	longest *regexp.Regexp // unanchored, longest match
	lazy    *regexp.Regexp // ^ anchored, shortest match
	fold    bool
	slow    bool
}

var patternCache = struct {
	sync.Mutex
	entries map[string]*pattern
}{entries: map[string]*pattern{}}

func compilePattern(source string, extended, fold bool) *pattern {
	key := source
	if fold {
		key = "i" + source
	} else {
		key = "c" + source
	}
	patternCache.Lock()
	defer patternCache.Unlock()
	if p, ok := patternCache.entries[key]; ok {
		return p
	}
	if len(patternCache.entries) > 500 {
		patternCache.entries = map[string]*pattern{}
	}
	p := newPattern(source, extended, fold)
	patternCache.entries[key] = p
	return p
}

func newPattern(source string, extended, fold bool) *pattern {
	p := &pattern{source: source, fold: fold}
	if text, ok := plainGlob(source); ok && !fold {
		p.literal, p.isPlain = text, true
		return p
	}
	if extended && strings.Contains(source, "!(") {
		p.slow = true
		return p
	}
	greedy := globRegexp(source, false)
	flags := "(?s)"
	if fold {
		flags = "(?si)"
	}
	whole, err := regexp.Compile(flags + "^(?:" + greedy + ")$")
	if err != nil {
		p.slow = true
		return p
	}
	p.whole = whole
	p.longest = regexp.MustCompile(flags + greedy)
	p.longest.Longest()
	p.lazy = regexp.MustCompile(flags + "^(?:" + globRegexp(source, true) + ")")
	return p
}

// plainGlob removes escapes when nothing else is special.
func plainGlob(source string) (string, bool) {
	if !strings.ContainsAny(source, "*?[(\\") {
		return source, true
	}
	var out strings.Builder
	for i := 0; i < len(source); i++ {
		switch source[i] {
		case '*', '?', '[':
			return "", false
		case '(':
			if i > 0 && strings.IndexByte("@+!", source[i-1]) >= 0 {
				return "", false
			}
		case '\\':
			if i+1 < len(source) {
				i++
			}
		}
		out.WriteByte(source[i])
	}
	return out.String(), true
}

func hasGlob(pattern string) bool {
	_, plain := plainGlob(pattern)
	return !plain
}

// globRegexp translates a glob to the syntax of package regexp.
func globRegexp(source string, lazy bool) string {
	t := &translator{source: source, lazy: lazy}
	t.sequence(false)
	return t.out.String()
}

type translator struct {
	source string
	pos    int
	lazy   bool
	out    strings.Builder
}

func (t *translator) star() {
	t.out.WriteString(".*")
	if t.lazy {
		t.out.WriteByte('?')
	}
}

func (t *translator) sequence(inGroup bool) {
	for t.pos < len(t.source) {
		c := t.source[t.pos]
		if t.pos+1 < len(t.source) && t.source[t.pos+1] == '(' && strings.IndexByte("?*+@", c) >= 0 {
			if t.group(c) {
				continue
			}
		}
		switch {
		case inGroup && c == ')':
			return
		case inGroup && c == '|':
			t.out.WriteByte('|')
			t.pos++
		case c == '*':
			t.star()
			for t.pos < len(t.source) && t.source[t.pos] == '*' && !(t.pos+1 < len(t.source) && t.source[t.pos+1] == '(') {
				t.pos++
			}
		case c == '?':
			t.out.WriteByte('.')
			t.pos++
		case c == '[':
			t.bracket()
		case c == '\\' && t.pos+1 < len(t.source):
			t.pos++
			t.char()
		default:
			t.char()
		}
	}
}

func (t *translator) char() {
	_, size := utf8.DecodeRuneInString(t.source[t.pos:])
	t.out.WriteString(regexp.QuoteMeta(t.source[t.pos : t.pos+size]))
	t.pos += size
}

func (t *translator) group(operator byte) bool {
	if matchingParen(t.source, t.pos+1) < 0 {
		return false
	}
	t.pos += 2
	t.out.WriteString("(?:")
	t.sequence(true)
	t.pos++
	t.out.WriteByte(')')
	if operator != '@' {
		t.out.WriteByte(operator)
		if t.lazy {
			t.out.WriteByte('?')
		}
	}
	return true
}

func matchingParen(source string, open int) int {
	depth := 0
	for i := open; i < len(source); i++ {
		switch source[i] {
		case '\\':
			i++
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

func bracketEnd(source string, open int) int {
	i := open + 1
	if i < len(source) && (source[i] == '!' || source[i] == '^') {
		i++
	}
	for first := true; i < len(source); i++ {
		switch {
		case source[i] == ']' && !first:
			return i
		case source[i] == '\\':
			i++
		case source[i] == '[' && i+1 < len(source) && strings.IndexByte(":.=", source[i+1]) >= 0:
			if end := strings.Index(source[i+2:], string(source[i+1])+"]"); end >= 0 {
				i += end + 3
			}
		}
		first = false
	}
	return -1
}

func (t *translator) bracket() {
	end := bracketEnd(t.source, t.pos)
	if end < 0 {
		t.out.WriteString(`\[`)
		t.pos++
		return
	}
	body := t.source[t.pos+1 : end]
	t.pos = end + 1
	t.out.WriteByte('[')
	if body[0] == '!' || body[0] == '^' {
		t.out.WriteByte('^')
		body = body[1:]
	}
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '[' && i+1 < len(body) && body[i+1] == ':':
			if stop := strings.Index(body[i:], ":]"); stop > 0 {
				t.out.WriteString(body[i : i+stop+2])
				i += stop + 1
				continue
			}
			t.out.WriteString(`\[`)
		case c == '\\' && i+1 < len(body):
			i++
			t.out.WriteString(`\` + classEscape(body[i]))
		case c == '-' && i > 0 && i+1 < len(body):
			t.out.WriteByte('-')
		case c < utf8.RuneSelf && !isAlnum(c):
			t.out.WriteString(`\` + string(c))
		default:
			t.out.WriteByte(c)
		}
	}
	t.out.WriteByte(']')
}

func classEscape(c byte) string {
	if isAlnum(c) {
		return "x" + string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15])
	}
	return string(c)
}

func (p *pattern) matches(text string) bool {
	switch {
	case p.isPlain:
		return text == p.literal
	case p.slow:
		return globMatch(p.source, text, p.fold)
	}
	return p.whole.MatchString(text)
}

// trim removes a matching prefix or suffix.
func (p *pattern) trim(text string, operator syntax.ParExpOperator) string {
	if p.isPlain {
		if operator == syntax.RemSmallPrefix || operator == syntax.RemLargePrefix {
			return strings.TrimPrefix(text, p.literal)
		}
		return strings.TrimSuffix(text, p.literal)
	}
	switch operator {
	case syntax.RemSmallPrefix:
		for i := 0; i <= len(text); i++ {
			if boundary(text, i) && p.matches(text[:i]) {
				return text[i:]
			}
		}
	case syntax.RemLargePrefix:
		for i := len(text); i >= 0; i-- {
			if boundary(text, i) && p.matches(text[:i]) {
				return text[i:]
			}
		}
	case syntax.RemSmallSuffix:
		for i := len(text); i >= 0; i-- {
			if boundary(text, i) && p.matches(text[i:]) {
				return text[:i]
			}
		}
	case syntax.RemLargeSuffix:
		for i := 0; i <= len(text); i++ {
			if boundary(text, i) && p.matches(text[i:]) {
				return text[:i]
			}
		}
	}
	return text
}

func boundary(text string, i int) bool { return i == len(text) || utf8.RuneStart(text[i]) }

func fillReplacement(with []segment, match string) string {
	var out strings.Builder
	for _, piece := range with {
		if piece.quoted || strings.IndexByte(piece.text, '&') < 0 {
			out.WriteString(piece.text)
			continue
		}
		for i := 0; i < len(piece.text); i++ {
			switch {
			case piece.text[i] == '\\' && i+1 < len(piece.text) && piece.text[i+1] == '&':
				i++
				out.WriteByte('&')
			case piece.text[i] == '&':
				out.WriteString(match)
			default:
				out.WriteByte(piece.text[i])
			}
		}
	}
	return out.String()
}

func (p *pattern) replace(text string, with []segment, all bool, anchor byte) string {
	if anchor != 0 {
		return p.replaceAnchored(text, with, anchor)
	}
	var out strings.Builder
	for pos := 0; pos <= len(text); {
		start, end := p.findFrom(text, pos)
		if start < 0 {
			out.WriteString(text[pos:])
			break
		}
		out.WriteString(text[pos:start])
		if start == end {
			if start == len(text) {
				break
			}
			_, size := utf8.DecodeRuneInString(text[start:])
			out.WriteString(text[start : start+size])
			pos = start + size
			continue
		}
		out.WriteString(fillReplacement(with, text[start:end]))
		pos = end
		if !all {
			out.WriteString(text[pos:])
			break
		}
	}
	return out.String()
}

func (p *pattern) findFrom(text string, pos int) (int, int) {
	switch {
	case p.isPlain:
		if at := strings.Index(text[pos:], p.literal); at >= 0 {
			return pos + at, pos + at + len(p.literal)
		}
		return -1, -1
	case p.slow:
		for start := pos; start < len(text); start++ {
			for end := len(text); end > start; end-- {
				if boundary(text, start) && boundary(text, end) && p.matches(text[start:end]) {
					return start, end
				}
			}
		}
		return -1, -1
	}
	if at := p.longest.FindStringIndex(text[pos:]); at != nil {
		return pos + at[0], pos + at[1]
	}
	return -1, -1
}

func (p *pattern) replaceAnchored(text string, with []segment, anchor byte) string {
	operator := syntax.RemLargePrefix
	if anchor == '%' {
		operator = syntax.RemLargeSuffix
	}
	rest := p.trim(text, operator)
	if rest == text && !p.matches("") {
		return text
	}
	if anchor == '#' {
		return fillReplacement(with, text[:len(text)-len(rest)]) + rest
	}
	return rest + fillReplacement(with, text[len(rest):])
}

// Glob compiles a pattern for other commands; "*" matches any character.
func Glob(source string, fold bool) func(string) bool {
	return compilePattern(source, false, fold).matches
}
