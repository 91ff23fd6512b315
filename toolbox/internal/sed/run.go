package sed

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

// stream is the state of one run.
type stream struct {
	c                                  *core.Ctx
	program                            []*instruction
	quiet, extended, separate, inPlace bool
	suffix                             string
	delimiter                          byte
	wrap                               int
	names                              []string
	reader                             *bufio.Reader
	closer                             io.Closer
	name                               string
	out                                *core.Out
	edited                             *bytes.Buffer
	line                               int
	pattern, hold                      []byte
	terminated                         bool
	appended                           []func()
	ranges                             map[*instruction]int
	active                             map[*instruction]bool
	substituted, ended                 bool
	exitCode                           int
	lastRegex                          *posix.Regex
	writers                            map[string]io.Writer
	readers                            map[string]*bufio.Reader
	status                             int
	missingNewline                     bool
}

func (s *stream) run(names []string) int {
	if len(names) == 0 {
		names = []string{"-"}
	}
	s.names = names
	s.out = s.c.Out
	s.writers = map[string]io.Writer{"/dev/stdout": s.c.Out, "/dev/stderr": s.c.Stderr}
	s.readers = map[string]*bufio.Reader{}
	s.openWriters()
	for s.next() {
		if s.cycle() {
			break
		}
	}
	s.closeFile()
	s.c.Out.Flush()
	if s.exitCode != 0 {
		return s.exitCode
	}
	return s.status
}

func (s *stream) openWriters() {
	for _, one := range s.program {
		name := ""
		if one.name == 'w' || one.name == 'W' {
			name = one.text
		} else if one.substitution != nil {
			name = one.substitution.file
		}
		if name == "" || s.writers[name] != nil {
			continue
		}
		file, err := s.c.Create(name)
		if err != nil {
			s.c.Errorf("couldn't open file %s: %s", name, core.Reason(err))
			s.status = 4
			s.writers[name] = io.Discard
			continue
		}
		s.writers[name] = file
	}
}

// openNext opens the next readable input file.
func (s *stream) openNext() bool {
	for len(s.names) > 0 {
		name := s.names[0]
		s.names = s.names[1:]
		var reader io.ReadCloser
		var err error
		if info, statErr := core.Stat(s.c.Path(name)); name != "-" && statErr == nil && info.IsDir() {
			if s.inPlace {
				s.c.Errorf("couldn't edit %s: not a regular file", name)
			} else {
				s.c.Errorf("read error on %s: Is a directory", name)
			}
			s.status = 2
			continue
		}
		if reader, err = s.c.Open(name); err != nil {
			s.c.Errorf("can't read %s: %s", name, core.Reason(err))
			s.status = 2
			continue
		}
		s.closer, s.name = reader, name
		s.reader = bufio.NewReaderSize(reader, 64<<10)
		if s.inPlace && name != "-" {
			data, _ := io.ReadAll(s.reader)
			reader.Close()
			s.reader = bufio.NewReader(bytes.NewReader(data))
			s.edited = &bytes.Buffer{}
			s.out = core.NewOut(s.edited)
		}
		if s.separate {
			s.line = 0
		}
		return true
	}
	return false
}

func (s *stream) closeFile() {
	if s.reader == nil {
		return
	}
	if s.inPlace && s.edited != nil {
		if s.ended {
			rest, _ := io.ReadAll(s.reader)
			s.out.Write(rest)
		}
		s.out.Flush()
		s.replaceFile()
		s.edited, s.out = nil, s.c.Out
	} else if s.closer != nil {
		s.closer.Close()
	}
	s.reader = nil
}

func (s *stream) replaceFile() {
	if s.suffix != "" {
		backup := s.name + s.suffix
		if strings.Contains(s.suffix, "*") {
			backup = strings.ReplaceAll(s.suffix, "*", s.name)
		}
		core.Rename(s.c.Path(s.name), s.c.Path(backup))
	}
	file, err := s.c.OpenFile(s.name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		s.c.Errorf("couldn't open file %s: %s", s.name, core.Reason(err))
		s.status = 4
		return
	}
	file.Write(s.edited.Bytes())
	file.Close()
}

// readLine fills the pattern space with the next line.
func (s *stream) readLine() ([]byte, bool) {
	for {
		if s.reader == nil && !s.openNext() {
			return nil, false
		}
		line, err := s.reader.ReadBytes(s.delimiter)
		if len(line) == 0 && err != nil {
			s.closeFile()
			continue
		}
		s.terminated = line[len(line)-1] == s.delimiter
		if s.terminated {
			line = line[:len(line)-1]
		}
		s.line++
		return line, true
	}
}

func (s *stream) next() bool {
	line, ok := s.readLine()
	if ok {
		s.pattern = append(s.pattern[:0], line...)
	}
	return ok
}

// isLast looks ahead, over empty and missing files too.
func (s *stream) isLast() bool {
	for {
		if s.reader != nil {
			if _, err := s.reader.Peek(1); err == nil {
				return false
			}
		}
		if s.separate || len(s.names) == 0 {
			return true
		}
		name := s.names[0]
		if reader, err := s.c.Open(name); err == nil && name != "-" {
			var first [1]byte
			n, _ := reader.Read(first[:])
			reader.Close()
			if n > 0 {
				return false
			}
		} else if name == "-" {
			return false
		}
		s.names = s.names[1:]
	}
}

func (s *stream) emit(text []byte, terminated bool) {
	if s.missingNewline {
		s.out.WriteByte(s.delimiter)
		s.missingNewline = false
	}
	s.out.Write(text)
	if terminated {
		s.out.WriteByte(s.delimiter)
	} else {
		s.missingNewline = true
	}
}

func (s *stream) endCycle() {
	if !s.quiet {
		s.emit(s.pattern, s.terminated)
	}
	s.flushAppended()
}

func (s *stream) flushAppended() {
	for _, action := range s.appended {
		action()
	}
	s.appended = s.appended[:0]
}

func (s *stream) selects(one *instruction) bool {
	if one.first == nil {
		return !one.negated
	}
	return s.inRange(one) != one.negated
}

func (s *stream) inRange(one *instruction) bool {
	if one.second == nil {
		return s.matches(one.first)
	}
	if s.active[one] {
		return s.continueRange(one)
	}
	if one.first.kind == byLine && one.first.line == 0 {
		if s.ranges[one] == 0 {
			s.ranges[one] = -1
			s.active[one] = true
			return s.continueRange(one)
		}
		return false
	}
	if !s.matches(one.first) {
		return false
	}
	s.active[one] = true
	switch one.second.kind {
	case byLine:
		if one.second.line <= s.line {
			s.active[one] = false
		}
	case byCount:
		s.ranges[one] = s.line + one.second.line
		s.active[one] = one.second.line > 0
	case byMultiple:
		if one.second.line <= 0 || s.line%one.second.line == 0 {
			s.active[one] = false
		}
	case byLast:
		s.active[one] = !s.isLast()
	}
	return true
}

func (s *stream) continueRange(one *instruction) bool {
	switch one.second.kind {
	case byLine:
		if s.line >= one.second.line {
			s.active[one] = false
		}
		return s.line <= one.second.line || one.first.kind == byLine && false
	case byCount:
		if s.line >= s.ranges[one] {
			s.active[one] = false
		}
	case byMultiple:
		if s.line%one.second.line == 0 {
			s.active[one] = false
		}
	default:
		if s.matches(one.second) {
			s.active[one] = false
		}
	}
	return true
}

func (s *stream) matches(a *address) bool {
	switch a.kind {
	case byLine:
		return s.line == a.line
	case byLast:
		return s.isLast()
	case byStep:
		if a.step <= 0 {
			return s.line == a.line
		}
		return s.line >= a.line && (s.line-a.line)%a.step == 0
	}
	regex := a.regex
	if regex == nil {
		regex = s.lastRegex
	}
	if regex == nil {
		return false
	}
	s.lastRegex = regex
	return regex.Match(s.pattern)
}

// cycle runs the program over the pattern space; true ends the whole run.
func (s *stream) cycle() bool {
	restart := true
	for restart {
		restart = false
		s.substituted = false
		for i := 0; i < len(s.program); i++ {
			one := s.program[i]
			if !s.selects(one) {
				if one.name == '{' {
					i = one.jump
				}
				continue
			}
			switch one.name {
			case 'd':
				s.flushAppended()
				return false
			case 'D':
				at := bytes.IndexByte(s.pattern, '\n')
				s.flushAppended()
				if at < 0 {
					return false
				}
				s.pattern = append(s.pattern[:0], s.pattern[at+1:]...)
				restart = true
			case 'b':
				i = one.jump - 1
			case 't':
				if s.substituted {
					s.substituted = false
					i = one.jump - 1
				}
			case 'T':
				if !s.substituted {
					i = one.jump - 1
				}
				s.substituted = false
			case 'n':
				if s.isLast() && len(s.names) == 0 {
					s.endCycle()
					s.ended = true
					return true
				}
				if !s.quiet {
					s.emit(s.pattern, s.terminated)
				}
				s.flushAppended()
				if !s.next() {
					return true
				}
			case 'N':
				if s.isLast() && (len(s.names) == 0 || s.separate) {
					s.endCycle()
					if len(s.names) > 0 {
						return false
					}
					return true
				}
				s.flushAppended()
				line, ok := s.readLine()
				if !ok {
					return true
				}
				s.pattern = append(append(s.pattern, s.delimiter), line...)
			case 'q', 'Q':
				s.exitCode = one.number
				s.ended = true
				if one.name == 'q' {
					s.endCycle()
				}
				return true
			case 'c':
				if one.second == nil || one.negated || !s.active[one] {
					s.emit([]byte(strings.TrimSuffix(one.text, "\n")), true)
				}
				s.flushAppended()
				return false
			default:
				s.execute(one)
			}
			if restart {
				break
			}
		}
	}
	s.endCycle()
	return false
}

func (s *stream) execute(one *instruction) {
	switch one.name {
	case 's':
		s.substitute(one.substitution)
	case 'p':
		s.emit(s.pattern, true)
	case 'P':
		first, _, _ := bytes.Cut(s.pattern, []byte{'\n'})
		s.emit(first, true)
	case '=':
		s.emit([]byte(strconv.Itoa(s.line)), true)
	case 'a':
		s.appended = append(s.appended, func() { s.emit([]byte(strings.TrimSuffix(one.text, "\n")), true) })
	case 'i':
		s.emit([]byte(strings.TrimSuffix(one.text, "\n")), true)
	case 'g':
		s.pattern = append(s.pattern[:0], s.hold...)
	case 'G':
		s.pattern = append(append(s.pattern, '\n'), s.hold...)
	case 'h':
		s.hold = append(s.hold[:0], s.pattern...)
	case 'H':
		s.hold = append(append(s.hold, '\n'), s.pattern...)
	case 'x':
		s.pattern, s.hold = s.hold, s.pattern
	case 'z':
		s.pattern = s.pattern[:0]
	case 'F':
		s.emit([]byte(s.name), true)
	case 'y':
		s.pattern = bytes.Map(func(r rune) rune {
			if to, ok := one.mapping[r]; ok {
				return to
			}
			return r
		}, s.pattern)
	case 'l':
		s.list(one.number)
	case 'r':
		name := one.text
		s.appended = append(s.appended, func() { s.appendFile(name) })
	case 'R':
		s.appendLine(one.text)
	case 'w':
		fmt.Fprintf(s.writers[one.text], "%s\n", s.pattern)
		s.flushIfStdout(one.text)
	case 'W':
		first, _, _ := bytes.Cut(s.pattern, []byte{'\n'})
		fmt.Fprintf(s.writers[one.text], "%s\n", first)
	case 'e':
		s.shellOut(one.text)
	}
}

func (s *stream) flushIfStdout(name string) {
	if name == "/dev/stderr" {
		s.c.Out.Flush()
	}
}

func (s *stream) appendFile(name string) {
	reader, err := s.c.Open(name)
	if err != nil {
		return
	}
	defer reader.Close()
	data, _ := io.ReadAll(reader)
	if len(data) == 0 {
		return
	}
	if s.missingNewline {
		s.out.WriteByte(s.delimiter)
		s.missingNewline = false
	}
	s.out.Write(data)
}

func (s *stream) appendLine(name string) {
	reader := s.readers[name]
	if reader == nil {
		file, err := s.c.Open(name)
		if err != nil {
			return
		}
		reader = bufio.NewReader(file)
		s.readers[name] = reader
	}
	line, err := reader.ReadString('\n')
	if line == "" && err != nil {
		return
	}
	s.appended = append(s.appended, func() { s.emit([]byte(strings.TrimSuffix(line, "\n")), true) })
}

func (s *stream) shellOut(command string) {
	text := command
	if text == "" {
		text = string(s.pattern)
	}
	s.out.Flush()
	var collected bytes.Buffer
	s.c.Exec(s.c.Child(core.Null, &collected, s.c.Stderr), []string{"sh", "-c", text})
	if command != "" {
		s.out.Write(collected.Bytes())
		return
	}
	s.pattern = append(s.pattern[:0], bytes.TrimSuffix(collected.Bytes(), []byte{'\n'})...)
}

func (s *stream) substitute(sub *substitution) {
	regex := sub.regex
	if regex == nil {
		regex = s.lastRegex
	}
	if regex == nil {
		return
	}
	s.lastRegex = regex
	limit := -1
	if !sub.global {
		limit = sub.occurrence
	}
	if required := regex.Required(); required != nil && required.Index(s.pattern) < 0 {
		return
	}
	found := regex.FindAll(s.pattern, limit)
	if len(found) < sub.occurrence {
		return
	}
	found = found[sub.occurrence-1:]
	out := make([]byte, 0, len(s.pattern)+64)
	at := 0
	for _, match := range found {
		out = append(out, s.pattern[at:match[0]]...)
		out = sub.expand(out, s.pattern, match)
		at = match[1]
	}
	s.pattern = append(out, s.pattern[at:]...)
	s.substituted = true
	if sub.evaluate {
		s.shellOut("")
	}
	if sub.print {
		s.emit(s.pattern, true)
	}
	if sub.file != "" {
		fmt.Fprintf(s.writers[sub.file], "%s\n", s.pattern)
	}
}

// expand appends the replacement with groups and case changes applied.
func (sub *substitution) expand(out, text []byte, match []int) []byte {
	mode, once := byte(0), byte(0)
	for _, part := range sub.parts {
		switch part.change {
		case 'U', 'L':
			mode, once = part.change, 0
		case 'E':
			mode, once = 0, 0
		case 'u', 'l':
			once = part.change
		}
		piece := []byte(part.text)
		if part.group >= 0 {
			piece = nil
			if 2*part.group+1 < len(match) && match[2*part.group] >= 0 {
				piece = text[match[2*part.group]:match[2*part.group+1]]
			}
		}
		if mode != 0 || once != 0 {
			piece, once = changeCase(piece, mode, once)
		}
		out = append(out, piece...)
	}
	return out
}

func changeCase(text []byte, mode, once byte) ([]byte, byte) {
	if len(text) == 0 {
		return text, once
	}
	switch mode {
	case 'U':
		text = bytes.ToUpper(text)
	case 'L':
		text = bytes.ToLower(text)
	}
	if once != 0 {
		r, size := utf8.DecodeRune(text)
		changed := unicode.ToUpper(r)
		if once == 'l' {
			changed = unicode.ToLower(r)
		}
		text = append([]byte(string(changed)), text[size:]...)
	}
	return text, 0
}

func (s *stream) list(width int) {
	if width == 0 {
		width = s.wrap
	}
	column := 0
	put := func(text string) {
		if width > 1 && column+len(text) > width-1 {
			s.out.WriteString("\\\n")
			column = 0
		}
		s.out.WriteString(text)
		column += len(text)
	}
	for _, b := range s.pattern {
		switch at := strings.IndexByte("\a\b\f\n\r\t\v\\", b); {
		case at >= 0:
			put(`\` + string(`abfnrtv\`[at]))
		case b < 32 || b > 126:
			put(fmt.Sprintf("\\%03o", b))
		default:
			put(string(rune(b)))
		}
	}
	s.out.WriteString("$\n")
}
