package shell

import (
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
)

// abort unwinds the current top-level command (or the whole shell) after an expansion error, as bash's longjmp does.
type abort struct {
	status int
	exit   bool
}

func (s *Shell) fail(exit bool, format string, args ...any) {
	s.errorf(format, args...)
	panic(&abort{status: 1, exit: exit})
}

type segment struct {
	text   string
	quoted bool
}

type field []segment

func (f field) String() string {
	if len(f) == 1 {
		return f[0].text
	}
	var out strings.Builder
	for _, piece := range f {
		out.WriteString(piece.text)
	}
	return out.String()
}

// pattern renders the field for glob matching: quoted characters are escaped.
func (f field) pattern() string {
	var out strings.Builder
	for _, piece := range f {
		if !piece.quoted {
			out.WriteString(piece.text)
			continue
		}
		for i := 0; i < len(piece.text); i++ {
			if b := piece.text[i]; b < utf8.RuneSelf && !isAlnum(b) {
				out.WriteByte('\\')
			}
			out.WriteByte(piece.text[i])
		}
	}
	return out.String()
}

func isAlnum(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}

// builder collects the fields of one word.
type builder struct {
	shell  *Shell
	split  bool // word splitting is on
	fields []field
	now    field
	active bool // the current field exists even if it is empty
	closed bool // the last field was ended by IFS whitespace
}

func (b *builder) quoted(text string) {
	b.now = append(b.now, segment{text, true})
	b.active, b.closed = true, false
}

func (b *builder) literal(text string) {
	if text == "" {
		return
	}
	b.now = append(b.now, segment{text, false})
	b.active, b.closed = true, false
}

func (b *builder) end() {
	b.fields = append(b.fields, b.now)
	b.now, b.active = nil, false
}

// expansion adds the result of an unquoted expansion, split at IFS.
func (b *builder) expansion(value string) {
	if value == "" {
		return
	}
	if !b.split {
		b.literal(value)
		return
	}
	ifs := b.shell.currentIFS()
	if ifs == "" {
		b.literal(value)
		return
	}
	start := 0
	for i := 0; i < len(value); i++ {
		c := value[i]
		if strings.IndexByte(ifs, c) < 0 {
			continue
		}
		b.literal(value[start:i])
		start = i + 1
		isSpace := c == ' ' || c == '\t' || c == '\n'
		switch {
		case b.active:
			b.end()
			b.closed = isSpace
		case isSpace:
		case b.closed:
			b.closed = false
		default:
			b.end()
		}
	}
	b.literal(value[start:])
}

func (b *builder) finish() []field {
	if b.active {
		b.end()
	}
	return b.fields
}

func (s *Shell) currentIFS() string {
	if v := s.lookup("IFS"); v != nil && v.isSet {
		return v.text
	}
	return " \t\n"
}

func (s *Shell) ifsJoin() string {
	v := s.lookup("IFS")
	if v == nil || !v.isSet {
		return " "
	}
	if v.text == "" {
		return ""
	}
	_, size := utf8.DecodeRuneInString(v.text)
	return v.text[:size]
}

// words expands command arguments fully: braces, tilde, parameters, splitting, globbing, quote removal.
func (s *Shell) words(list []*syntax.Word) []string {
	out := make([]string, 0, len(list))
	for _, word := range list {
		out = s.wordFields(out, word)
	}
	return out
}

func (s *Shell) wordFields(out []string, word *syntax.Word) []string {
	if len(word.Parts) == 1 {
		if lit, ok := word.Parts[0].(*syntax.Lit); ok && isPlain(lit.Value) {
			return append(out, lit.Value)
		}
	}
	if s.opts.braceexpand {
		copied := *word
		copied.Parts = append([]syntax.WordPart(nil), word.Parts...)
		if braceable(&copied) && syntax.SplitBraces(&copied) {
			for _, one := range expand.Braces(&copied) {
				out = s.oneWord(out, one)
			}
			return out
		}
	}
	return s.oneWord(out, word)
}

func isPlain(text string) bool {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\', '*', '?', '[', '{', '~', '+', '@', '!':
			return false
		}
	}
	return text != ""
}

func braceable(word *syntax.Word) bool {
	for _, part := range word.Parts {
		if lit, ok := part.(*syntax.Lit); ok && strings.IndexByte(lit.Value, '{') >= 0 {
			return true
		}
	}
	return false
}

func (s *Shell) oneWord(out []string, word *syntax.Word) []string {
	b := &builder{shell: s, split: true}
	s.parts(b, word.Parts, true)
	for _, one := range b.finish() {
		out = s.globField(out, one)
	}
	return out
}

// textOf expands without splitting or globbing: assignments, redirect targets, case words.
func (s *Shell) textOf(word *syntax.Word) string {
	if word == nil {
		return ""
	}
	return s.unsplit(word).String()
}

// assignText is textOf with tilde expansion after ":".
func (s *Shell) assignText(word *syntax.Word) string {
	if word == nil {
		return ""
	}
	b := &builder{shell: s}
	for i, part := range word.Parts {
		if lit, ok := part.(*syntax.Lit); ok && strings.Contains(lit.Value, "~") {
			s.assignTilde(b, lit.Value, i == 0)
			continue
		}
		s.part(b, part, false)
	}
	return joinFields(b.finish())
}

func (s *Shell) assignTilde(b *builder, value string, first bool) {
	for i, piece := range strings.Split(value, ":") {
		if i > 0 {
			b.literal(":")
		}
		if i > 0 || first {
			if prefix, rest, ok := s.tilde(piece); ok {
				b.quoted(prefix)
				piece = rest
			}
		}
		s.unescape(b, piece)
	}
}

func joinFields(fields []field) string {
	var out strings.Builder
	for i, one := range fields {
		if i > 0 {
			out.WriteByte(' ')
		}
		out.WriteString(one.String())
	}
	return out.String()
}

func (s *Shell) unsplit(word *syntax.Word) field {
	b := &builder{shell: s}
	s.parts(b, word.Parts, true)
	fields := b.finish()
	if len(fields) == 1 {
		return fields[0]
	}
	var all field
	for i, one := range fields {
		if i > 0 {
			all = append(all, segment{" ", true})
		}
		all = append(all, one...)
	}
	return all
}

// patternOf expands a word to a glob pattern.
func (s *Shell) patternOf(word *syntax.Word) string {
	if word == nil {
		return ""
	}
	return s.unsplit(word).pattern()
}

func (s *Shell) parts(b *builder, parts []syntax.WordPart, atStart bool) {
	for i, part := range parts {
		s.part(b, part, atStart && i == 0)
	}
}

func (s *Shell) part(b *builder, part syntax.WordPart, first bool) {
	switch part := part.(type) {
	case *syntax.Lit:
		value := part.Value
		if first && strings.HasPrefix(value, "~") {
			if prefix, rest, ok := s.tilde(value); ok {
				b.quoted(prefix)
				value = rest
			}
		}
		s.unescape(b, value)
	case *syntax.SglQuoted:
		if part.Dollar {
			b.quoted(ansiC(part.Value))
		} else {
			b.quoted(part.Value)
		}
	case *syntax.DblQuoted:
		s.doubleQuoted(b, part.Parts)
	case *syntax.ParamExp:
		s.param(b, part, false)
	case *syntax.CmdSubst:
		b.expansion(s.commandSubst(part))
	case *syntax.ArithmExp:
		b.expansion(itoa(s.arithm(part.X)))
	case *syntax.ProcSubst:
		b.quoted(s.processSubst(part))
	case *syntax.ExtGlob:
		s.extGlob(b, part)
	case *syntax.BraceExp:
		s.braceText(b, part)
	}
}

func (s *Shell) braceText(b *builder, part *syntax.BraceExp) {
	b.literal("{")
	separator := ","
	if part.Sequence {
		separator = ".."
	}
	for i, elem := range part.Elems {
		if i > 0 {
			b.literal(separator)
		}
		s.parts(b, elem.Parts, false)
	}
	b.literal("}")
}

func (s *Shell) extGlob(b *builder, part *syntax.ExtGlob) {
	b.literal(part.Op.String())
	if strings.ContainsAny(part.Pattern.Value, "$`\"'\\") {
		for word, err := range newParser().WordsSeq(strings.NewReader("x=" + quoteBars(part.Pattern.Value))) {
			if err != nil {
				b.literal(part.Pattern.Value)
				break
			}
			copied := *word
			copied.Parts = append([]syntax.WordPart(nil), word.Parts...)
			if lit, ok := copied.Parts[0].(*syntax.Lit); ok {
				copied.Parts[0] = &syntax.Lit{Value: strings.TrimPrefix(lit.Value, "x=")}
			}
			inner := &builder{shell: s}
			s.parts(inner, copied.Parts, false)
			for _, one := range inner.finish() {
				for _, piece := range one {
					if piece.quoted && piece.text == "|" {
						piece.quoted = false
					}
					b.now = append(b.now, piece)
				}
			}
		}
	} else {
		b.literal(part.Pattern.Value)
	}
	b.literal(")")
}

// quoteBars makes the inside of an extended glob parse as one word.
func quoteBars(pattern string) string {
	var out strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '\\':
			out.WriteByte(c)
			if i+1 < len(pattern) {
				i++
				out.WriteByte(pattern[i])
			}
		case '|':
			out.WriteString(`"|"`)
		case ' ', '(', ')', '<', '>', '&', ';':
			out.WriteString("\\" + string(c))
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}

// unescape adds unquoted source text: a backslash quotes the next character.
func (s *Shell) unescape(b *builder, value string) {
	if strings.IndexByte(value, '\\') < 0 {
		b.literal(value)
		return
	}
	start := 0
	for i := 0; i < len(value); i++ {
		if value[i] != '\\' {
			continue
		}
		b.literal(value[start:i])
		if i+1 == len(value) {
			b.quoted("\\")
			return
		}
		i++
		start = i + 1
		if value[i] == '\n' {
			continue
		}
		_, size := utf8.DecodeRuneInString(value[i:])
		b.quoted(value[i : i+size])
		i += size - 1
		start = i + 1
	}
	b.literal(value[start:])
}

func (s *Shell) tilde(value string) (prefix, rest string, ok bool) {
	if !strings.HasPrefix(value, "~") {
		return "", value, false
	}
	end := strings.IndexAny(value, "/")
	if end < 0 {
		end = len(value)
	}
	switch value[1:end] {
	case "":
		home, set := s.getOK("HOME")
		if !set {
			home = s.dir
		}
		return home, value[end:], true
	case "+":
		return s.dir, value[end:], true
	case "-":
		if old, set := s.getOK("OLDPWD"); set {
			return old, value[end:], true
		}
	case core.UserName:
		return s.get("HOME"), value[end:], true
	case "root":
		return "/root", value[end:], true
	}
	return "", value, false
}

func (s *Shell) doubleQuoted(b *builder, parts []syntax.WordPart) {
	if len(parts) == 0 {
		b.quoted("")
		return
	}
	for _, part := range parts {
		s.quotedPart(b, part, '"')
	}
}

func (s *Shell) quotedPart(b *builder, part syntax.WordPart, quote byte) {
	switch part := part.(type) {
	case *syntax.Lit:
		b.quoted(unescapeQuoted(part.Value, quote))
	case *syntax.ParamExp:
		s.param(b, part, true)
	case *syntax.CmdSubst:
		b.quoted(s.commandSubst(part))
	case *syntax.ArithmExp:
		b.quoted(itoa(s.arithm(part.X)))
	case *syntax.SglQuoted: // inside ${x:-'y'} within double quotes
		if part.Dollar {
			b.quoted(ansiC(part.Value))
		} else {
			b.quoted("'" + part.Value + "'")
		}
	case *syntax.DblQuoted:
		s.doubleQuoted(b, part.Parts)
	default:
		s.part(b, part, false)
	}
}

func unescapeQuoted(value string, quote byte) string {
	if strings.IndexByte(value, '\\') < 0 {
		return value
	}
	var out strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] == '\\' && i+1 < len(value) {
			switch next := value[i+1]; next {
			case '$', '`', '\\':
				out.WriteByte(next)
				i++
				continue
			case '\n':
				i++
				continue
			case '"', '}':
				if next == quote || next == '}' && quote == '}' || next == '"' && quote == '}' {
					out.WriteByte(next)
					i++
					continue
				}
			}
		}
		out.WriteByte(value[i])
	}
	return out.String()
}

// document expands a here-document body.
func (s *Shell) document(word *syntax.Word) string {
	if word == nil {
		return ""
	}
	b := &builder{shell: s}
	for _, part := range word.Parts {
		if quoted, ok := part.(*syntax.DblQuoted); ok {
			b.quoted(`"`)
			for _, inner := range quoted.Parts {
				s.quotedPart(b, inner, 0)
			}
			b.quoted(`"`)
			continue
		}
		s.quotedPart(b, part, 0)
	}
	return joinFields(b.finish())
}
