package shell

import (
	"strings"
	"unicode/utf8"
)

// globMatch is a backtracking matcher for patterns with !(...).
func globMatch(pattern, text string, fold bool) bool {
	if fold {
		pattern, text = strings.ToLower(pattern), strings.ToLower(text)
	}
	return globHere(pattern, text, 0)
}

func globHere(pattern, text string, depth int) bool {
	if depth > 2000 {
		return false
	}
	for pattern != "" {
		c := pattern[0]
		if len(pattern) > 1 && pattern[1] == '(' && strings.IndexByte("?*+@!", c) >= 0 {
			if end := matchingParen(pattern, 1); end > 0 {
				return globGroup(c, alternatives(pattern[2:end]), pattern[end+1:], text, depth)
			}
		}
		switch c {
		case '*':
			for i := len(text); i >= 0; i-- {
				if globHere(pattern[1:], text[i:], depth+1) {
					return true
				}
			}
			return false
		case '?', '[':
			if text == "" {
				return false
			}
			_, size := utf8.DecodeRuneInString(text)
			used := 1
			if c == '[' {
				end := bracketEnd(pattern, 0)
				if end < 0 {
					if text[0] != '[' {
						return false
					}
				} else if used = end + 1; !newPattern(pattern[:used], false, false).matches(text[:size]) {
					return false
				}
			}
			pattern, text = pattern[used:], text[size:]
		default:
			if c == '\\' && len(pattern) > 1 {
				pattern = pattern[1:]
				c = pattern[0]
			}
			if text == "" || text[0] != c {
				return false
			}
			pattern, text = pattern[1:], text[1:]
		}
	}
	return text == ""
}

func alternatives(body string) []string {
	var out []string
	depth, start := 0, 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '\\':
			i++
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				out = append(out, body[start:i])
				start = i + 1
			}
		}
	}
	return append(out, body[start:])
}

func globGroup(operator byte, options []string, rest, text string, depth int) bool {
	any := func(piece string) bool {
		for _, option := range options {
			if globHere(option, piece, depth+1) {
				return true
			}
		}
		return false
	}
	if operator == '?' || operator == '*' {
		if globHere(rest, text, depth+1) {
			return true
		}
	}
	for i := len(text); i >= 0; i-- {
		piece := text[:i]
		matched := any(piece)
		if operator == '!' {
			matched = !matched
		}
		if !matched {
			continue
		}
		if globHere(rest, text[i:], depth+1) {
			return true
		}
		if (operator == '*' || operator == '+') && i > 0 {
			again := "*(" + strings.Join(options, "|") + ")" + rest
			if globHere(again, text[i:], depth+1) {
				return true
			}
		}
	}
	return false
}
