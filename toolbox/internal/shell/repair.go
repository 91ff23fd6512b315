package shell

import (
	"errors"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// repair rewrites the construct at a syntax error if bash accepts it and the parser does not: "$((a) | b)", which the
// parser takes for arithmetic, and a here-document delimiter with an expansion. It never changes text before from. Each
// repair leaves fewer such constructs, so a caller may repeat it until it fails.
func repair(source string, from int, err error) (string, bool) {
	var parse syntax.ParseError
	if !errors.As(err, &parse) {
		return "", false
	}
	at := min(int(parse.Pos.Offset()), len(source))
	switch {
	case at < from:
		return "", false
	case strings.HasPrefix(parse.Text, "expansions not allowed in heredoc words"):
		return replaceDelimiter(source, strings.LastIndex(source[:at], "<<"))
	case strings.HasPrefix(parse.Text, "unclosed here-document"):
		if offset := strings.Index(source[at:], "<<"); offset >= 0 {
			return replaceDelimiter(source, at+offset)
		}
		return "", false
	}
	return splitParentheses(source, from, at)
}

// splitParentheses puts a space into the last "((" at or before an error that does not begin arithmetic. As in bash it
// does only if the inner parenthesis is closed right before the outer one.
func splitParentheses(source string, from, at int) (string, bool) {
	end := min(at+len("$(("), len(source))
	for {
		offset := strings.LastIndex(source[from:end], "((")
		if offset < 0 {
			return "", false
		}
		outer := from + offset
		closing := closingParenthesis(source, outer+1)
		if closing >= 0 && !strings.HasPrefix(source[closing+1:], ")") {
			return source[:outer+1] + " " + source[outer+1:], true
		}
		end = outer + 1
	}
}

// closingParenthesis finds the counterpart of the parenthesis at open, or -1.
func closingParenthesis(source string, open int) int {
	depth := 0
	for i := open; i < len(source); i++ {
		switch source[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i
			}
		default:
			i = skipQuoted(source, i)
		}
	}
	return -1
}

// skipQuoted returns the position of the last byte of the quoted text that begins at i, or i if none does.
func skipQuoted(source string, i int) int {
	quote := source[i]
	switch quote {
	case '\\':
		return min(i+1, len(source)-1)
	case '\'', '"', '`':
		for j := i + 1; j < len(source); j++ {
			if source[j] == quote {
				return j
			}
			if source[j] == '\\' && quote != '\'' {
				j++
			}
		}
		return len(source) - 1
	}
	return i
}

// replaceDelimiter gives the here-document whose operator is at operator a plain delimiter.
func replaceDelimiter(source string, operator int) (string, bool) {
	if operator < 0 {
		return "", false
	}
	start := operator + len("<<")
	stripsTabs := strings.HasPrefix(source[start:], "-")
	if stripsTabs {
		start++
	}
	start += len(source[start:]) - len(strings.TrimLeft(source[start:], " \t"))
	end := delimiterEnd(source, start)
	word := source[start:end]
	if !strings.ContainsAny(word, "$`") {
		return "", false
	}
	text := strings.NewReplacer(`\`, "", `'`, "", `"`, "").Replace(word)
	line := end + strings.Index(source[end:], "\n") + 1
	for ; line > end && line < len(source); line += len(nextLine(source[line:])) {
		content := strings.TrimSuffix(nextLine(source[line:]), "\n")
		tail := content
		if stripsTabs {
			tail = strings.TrimLeft(content, "\t")
		}
		if tail == text {
			name := unusedName(source)
			plain := name
			if text != word {
				plain = "'" + name + "'"
			}
			return source[:start] + plain + source[end:line] + name + source[line+len(content):], true
		}
	}
	return "", false
}

// delimiterEnd finds the end of the word at start: bash takes an expansion in it as text.
func delimiterEnd(source string, start int) int {
	for i := start; i < len(source); i++ {
		switch c := source[i]; {
		case strings.HasPrefix(source[i:], "$("):
			closing := closingParenthesis(source, i+1)
			if closing < 0 {
				return len(source)
			}
			i = closing
		case strings.HasPrefix(source[i:], "${"):
			if closing := strings.IndexByte(source[i:], '}'); closing > 0 {
				i += closing
			}
		case strings.IndexByte(" \t\n;&|<>()", c) >= 0:
			return i
		default:
			i = skipQuoted(source, i)
		}
	}
	return len(source)
}

func nextLine(text string) string {
	if end := strings.IndexByte(text, '\n'); end >= 0 {
		return text[:end+1]
	}
	return text
}

func unusedName(source string) string {
	for number := 0; ; number++ {
		if name := "HEREDOC" + strconv.Itoa(number); !strings.Contains(source, name) {
			return name
		}
	}
}
