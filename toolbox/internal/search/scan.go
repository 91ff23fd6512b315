package search

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"warmcell/toolbox/internal/bytescan"
	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

// operand searches one command-line name, descending into directories when asked to.
func (g *grepper) operand(name string) {
	if name == "-" {
		g.stream(g.label, g.c.Stdin)
		return
	}
	shown, target := name, name
	if name == "" {
		target = "."
	}
	info, err := core.Stat(g.c.Path(target))
	if err != nil && !strings.HasPrefix(g.c.Path(target), "/dev/") {
		g.problem(shown, err)
		return
	}
	if err == nil && info.IsDir() {
		if g.recursive {
			g.directory(shown)
		} else if !g.noMessages {
			g.c.Out.Flush()
			io.WriteString(g.c.Stderr, g.c.Name+": "+shown+": Is a directory\n")
		}
		return
	}
	if g.recursive && !g.wanted(path.Base(name)) {
		return
	}
	g.file(shown)
}

func (g *grepper) problem(name string, err error) {
	g.failed = true
	if !g.noMessages {
		g.c.Errorf("%s: %s", name, core.Reason(err))
	}
}

func (g *grepper) wanted(base string) bool {
	for _, pattern := range g.exclude {
		if matched, _ := path.Match(pattern, base); matched {
			return false
		}
	}
	if len(g.include) == 0 {
		return true
	}
	for _, pattern := range g.include {
		if matched, _ := path.Match(pattern, base); matched {
			return true
		}
	}
	return false
}

func (g *grepper) directory(dir string) {
	target := dir
	if dir == "" {
		target = "."
	}
	entries, err := core.ReadDir(g.c.Path(target))
	if err != nil {
		g.problem(dir, err)
		return
	}
	for _, entry := range entries {
		name := entry.Name()
		if dir != "" {
			name = strings.TrimSuffix(dir, "/") + "/" + name
		}
		g.c.Check()
		kind := g.kind(entry, name)
		if kind.IsDir() {
			skipped := false
			for _, pattern := range g.excludeDirs {
				matched, _ := path.Match(strings.TrimSuffix(pattern, "/"), entry.Name())
				skipped = skipped || matched
			}
			if !skipped {
				g.directory(name)
			}
			continue
		}
		if kind.IsRegular() && g.wanted(entry.Name()) {
			g.file(name)
		}
		if g.quiet && g.matchedAny {
			return
		}
	}
}

// kind is the type of a file that a walk finds: links count only when they are followed, and devices are never read.
func (g *grepper) kind(entry fs.DirEntry, name string) fs.FileMode {
	kind := entry.Type()
	if kind&fs.ModeSymlink != 0 && g.followLinks {
		if info, err := core.Stat(g.c.Path(name)); err == nil {
			return info.Mode().Type()
		}
	}
	return kind
}

func (g *grepper) file(name string) {
	file, err := g.c.OpenFile(name, os.O_RDONLY)
	if err != nil {
		g.problem(name, err)
		return
	}
	defer file.Close()
	g.stream(name, file)
}

// scanState is the progress through one file.
type scanState struct {
	name                string
	line, offset        int
	lastPrinted         int
	pendingAfter, found int
	history             []kept
	binary              bool
	headed              bool
	isTerminated        bool // the line that is looked at ends with the delimiter
	zeroAt              int  // where the byte was found that makes the file binary
}

type kept struct {
	number, offset int
	text           []byte
}

func (g *grepper) stream(name string, reader io.Reader) {
	s := &scanState{name: name, lastPrinted: -1}
	simple := g.count && !g.only && len(g.matchers) == 1 && !g.emptyPattern && !g.invert && g.limit < 0 && !g.countMatches && !g.noBinary
	var err error
	if g.json != nil {
		g.json.started = time.Now()
	}
	if simple && g.delimiter == '\n' {
		s.found, err = countLines(reader, g.matchers[0])
	} else {
		err = g.scan(s, reader)
	}
	if err == errBinary && g.isRipgrep {
		return
	}
	if err != nil && err != errStop && err != errBinary {
		if err == syscall.EISDIR {
			if !g.noMessages {
				g.c.Errorf("%s: Is a directory", name)
			}
			return
		}
		g.problem(name, err)
		return
	}
	g.finish(s)
}

// countLines counts matching lines block by block.
func countLines(reader io.Reader, matcher *posix.Regex) (int, error) {
	block := make([]byte, 256<<10)
	start, count, isDense := 0, 0, false
	for {
		n, err := reader.Read(block[start:])
		data := block[:start+n]
		end := bytes.LastIndexByte(data, '\n') + 1
		if err == io.EOF {
			end = len(data)
		}
		if literal := matcher.Literal(); literal != nil {
			count += literal.CountLines(data[:end])
		} else {
			found, candidates := countInBlock(data[:end], matcher, isDense)
			count, isDense = count+found, candidates > end/denseDistance
		}
		if err == io.EOF {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		start = copy(block, data[end:])
		if start == len(block) {
			block = append(block, make([]byte, len(block))...)
		}
	}
}

// denseDistance: where candidates are nearer to each other than this, looking for them takes longer than matching.
const denseDistance = 256

// countInBlock: where a match must contain some text, the lines without it are not even looked for, unless nearly all
// have it.
func countInBlock(data []byte, matcher *posix.Regex, isDense bool) (found, candidates int) {
	required := matcher.Required()
	for len(data) > 0 {
		if required != nil && !isDense {
			at := required.Index(data)
			if at < 0 {
				break
			}
			data = data[bytes.LastIndexByte(data[:at], '\n')+1:]
		}
		candidates++
		line, rest, _ := bytes.Cut(data, newline)
		if matcher.Match(line) {
			found++
		}
		data = rest
	}
	return found, candidates
}

var newline = []byte{'\n'}

var (
	errStop   = errors.New("enough was found")
	errBinary = errors.New("binary files are not wanted")
)

// scan goes through whole blocks: where every match must contain some text, lines without it are skipped in one step.
func (g *grepper) scan(s *scanState, reader io.Reader) error {
	var required *bytescan.Finder
	if len(g.matchers) == 1 && !g.invert && !g.emptyPattern && !g.passesAll && g.before == 0 && g.after == 0 {
		required = g.matchers[0].Required()
	}
	block := make([]byte, 64<<10)
	start := 0
	first := true
	for {
		n, err := reader.Read(block[start:])
		data := block[:start+n]
		if first && n > 0 {
			s.zeroAt = bytes.IndexByte(data, 0)
			s.binary = !g.text && g.delimiter != 0 && s.zeroAt >= 0
			if s.binary && g.noBinary {
				return errBinary
			}
			first = false
		}
		end := bytes.LastIndexByte(data, g.delimiter) + 1
		if err != nil {
			end = len(data)
		}
		if !g.lines(s, data[:end], required) {
			return errStop
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		start = copy(block, data[end:])
		if start == len(block) {
			block = append(block, make([]byte, len(block))...)
		}
	}
}

func (g *grepper) lines(s *scanState, data []byte, required *bytescan.Finder) bool {
	for len(data) > 0 {
		if required != nil {
			at := required.Index(data)
			if at < 0 {
				s.skip(data, g.lineNumbers, g.delimiter)
				return true
			}
			if lineStart := bytes.LastIndexByte(data[:at], g.delimiter) + 1; lineStart > 0 {
				s.skip(data[:lineStart], g.lineNumbers, g.delimiter)
				data = data[lineStart:]
			}
		}
		end := bytes.IndexByte(data, g.delimiter)
		line, next := data, len(data)
		if end >= 0 {
			line, next = data[:end], end+1
		}
		s.isTerminated = end >= 0
		goesOn := g.line(s, line)
		s.offset += next
		if !goesOn {
			return false
		}
		data = data[next:]
	}
	return true
}

func (s *scanState) skip(data []byte, count bool, delimiter byte) {
	if count {
		s.line += bytescan.Count(data, delimiter)
	}
	s.offset += len(data)
}

// line handles one line; false ends the file.
func (g *grepper) line(s *scanState, line []byte) bool {
	s.line++
	if g.limit == 0 {
		return false
	}
	if g.matches(line) == g.invert {
		if s.pendingAfter > 0 || g.passesAll {
			s.pendingAfter--
			g.print(s, line, '-', s.line, s.offset)
			return true
		}
		if g.limit > 0 && s.found >= g.limit {
			return false
		}
		if g.before > 0 {
			if len(s.history) == g.before {
				s.history = s.history[1:]
			}
			s.history = append(s.history, kept{s.line, s.offset, bytes.Clone(line)})
		}
		return true
	}
	if g.limit > 0 && s.found >= g.limit {
		return s.pendingAfter > 0 && g.context(s, line)
	}
	s.found++
	if g.countMatches {
		s.found += len(g.spans(line)) - 1
	}
	if g.quiet || g.list || g.listOther {
		return false
	}
	if !g.count {
		if s.binary && g.json == nil {
			return false
		}
		for _, old := range s.history {
			g.print(s, old.text, '-', old.number, old.offset)
		}
		s.history = s.history[:0]
		g.print(s, line, ':', s.line, s.offset)
		s.pendingAfter = g.after
	}
	return !(g.limit > 0 && s.found >= g.limit && s.pendingAfter == 0)
}

func (g *grepper) context(s *scanState, line []byte) bool {
	s.pendingAfter--
	g.print(s, line, '-', s.line, s.offset)
	return s.pendingAfter > 0
}

func (g *grepper) prefix(s *scanState, separator byte, number, offset, column int) {
	out := g.c.Out
	if g.names && !g.heading {
		g.colored("35", s.name)
		if g.nulNames {
			out.WriteByte(0)
		} else {
			g.colored("36", string(separator))
		}
	}
	if g.lineNumbers {
		g.colored("32", strconv.Itoa(number))
		g.colored("36", string(separator))
	}
	if g.column && column > 0 {
		out.WriteString(strconv.Itoa(column) + string(separator))
	}
	if g.byteOffsets {
		g.colored("32", strconv.Itoa(offset))
		g.colored("36", string(separator))
	}
	if g.initialTab && (g.names || g.lineNumbers) {
		out.WriteByte('\t')
	}
}

func (g *grepper) colored(code, text string) {
	if !g.color {
		g.c.Out.WriteString(text)
		return
	}
	g.c.Out.WriteString("\x1b[" + code + "m\x1b[K" + text + "\x1b[m\x1b[K")
}

func (g *grepper) print(s *scanState, line []byte, separator byte, number, offset int) {
	if g.json != nil {
		g.json.line(s, line, separator == ':', number, offset)
		return
	}
	isNewGroup := s.lastPrinted >= 0 && number > s.lastPrinted+1 || s.lastPrinted < 0 && g.printedAny && !g.heading
	if (g.before > 0 || g.after > 0) && isNewGroup && g.groupSeparator != "\x00none" && !g.only {
		g.colored("36", g.groupSeparator)
		g.c.Out.WriteByte('\n')
	}
	if g.heading && !s.headed && g.names {
		if g.matchedAny {
			g.c.Out.WriteByte('\n')
		}
		g.c.Out.WriteString(s.name + "\n")
		s.headed = true
		g.matchedAny = true
	}
	s.lastPrinted, g.printedAny = number, true
	if g.only {
		if separator == '-' || g.invert {
			return
		}
		for _, span := range g.spans(line) {
			if span[0] == span[1] {
				continue
			}
			g.prefix(s, separator, number, offset+span[0], span[0]+1)
			text := string(line[span[0]:span[1]])
			if g.replaceSet {
				text = expandTemplate(g.replace, line, span)
			}
			g.colored("01;31", text)
			g.c.Out.WriteByte(g.delimiter)
		}
		return
	}
	column := 0
	if g.column && separator == ':' && !g.invert {
		if spans := g.spans(line); len(spans) > 0 {
			column = spans[0][0] + 1
		}
	}
	g.prefix(s, separator, number, offset, column)
	switch {
	case g.replaceSet && separator == ':':
		line = g.replaced(line)
	case g.color && separator == ':' && !g.invert:
		g.highlight(line)
		g.c.Out.WriteByte(g.delimiter)
		return
	}
	if g.trim {
		line = bytes.TrimLeft(line, " \t")
	}
	g.c.Out.Write(line)
	g.c.Out.WriteByte(g.delimiter)
}

func (g *grepper) highlight(line []byte) {
	at := 0
	for _, span := range g.spans(line) {
		if span[0] == span[1] {
			continue
		}
		g.c.Out.Write(line[at:span[0]])
		g.colored("01;31", string(line[span[0]:span[1]]))
		at = span[1]
	}
	g.c.Out.Write(line[at:])
}

func (g *grepper) replaced(line []byte) []byte {
	var out []byte
	at := 0
	for _, span := range g.spans(line) {
		out = append(out, line[at:span[0]]...)
		out = append(out, expandTemplate(g.replace, line, span)...)
		at = span[1]
	}
	return append(out, line[at:]...)
}

// expandTemplate puts $1 and ${1} in place.
func expandTemplate(template string, line []byte, span []int) string {
	var out strings.Builder
	for i := 0; i < len(template); i++ {
		if template[i] != '$' || i+1 == len(template) {
			out.WriteByte(template[i])
			continue
		}
		digits := strings.TrimLeft(template[i+1:], "{")
		braces := len(template[i+1:]) - len(digits)
		n := 0
		for n < len(digits) && digits[n] >= '0' && digits[n] <= '9' {
			n++
		}
		if n == 0 {
			out.WriteByte('$')
			continue
		}
		index, _ := strconv.Atoi(digits[:n])
		if 2*index+1 < len(span) && span[2*index] >= 0 {
			out.Write(line[span[2*index]:span[2*index+1]])
		}
		i += braces + n
		if braces > 0 {
			i++
		}
	}
	return out.String()
}

func (g *grepper) finish(s *scanState) {
	out := g.c.Out
	if s.found > 0 {
		g.matchedAny = true
	}
	switch {
	case g.quiet:
	case g.json != nil:
		g.json.end(s)
	case g.list && s.found > 0, g.listOther && s.found == 0:
		g.listedAny = true
		g.colored("35", s.name)
		if g.nulNames {
			out.WriteByte(0)
		} else {
			out.WriteByte('\n')
		}
	case g.list || g.listOther:
	case g.count && s.found == 0 && g.isRipgrep:
	case g.count:
		if g.names {
			g.colored("35", s.name)
			if g.nulNames {
				out.WriteByte(0)
			} else {
				g.colored("36", ":")
			}
		}
		out.WriteString(strconv.Itoa(s.found) + "\n")
	case s.binary && s.found > 0 && g.isRipgrep:
		out.WriteString(g.binaryNote(s) + "\n")
	case s.binary && s.found > 0:
		g.c.Errorf("%s: binary file matches", s.name)
	}
}

func (g *grepper) binaryNote(s *scanState) string {
	note := "binary file matches (found \"\\0\" byte around offset " + strconv.Itoa(s.zeroAt) + ")"
	if g.names {
		return s.name + ": " + note
	}
	return note
}
