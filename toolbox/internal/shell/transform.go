package shell

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
)

// transform implements ${name@operator}.
func (s *Shell) transform(b *builder, pe *syntax.ParamExp, p *parameter, quoted bool) {
	operator := pe.Exp.Word.Lit()
	switch operator {
	case "a":
		flags := ""
		if p.v != nil {
			flags = p.v.flags()
		}
		s.emit(b, flags, quoted)
		return
	case "A":
		if p.v != nil && (p.v.isSet || p.v.flags() != "") {
			s.emit(b, s.assignmentOf(p.name, p.v, p.isList), quoted)
		}
		return
	case "K", "k":
		if p.v != nil && p.v.kind != scalar && p.isList {
			s.emitPairs(b, p.v, operator, quoted)
			return
		}
		operator = "Q"
	}
	if !p.isSet {
		if quoted && !p.isList {
			b.quoted("")
		}
		return
	}
	values := mapValues(p.values, func(value string) string { return s.transformOne(operator, value) })
	if p.isList {
		s.emitList(b, values, quoted, p.isStar)
		return
	}
	s.emit(b, values[0], quoted)
}

func (s *Shell) emitPairs(b *builder, v *variable, operator string, quoted bool) {
	var pairs []string
	keys, values := v.keys(), v.values()
	for i := range keys {
		if operator == "k" {
			pairs = append(pairs, keys[i], values[i])
		} else {
			pairs = append(pairs, keys[i]+" "+doubleQuote(values[i]))
		}
	}
	if operator == "K" {
		s.emit(b, strings.Join(pairs, " "), quoted)
		return
	}
	s.emitList(b, pairs, quoted, false)
}

func (s *Shell) transformOne(operator, value string) string {
	switch operator {
	case "Q":
		return quoteForReuse(value)
	case "U":
		return strings.ToUpper(value)
	case "u":
		return capitalize(value, unicode.ToUpper, false, nil)
	case "L":
		return strings.ToLower(value)
	case "E":
		return ansiC(value)
	case "P":
		return s.promptText(value)
	}
	return value
}

func (s *Shell) promptText(value string) string {
	replacer := strings.NewReplacer(`\u`, core.UserName, `\h`, "sandbox", `\w`, s.dir, `\$`, "$", `\n`, "\n", `\\`, `\`)
	return replacer.Replace(value)
}

func (s *Shell) assignmentOf(name string, v *variable, whole bool) string {
	flags := v.flags()
	if v.kind == scalar && flags == "" {
		return name + "=" + quoteForReuse(v.text)
	}
	if !whole && v.kind != scalar {
		value, _ := v.first()
		return "declare -" + flags + " " + name + "=" + quoteForReuse(value)
	}
	if v.kind == scalar {
		return "declare -" + flags + " " + name + "=" + quoteForReuse(v.text)
	}
	return declaration(name, v)
}

// declaration is the line that "declare -p" prints.
func declaration(name string, v *variable) string {
	flags := v.flags()
	if flags == "" {
		flags = "-"
	}
	line := "declare -" + flags + " " + name
	if !v.isSet && v.kind == scalar {
		return line
	}
	if v.kind == scalar {
		return line + "=" + doubleQuote(v.text)
	}
	if !v.isSet {
		return line
	}
	return line + "=" + arrayText(v)
}

func arrayText(v *variable) string {
	var out strings.Builder
	out.WriteByte('(')
	keys, values := v.keys(), v.values()
	for i, key := range keys {
		if v.kind == indexed && i > 0 {
			out.WriteByte(' ')
		}
		if v.kind == associative && needsQuoting(key) {
			key = doubleQuote(key)
		}
		fmt.Fprintf(&out, "[%s]=%s", key, doubleQuote(values[i]))
		if v.kind == associative {
			out.WriteByte(' ')
		}
	}
	out.WriteByte(')')
	return out.String()
}

func needsQuoting(text string) bool {
	for i := 0; i < len(text); i++ {
		if b := text[i]; !isAlnum(b) && !strings.Contains("_-./:@%+,", string(b)) {
			return true
		}
	}
	return text == "" || text == "@" || text == "*"
}

func doubleQuote(value string) string {
	if hasControl(value) {
		return dollarQuote(value)
	}
	var out strings.Builder
	out.WriteByte('"')
	for i := 0; i < len(value); i++ {
		if strings.IndexByte("\"\\$`", value[i]) >= 0 {
			out.WriteByte('\\')
		}
		out.WriteByte(value[i])
	}
	out.WriteByte('"')
	return out.String()
}

func hasControl(value string) bool {
	for i := 0; i < len(value); i++ {
		if value[i] < 32 && value[i] != '\n' && value[i] != '\t' || value[i] == 127 {
			return true
		}
	}
	return !utf8.ValidString(value)
}

func hasUnprintable(value string) bool {
	for i := 0; i < len(value); i++ {
		if value[i] < 32 || value[i] == 127 {
			return true
		}
	}
	return !utf8.ValidString(value)
}

// dollarQuote renders $'...'.
func dollarQuote(value string) string {
	var out strings.Builder
	out.WriteString("$'")
	for i := 0; i < len(value); {
		r, size := utf8.DecodeRuneInString(value[i:])
		switch {
		case r == utf8.RuneError && size == 1 || r < 32 || r == 127:
			if name := strings.IndexByte("\a\b\t\n\v\f\r\x1b", value[i]); name >= 0 {
				out.WriteString("\\" + string("abtnvfrE"[name]))
			} else {
				fmt.Fprintf(&out, "\\%03o", value[i])
			}
		case r == '\'' || r == '\\':
			out.WriteString("\\" + string(r))
		default:
			out.WriteString(value[i : i+size])
		}
		i += size
	}
	out.WriteByte('\'')
	return out.String()
}

// quoteForReuse is ${x@Q}: single quotes, or $'...' for control characters.
func quoteForReuse(value string) string {
	if hasUnprintable(value) {
		return dollarQuote(value)
	}
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}

// backslashQuote is printf %q and the style of "set -x".
func backslashQuote(value string) string {
	if value == "" {
		return "''"
	}
	if hasUnprintable(value) {
		return dollarQuote(value)
	}
	var out strings.Builder
	for i := 0; i < len(value); i++ {
		b := value[i]
		switch {
		case b >= utf8.RuneSelf, isAlnum(b), strings.IndexByte("_-./:@%+=", b) >= 0:
		case b == '~' || b == '#':
			if i == 0 {
				out.WriteByte('\\')
			}
		default:
			out.WriteByte('\\')
		}
		out.WriteByte(b)
	}
	return out.String()
}
