package text

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/bytescan"
	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "sort", Summary: "Sort lines of text files.",
		Usage: "sort [-bdfghiMnRrVcCmsuz] [-k KEYDEF]... [-t SEP] [-o FILE] [file...]", Run: sortCommand})
}

type sortKey struct {
	fromField, fromChar, toField, toChar int
	skipFrom, skipTo                     bool
	ordering
	own bool
}

// ordering is how two keys compare.
type ordering struct {
	numeric, general, human, month, version, random    bool
	reverse, fold, dictionary, printable, ignoreBlanks bool
}

type sorter struct {
	ordering
	keys      []sortKey
	separator []byte
	stable    bool
	unique    bool
	delimiter byte
	seed      uint64
}

func sortCommand(c *core.Ctx) int {
	s := &sorter{delimiter: '\n'}
	options, names, ok := core.Options{Short: "bdfghiMnRrVcCmsuzk:t:o:S:T:", Long: "ignore-leading-blanks/b dictionary-order/d ignore-case/f general-numeric-sort/g human-numeric-sort/h ignore-nonprinting/i month-sort/M numeric-sort/n random-sort/R reverse/r version-sort/V check?/c merge/m stable/s unique/u zero-terminated/z key=/k field-separator=/t output=/o buffer-size=/S parallel=/S temporary-directory=/T sort= debug files0-from="}.Parse(c)
	if !ok {
		return 2
	}
	output, check, quiet := "", false, false
	for _, option := range options {
		switch option.Name {
		case "k":
			key, problem := parseKey(option.Value)
			if problem != "" {
				return c.Fail(2, "%s: invalid field specification ‘%s’", problem, option.Value)
			}
			s.keys = append(s.keys, key)
		case "t":
			value := option.Value
			if value == `\0` {
				value = "\x00"
			}
			if value == "" {
				return c.Fail(2, "empty tab")
			}
			if len([]rune(value)) > 1 {
				return c.Fail(2, "multi-character tab ‘%s’", value)
			}
			s.separator = []byte(value)
		case "o":
			output = option.Value
		case "c":
			check = true
			quiet = option.Value == "quiet" || option.Value == "silent"
		case "C":
			check, quiet = true, true
		case "s":
			s.stable = true
		case "u":
			s.unique = true
		case "z":
			s.delimiter = 0
		case "sort":
			s.set(map[string]byte{"general-numeric": 'g', "human-numeric": 'h', "month": 'M', "numeric": 'n', "random": 'R', "version": 'V'}[option.Value])
		case "m", "S", "T", "debug":
		default:
			s.set(option.Name[0])
		}
	}
	for i := range s.keys {
		if !s.keys[i].own {
			s.keys[i].ordering = s.ordering
		}
	}
	s.seed = core.Random64()
	data, status := s.read(c, names)
	if status != 0 {
		return status
	}
	lines := splitLines(data, s.delimiter)
	if check {
		return s.check(c, lines, names, quiet)
	}
	s.sort(lines)
	if s.unique {
		lines = slices.CompactFunc(lines, func(a, b []byte) bool { return s.compareKeys(a, b) == 0 })
	}
	return s.write(c, lines, output)
}

func (o *ordering) set(letter byte) bool {
	switch letter {
	case 'b':
		o.ignoreBlanks = true
	case 'd':
		o.dictionary = true
	case 'f':
		o.fold = true
	case 'g':
		o.general = true
	case 'h':
		o.human = true
	case 'i':
		o.printable = true
	case 'M':
		o.month = true
	case 'n':
		o.numeric = true
	case 'R':
		o.random = true
	case 'r':
		o.reverse = true
	case 'V':
		o.version = true
	default:
		return false
	}
	return true
}

func parseKey(text string) (sortKey, string) {
	key := sortKey{}
	from, to, hasTo := strings.Cut(text, ",")
	var problem string
	key.fromField, key.fromChar, key.skipFrom, problem = key.position(from)
	if problem != "" {
		return key, problem
	}
	if key.fromField < 1 {
		return key, "field number is zero"
	}
	if key.fromChar == 0 {
		key.fromChar = 1
	}
	if hasTo {
		key.toField, key.toChar, key.skipTo, problem = key.position(to)
	}
	return key, problem
}

func (k *sortKey) position(text string) (field, char int, skip bool, problem string) {
	end := 0
	for end < len(text) && (text[end] >= '0' && text[end] <= '9' || text[end] == '.') {
		end++
	}
	first, second, _ := strings.Cut(text[:end], ".")
	field, err := strconv.Atoi(first)
	if err != nil {
		return 0, 0, false, "invalid number at field start"
	}
	char, _ = strconv.Atoi(second)
	for _, letter := range []byte(text[end:]) {
		if letter == 'b' {
			skip = true
		}
		if !k.set(letter) {
			return 0, 0, false, "stray character in field spec"
		}
		k.own = true
	}
	return field, char, skip, ""
}

func (s *sorter) read(c *core.Ctx, names []string) ([]byte, int) {
	var data []byte
	if len(names) == 0 {
		names = []string{"-"}
	}
	for _, name := range names {
		reader, err := c.Open(name)
		if err != nil {
			return nil, c.Fail(2, "cannot read: %s: %s", name, core.Reason(err))
		}
		more, err := readEverything(reader, data)
		reader.Close()
		if err != nil {
			return nil, c.Fail(2, "read failed: %s: %s", name, core.Reason(err))
		}
		data = more
		if n := len(data); n > 0 && data[n-1] != s.delimiter {
			data = append(data, s.delimiter)
		}
	}
	return data, 0
}

// readEverything appends a stream, sized from the file when that is known: memory is scarce here.
func readEverything(reader io.Reader, data []byte) ([]byte, error) {
	if file, ok := reader.(interface{ Size() int64 }); ok {
		data = slices.Grow(data, int(file.Size())+1)
	}
	if len(data) == cap(data) {
		data = slices.Grow(data, 64<<10)
	}
	for {
		if len(data) == cap(data) {
			data = slices.Grow(data, cap(data)/2+4096)
		}
		n, err := reader.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return data, err
		}
	}
}

func splitLines(data []byte, delimiter byte) [][]byte {
	lines := make([][]byte, 0, bytescan.Count(data, delimiter)+1)
	for len(data) > 0 {
		at := bytes.IndexByte(data, delimiter)
		if at < 0 {
			lines = append(lines, data)
			break
		}
		lines = append(lines, data[:at:at])
		data = data[at+1:]
	}
	return lines
}

func (s *sorter) sort(lines [][]byte) {
	if len(s.keys) == 0 && s.ordering == (ordering{}) {
		slices.SortFunc(lines, bytes.Compare)
		return
	}
	if len(s.keys) == 0 && s.ordering == (ordering{numeric: true}) || len(s.keys) == 0 && s.ordering == (ordering{numeric: true, reverse: true}) {
		s.sortNumeric(lines)
		return
	}
	slices.SortStableFunc(lines, s.compare)
}

// sortNumeric parses each number once.
func (s *sorter) sortNumeric(lines [][]byte) {
	type row struct {
		value float64
		line  []byte
	}
	rows := make([]row, len(lines))
	for i, line := range lines {
		text := numberPrefix(line)
		value, err := strconv.ParseFloat(text, 64)
		if len(text) > 15 || err != nil && text != "" {
			slices.SortStableFunc(lines, s.compare)
			return
		}
		rows[i] = row{value, line}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		switch {
		case a.value < b.value:
			return s.sign(-1)
		case a.value > b.value:
			return s.sign(1)
		case s.stable || s.unique:
			return 0
		}
		return s.sign(bytes.Compare(a.line, b.line))
	})
	for i := range rows {
		lines[i] = rows[i].line
	}
}

func (s *sorter) sign(result int) int {
	if s.reverse {
		return -result
	}
	return result
}

func (s *sorter) compare(a, b []byte) int {
	if result := s.compareKeys(a, b); result != 0 || s.stable || s.unique {
		return result
	}
	return s.sign(bytes.Compare(a, b))
}

func (s *sorter) compareKeys(a, b []byte) int {
	if len(s.keys) == 0 {
		return s.ordering.compare(a, b, s.seed)
	}
	for i := range s.keys {
		key := &s.keys[i]
		if result := key.compare(s.extract(a, key), s.extract(b, key), s.seed); result != 0 {
			return result
		}
	}
	return 0
}

// fieldStart finds where field n (from 1) begins.
func (s *sorter) fieldStart(line []byte, n int) int {
	at := 0
	for ; n > 1; n-- {
		if s.separator != nil {
			next := bytes.Index(line[at:], s.separator)
			if next < 0 {
				return len(line)
			}
			at += next + len(s.separator)
			continue
		}
		for at < len(line) && isBlank(line[at]) {
			at++
		}
		for at < len(line) && !isBlank(line[at]) {
			at++
		}
	}
	return at
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' }

func (s *sorter) fieldEnd(line []byte, start int) int {
	at := start
	if s.separator != nil {
		if next := bytes.Index(line[at:], s.separator); next >= 0 {
			return at + next
		}
		return len(line)
	}
	for at < len(line) && isBlank(line[at]) {
		at++
	}
	for at < len(line) && !isBlank(line[at]) {
		at++
	}
	return at
}

func (s *sorter) extract(line []byte, key *sortKey) []byte {
	start := s.fieldStart(line, key.fromField)
	if key.skipFrom || key.ignoreBlanks {
		for start < len(line) && isBlank(line[start]) {
			start++
		}
	}
	start = min(len(line), start+key.fromChar-1)
	end := len(line)
	if key.toField > 0 {
		toStart := s.fieldStart(line, key.toField)
		if key.toChar == 0 {
			end = s.fieldEnd(line, toStart)
		} else {
			if key.skipTo || key.ignoreBlanks {
				for toStart < len(line) && isBlank(line[toStart]) {
					toStart++
				}
			}
			end = min(len(line), toStart+key.toChar)
		}
	}
	if end < start {
		return nil
	}
	return line[start:end]
}

func (s *sorter) check(c *core.Ctx, lines [][]byte, names []string, quiet bool) int {
	name := "-"
	if len(names) > 0 {
		name = names[0]
	}
	for i := 1; i < len(lines); i++ {
		result := s.compare(lines[i-1], lines[i])
		if result > 0 || s.unique && result == 0 {
			if !quiet {
				c.Errorf("%s:%d: disorder: %s", name, i+1, lines[i])
			}
			return 1
		}
	}
	return 0
}

func (s *sorter) write(c *core.Ctx, lines [][]byte, output string) int {
	out := c.Out
	if output != "" {
		file, err := c.Create(output)
		if err != nil {
			return c.Fail(2, "open failed: %s: %s", output, core.Reason(err))
		}
		defer file.Close()
		out = core.NewOut(file)
	}
	for _, line := range lines {
		out.Write(line)
		out.WriteByte(s.delimiter)
	}
	out.Flush()
	return 0
}
