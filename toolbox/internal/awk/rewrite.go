package awk

import (
	"regexp"
	"strconv"
	"strings"
)

// goawk has neither gensub nor the three-argument match of GNU awk; both are rewritten to calls that it can make.
var extendedCall = regexp.MustCompile(`\b(gensub|match)\s*\(`)

const matchHelper = `
function __match(text, pattern, found,  count, parts, i) {
	delete found
	if (!match(text, pattern)) return 0
	count = split(captures(text, pattern), parts, "\034")
	for (i = 1; i <= count; i++) found[i - 1] = parts[i]
	return RSTART
}
`

func rewrite(source string) string {
	if !strings.Contains(source, "gensub") && !strings.Contains(source, "match") {
		return source
	}
	var out strings.Builder
	helper := false
	for {
		at := extendedCall.FindStringSubmatchIndex(source)
		if at == nil {
			break
		}
		name := source[at[2]:at[3]]
		args, end := callArguments(source, at[1])
		out.WriteString(source[:at[0]])
		switch {
		case end < 0:
			out.WriteString(source[at[0]:at[1]])
			source = source[at[1]:]
			continue
		case name == "gensub" && len(args) >= 3:
			if len(args) == 3 {
				args = append(args, "$0")
			}
			args[0] = stringLiteral(args[0])
			out.WriteString("gensub(" + strings.Join(args, ",") + ")")
		case name == "match" && len(args) == 3:
			helper = true
			args[1] = stringLiteral(args[1])
			out.WriteString("__match(" + strings.Join(args, ",") + ")")
		default:
			out.WriteString(source[at[0]:at[1]])
			source = source[at[1]:]
			continue
		}
		source = source[end:]
	}
	out.WriteString(source)
	if helper {
		out.WriteString(matchHelper)
	}
	return out.String()
}

// stringLiteral turns /regex/ into a string constant.
func stringLiteral(argument string) string {
	trimmed := strings.TrimSpace(argument)
	if len(trimmed) < 2 || trimmed[0] != '/' || trimmed[len(trimmed)-1] != '/' {
		return argument
	}
	return strconv.Quote(strings.ReplaceAll(trimmed[1:len(trimmed)-1], `\/`, "/"))
}

// callArguments splits at commas outside strings, expressions and nested calls; end is the offset after the closing parenthesis.
func callArguments(source string, from int) (args []string, end int) {
	depth, start := 0, from
	for i := from; i < len(source); i++ {
		switch c := source[i]; c {
		case '"':
			i = skipQuoted(source, i, '"')
		case '/':
			if before := strings.TrimRight(source[start:i], " \t"); before == "" || strings.HasSuffix(before, "(") {
				i = skipQuoted(source, i, '/')
			}
		case '(', '[':
			depth++
		case ')', ']':
			if depth == 0 && c == ')' {
				return append(args, source[start:i]), i + 1
			}
			depth--
		case ',':
			if depth == 0 {
				args = append(args, source[start:i])
				start = i + 1
			}
		}
	}
	return nil, -1
}

func skipQuoted(source string, at int, quote byte) int {
	inClass := false
	for i := at + 1; i < len(source); i++ {
		switch {
		case source[i] == '\\':
			i++
		case quote == '/' && source[i] == '[':
			inClass = true
		case quote == '/' && source[i] == ']':
			inClass = false
		case source[i] == quote && !inClass:
			return i
		}
	}
	return len(source)
}

// captures returns the groups of the first match, joined by the subscript separator.
func captures(text, pattern string) string {
	regex, err := regexp.Compile(pattern)
	if err != nil {
		return ""
	}
	return strings.Join(regex.FindStringSubmatch(text), "\x1c")
}
