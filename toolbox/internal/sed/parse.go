package sed

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"warmcell/toolbox/internal/posix"
)

type parser struct {
	source   string
	pos      int
	extended bool
	blocks   []int
}

func (p *parser) peek() byte {
	if p.pos < len(p.source) {
		return p.source[p.pos]
	}
	return 0
}

func (p *parser) skip(set string) {
	for p.pos < len(p.source) && strings.IndexByte(set, p.source[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *parser) program() ([]*instruction, error) {
	var program []*instruction
	labels := map[string]int{}
	for {
		p.skip(" \t\n;")
		if p.pos >= len(p.source) {
			break
		}
		if p.peek() == '#' {
			p.restOfLine()
			continue
		}
		one, err := p.instruction()
		if err != nil {
			return nil, err
		}
		switch one.name {
		case '{':
			p.blocks = append(p.blocks, len(program))
		case '}':
			if len(p.blocks) == 0 {
				return nil, errors.New("unexpected `}'")
			}
			open := p.blocks[len(p.blocks)-1]
			p.blocks = p.blocks[:len(p.blocks)-1]
			program[open].jump = len(program)
		case ':':
			labels[one.label] = len(program)
		}
		program = append(program, one)
	}
	if len(p.blocks) > 0 {
		p.pos = 0
		return nil, errors.New("unmatched `{'")
	}
	for _, one := range program {
		if strings.IndexByte("btT", one.name) < 0 {
			continue
		}
		target, ok := labels[one.label]
		if one.label != "" && !ok {
			return nil, fmt.Errorf("can't find label for jump to `%s'", one.label)
		}
		if one.jump = len(program); one.label != "" {
			one.jump = target
		}
	}
	return program, nil
}

func (p *parser) restOfLine() string {
	end := strings.IndexByte(p.source[p.pos:], '\n')
	if end < 0 {
		end = len(p.source) - p.pos
	}
	text := p.source[p.pos : p.pos+end]
	p.pos += end
	return text
}

func (p *parser) instruction() (*instruction, error) {
	one := &instruction{}
	var err error
	if one.first, err = p.address(false); err != nil {
		return nil, err
	}
	if one.first != nil {
		p.skip(" \t")
		if p.peek() == ',' {
			p.pos++
			p.skip(" \t")
			if one.second, err = p.address(true); err != nil {
				return nil, err
			}
			if one.second == nil {
				return nil, errors.New("unexpected `,'")
			}
		}
	}
	if one.first != nil && one.first.kind == byLine && one.first.line == 0 && (one.second == nil || one.second.kind != byRegex) {
		return nil, errors.New("invalid usage of line address 0")
	}
	p.skip(" \t")
	for p.peek() == '!' {
		one.negated = true
		p.pos++
		p.skip(" \t")
	}
	if p.pos >= len(p.source) {
		return nil, errors.New("missing command")
	}
	one.name = p.source[p.pos]
	p.pos++
	return one, p.arguments(one)
}

func (p *parser) number() (int, bool) {
	start := p.pos
	for p.pos < len(p.source) && p.source[p.pos] >= '0' && p.source[p.pos] <= '9' {
		p.pos++
	}
	number, err := strconv.Atoi(p.source[start:p.pos])
	return number, err == nil
}

func (p *parser) address(second bool) (*address, error) {
	switch c := p.peek(); {
	case c >= '0' && c <= '9':
		line, _ := p.number()
		if p.peek() == '~' {
			p.pos++
			step, _ := p.number()
			return &address{kind: byStep, line: line, step: step}, nil
		}
		return &address{kind: byLine, line: line}, nil
	case c == '$':
		p.pos++
		return &address{kind: byLast}, nil
	case second && (c == '+' || c == '~'):
		p.pos++
		count, ok := p.number()
		if !ok {
			return nil, errors.New("expected number")
		}
		if c == '+' {
			return &address{kind: byCount, line: count}, nil
		}
		return &address{kind: byMultiple, line: count}, nil
	case c == '/' || c == '\\':
		if c == '\\' {
			p.pos++
		}
		delimiter := p.peek()
		p.pos++
		source, ok := p.until(delimiter, true)
		if !ok {
			return nil, errors.New("unterminated address regex")
		}
		o := posix.Options{Extended: p.extended, Escapes: true}
		for ; ; p.pos++ {
			if flag := p.peek(); flag == 'I' {
				o.IgnoreCase = true
			} else if flag == 'M' {
				o.Multiline = true
			} else {
				break
			}
		}
		if source == "" {
			return &address{kind: byRegex}, nil
		}
		regex, err := posix.Compile(source, o)
		return &address{kind: byRegex, regex: regex}, err
	}
	return nil, nil
}

// until reads to an unescaped delimiter; \delimiter loses its backslash, brackets protect it in expressions.
func (p *parser) until(delimiter byte, isRegex bool) (string, bool) {
	var out strings.Builder
	inBracket := false
	for p.pos < len(p.source) {
		c := p.source[p.pos]
		switch {
		case c == '\\' && p.pos+1 < len(p.source):
			next := p.source[p.pos+1]
			p.pos += 2
			switch {
			case next == delimiter && !inBracket:
				if isRegex && strings.IndexByte("+?|(){}^$.*[]", delimiter) >= 0 && delimiter != '/' {
					out.WriteByte('\\')
				}
				out.WriteByte(next)
			case next == '\n' && isRegex:
				out.WriteByte('\n')
			default:
				out.WriteByte('\\')
				out.WriteByte(next)
			}
			continue
		case c == delimiter && !inBracket:
			p.pos++
			return out.String(), true
		case c == '\n' && isRegex && delimiter != '\n' && false:
			return "", false
		case isRegex && c == '[' && !inBracket:
			inBracket = true
			out.WriteByte(c)
			p.pos++
			if p.peek() == '^' {
				out.WriteByte('^')
				p.pos++
			}
			if p.peek() == ']' {
				out.WriteByte(']')
				p.pos++
			}
			continue
		case inBracket && c == '[' && p.pos+1 < len(p.source) && strings.IndexByte(":.=", p.source[p.pos+1]) >= 0:
			if end := strings.Index(p.source[p.pos+2:], string(p.source[p.pos+1])+"]"); end >= 0 {
				out.WriteString(p.source[p.pos : p.pos+end+4])
				p.pos += end + 4
				continue
			}
		case inBracket && c == ']':
			inBracket = false
		}
		out.WriteByte(c)
		p.pos++
	}
	return "", false
}

func (p *parser) arguments(one *instruction) error {
	switch one.name {
	case '{':
		return nil
	case '}':
		if one.first != nil {
			return errors.New("} doesn't want any addresses")
		}
		return p.endOfCommand()
	case '=', 'd', 'D', 'F', 'g', 'G', 'h', 'H', 'n', 'N', 'p', 'P', 'x', 'z':
		return p.endOfCommand()
	case 'a', 'i', 'c':
		return p.text(one)
	case ':':
		if one.first != nil {
			return errors.New(": doesn't want any addresses")
		}
		p.skip(" \t")
		one.label = strings.TrimRight(p.labelText(false), " \t")
		if one.label == "" {
			return errors.New("\":\" lacks a label")
		}
		return nil
	case 'b', 't', 'T':
		p.skip(" \t")
		one.label = strings.TrimSpace(p.labelText(true))
		return nil
	case 'q', 'Q', 'l', 'L':
		p.skip(" \t")
		one.number, _ = p.number()
		return p.endOfCommand()
	case 'r', 'R', 'w', 'W':
		p.skip(" \t")
		one.text = p.restOfLine()
		if one.text == "" {
			return errors.New("missing filename in r/R/w/W commands")
		}
		return nil
	case 's':
		return p.substitute(one)
	case 'y':
		return p.transliterate(one)
	case 'e', 'v':
		p.skip(" \t")
		one.text = p.restOfLine()
		return nil
	}
	return fmt.Errorf("unknown command: `%c'", one.name)
}

func (p *parser) labelText(semicolon bool) string {
	start := p.pos
	for p.pos < len(p.source) && p.source[p.pos] != '\n' && !(semicolon && (p.source[p.pos] == ';' || p.source[p.pos] == '}')) && !(!semicolon && p.source[p.pos] == ';') {
		p.pos++
	}
	return p.source[start:p.pos]
}

func (p *parser) endOfCommand() error {
	p.skip(" \t")
	switch p.peek() {
	case 0, '\n', ';', '}', '#':
		return nil
	}
	p.pos++
	return errors.New("extra characters after command")
}

// text reads the argument of a, i and c: one line ("a text") or the classic backslash form.
func (p *parser) text(one *instruction) error {
	p.skip(" \t")
	if p.peek() == '\\' {
		p.pos++
		p.skip(" \t")
		if p.peek() == '\n' {
			p.pos++
		} else if p.pos < len(p.source) {
			p.pos += 0
		}
	}
	if p.pos >= len(p.source) && one.text == "" && p.source[len(p.source)-1] != '\n' && p.source[len(p.source)-1] != '\\' {
		return fmt.Errorf("expected \\ after `a', `c' or `i'")
	}
	var out strings.Builder
	for p.pos < len(p.source) {
		c := p.source[p.pos]
		if c == '\\' && p.pos+1 < len(p.source) {
			p.pos++
			switch next := p.source[p.pos]; next {
			case 't':
				out.WriteByte('\t')
			case '\n':
				out.WriteByte('\n')
			default:
				out.WriteByte(next)
			}
			p.pos++
			continue
		}
		p.pos++
		if c == '\n' {
			break
		}
		out.WriteByte(c)
	}
	one.text = out.String() + "\n"
	return nil
}

func (p *parser) substitute(one *instruction) error {
	delimiter := p.peek()
	if delimiter == 0 || delimiter == '\n' || delimiter == '\\' {
		return errors.New("unterminated `s' command")
	}
	p.pos++
	source, ok := p.until(delimiter, true)
	if !ok {
		return errors.New("unterminated `s' command")
	}
	replacement, ok := p.until(delimiter, false)
	if !ok {
		return errors.New("unterminated `s' command")
	}
	s := &substitution{occurrence: 1}
	o := posix.Options{Extended: p.extended, Escapes: true}
	if err := p.flags(s, &o); err != nil {
		return err
	}
	var err error
	if source != "" {
		if s.regex, err = posix.Compile(source, o); err != nil {
			return err
		}
	}
	if s.parts, err = replacementParts(replacement, s.regex); err != nil {
		return err
	}
	one.substitution = s
	return nil
}

func (p *parser) flags(s *substitution, o *posix.Options) error {
	for {
		switch c := p.peek(); {
		case c == 'g':
			s.global = true
		case c == 'p':
			s.print = true
		case c == 'i' || c == 'I':
			o.IgnoreCase = true
		case c == 'm' || c == 'M':
			o.Multiline = true
		case c == 'e':
			s.evaluate = true
		case c >= '0' && c <= '9':
			number, _ := p.number()
			if number == 0 {
				return errors.New("number option to `s' command may not be zero")
			}
			s.occurrence = number
			continue
		case c == 'w':
			p.pos++
			p.skip(" \t")
			s.file = p.restOfLine()
			return nil
		case c == 0 || strings.IndexByte(" \t\n;}#", c) >= 0:
			return p.endOfCommand()
		default:
			return errors.New("unknown option to `s'")
		}
		p.pos++
	}
}

func replacementParts(source string, regex *posix.Regex) ([]piece, error) {
	var parts []piece
	var text strings.Builder
	change := byte(0)
	flush := func() {
		if text.Len() > 0 || change != 0 {
			parts = append(parts, piece{text: text.String(), group: -1, change: change})
			text.Reset()
			change = 0
		}
	}
	for i := 0; i < len(source); i++ {
		c := source[i]
		if c == '&' {
			flush()
			parts = append(parts, piece{group: 0})
			continue
		}
		if c != '\\' || i+1 == len(source) {
			text.WriteByte(c)
			continue
		}
		i++
		switch next := source[i]; {
		case next >= '0' && next <= '9':
			if regex != nil && int(next-'0') > regex.Groups() {
				return nil, fmt.Errorf("invalid reference \\%c on `s' command's RHS", next)
			}
			flush()
			parts = append(parts, piece{group: int(next - '0')})
		case strings.IndexByte("LUluE", next) >= 0:
			flush()
			change = next
		case next == 'n':
			text.WriteByte('\n')
		case next == 't':
			text.WriteByte('\t')
		case next == 'r':
			text.WriteByte('\r')
		case next == 'x' && i+2 < len(source):
			if code, err := strconv.ParseUint(source[i+1:i+3], 16, 8); err == nil {
				text.WriteByte(byte(code))
				i += 2
			}
		default:
			text.WriteByte(next)
		}
	}
	flush()
	return parts, nil
}

func (p *parser) transliterate(one *instruction) error {
	delimiter := p.peek()
	p.pos++
	from, ok := p.until(delimiter, false)
	if !ok {
		return errors.New("unterminated `y' command")
	}
	to, ok := p.until(delimiter, false)
	if !ok {
		return errors.New("unterminated `y' command")
	}
	left, right := []rune(unescapeY(from)), []rune(unescapeY(to))
	if len(left) != len(right) {
		return errors.New("strings for `y' command are different lengths")
	}
	one.mapping = make(map[rune]rune, len(left))
	for i, r := range left {
		if _, seen := one.mapping[r]; !seen {
			one.mapping[r] = right[i]
		}
	}
	return p.endOfCommand()
}

func unescapeY(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
			switch text[i] {
			case 'n':
				out.WriteByte('\n')
			case 't':
				out.WriteByte('\t')
			default:
				out.WriteByte(text[i])
			}
			continue
		}
		_, size := utf8.DecodeRuneInString(text[i:])
		out.WriteString(text[i : i+size])
		i += size - 1
	}
	return out.String()
}
