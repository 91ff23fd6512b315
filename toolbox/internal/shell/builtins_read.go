package shell

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
)

type readOptions struct {
	raw, array, exact, hasTimeout bool
	delimiter                     byte
	limit, fd                     int
	timeout                       float64
	prompt, arrayName             string
	names                         []string
}

func parseRead(s *Shell, argv []string) (*readOptions, bool) {
	o := &readOptions{delimiter: '\n', limit: -1}
	args := argv[1:]
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			break
		}
		for i := 1; i < len(arg); i++ {
			letter := arg[i]
			if strings.IndexByte("rse", letter) >= 0 {
				o.raw = o.raw || letter == 'r'
				continue
			}
			if strings.IndexByte("adnNptui", letter) < 0 {
				s.errorf("read: -%c: invalid option", letter)
				fmt.Fprintln(s.writer(2), "read: usage: read [-ers] [-a array] [-d delim] [-i text] [-n nchars] [-N nchars] [-p prompt] [-t timeout] [-u fd] [name ...]")
				return nil, false
			}
			value := arg[i+1:]
			if value == "" {
				if len(args) == 0 {
					s.errorf("read: -%c: option requires an argument", letter)
					return nil, false
				}
				value, args = args[0], args[1:]
			}
			if !o.set(s, letter, value) {
				return nil, false
			}
			break
		}
	}
	o.names = args
	return o, true
}

func (o *readOptions) set(s *Shell, letter byte, value string) bool {
	var err error
	switch letter {
	case 'a':
		o.array, o.arrayName = true, value
	case 'd':
		o.delimiter = 0
		if value != "" {
			o.delimiter = value[0]
		}
	case 'n', 'N':
		o.limit, err = strconv.Atoi(value)
		o.exact = letter == 'N'
	case 'p':
		o.prompt = value
	case 't':
		o.hasTimeout = true
		o.timeout, err = strconv.ParseFloat(value, 64)
	case 'u':
		o.fd, err = strconv.Atoi(value)
	}
	if err != nil || o.limit < -1 {
		s.errorf("read: %s: invalid number", value)
		return false
	}
	return true
}

func readBuiltin(s *Shell, argv []string) int {
	o, ok := parseRead(s, argv)
	if !ok {
		return 2
	}
	for _, name := range o.names {
		if base, _, _ := cutSubscript(name); !validName(base) {
			s.errorf("read: `%s': not a valid identifier", name)
			return 1
		}
	}
	held := s.fds[o.fd]
	if held == nil || held.in == nil {
		s.errorf("read: %d: invalid file descriptor: Bad file descriptor", o.fd)
		return 1
	}
	if o.hasTimeout && !s.awaitInput(held.in, o.timeout) {
		if o.timeout == 0 {
			return 1
		}
		s.assignRead(o, "", nil)
		return 142
	}
	if o.hasTimeout && o.timeout == 0 {
		return 0
	}
	line, escaped, ended := s.readRecord(held.in, o)
	s.assignRead(o, line, escaped)
	return int(truth(ended))
}

// awaitInput polls an in-memory pipe until data, its end, or the timeout.
func (s *Shell) awaitInput(in *input, seconds float64) bool {
	deadline := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for !in.ready() {
		if !time.Now().Before(deadline) {
			return false
		}
		time.Sleep(time.Millisecond)
		if s.ctx.Err() != nil {
			panic(&core.Death{Code: 143})
		}
	}
	return true
}

// readLine reads raw text up to a delimiter.
func (s *Shell) readLine(in *input, delimiter byte, limit int) (string, bool) {
	line, _, ended := s.readRecord(in, &readOptions{raw: true, delimiter: delimiter, limit: limit})
	return line, ended
}

// readRecord returns the text and, without -r, which bytes were escaped and so are not separators.
func (s *Shell) readRecord(in *input, o *readOptions) (line string, escaped []bool, ended bool) {
	var data []byte
	characters := 0
	for o.limit < 0 || characters < o.limit {
		b, err := in.ReadByte()
		if err != nil {
			ended = true
			break
		}
		if !o.raw && b == '\\' && !o.exact {
			next, err := in.ReadByte()
			if err != nil {
				ended = true
				break
			}
			if next != '\n' {
				data = append(data, next)
				for len(escaped) < len(data)-1 {
					escaped = append(escaped, false)
				}
				escaped = append(escaped, true)
				characters++
			}
			continue
		}
		if b == o.delimiter && !o.exact {
			break
		}
		if b == 0 {
			continue
		}
		data = append(data, b)
		if utf8.RuneStart(b) {
			characters++
		}
		if o.limit >= 0 && characters == o.limit && b >= utf8.RuneSelf {
			for !utf8.FullRune(data[lastRuneStart(data):]) {
				if b, err = in.ReadByte(); err != nil {
					break
				}
				data = append(data, b)
			}
		}
	}
	for len(escaped) < len(data) {
		escaped = append(escaped, false)
	}
	return string(data), escaped, ended
}

func lastRuneStart(data []byte) int {
	i := len(data) - 1
	for i > 0 && !utf8.RuneStart(data[i]) {
		i--
	}
	return i
}

func (s *Shell) assignRead(o *readOptions, line string, escaped []bool) {
	switch {
	case o.array:
		v := s.ensure(s.resolve(o.arrayName))
		v.setList(splitRead(line, escaped, s.currentIFS(), -1))
	case len(o.names) == 0:
		s.set("REPLY", line)
	case o.exact:
		s.set(o.names[0], line)
		for _, name := range o.names[1:] {
			s.set(name, "")
		}
	default:
		values := splitRead(line, escaped, s.currentIFS(), len(o.names))
		for i, name := range o.names {
			value := ""
			if i < len(values) {
				value = values[i]
			}
			s.set(name, value)
		}
	}
}

// splitRead splits at IFS; with a limit the last field takes the rest without its trailing separators.
func splitRead(line string, escaped []bool, ifs string, limit int) []string {
	isSeparator := func(i int) bool { return !escaped[i] && strings.IndexByte(ifs, line[i]) >= 0 }
	isBlank := func(i int) bool {
		return isSeparator(i) && (line[i] == ' ' || line[i] == '\t' || line[i] == '\n')
	}
	start, end := 0, len(line)
	for start < end && isBlank(start) {
		start++
	}
	for end > start && isBlank(end-1) {
		end--
	}
	var fields []string
	i := start
	for i < end {
		if limit > 0 && len(fields) == limit-1 {
			return append(fields, lastReadField(line[i:end], i, isSeparator, isBlank))
		}
		from := i
		for i < end && !isSeparator(i) {
			i++
		}
		fields = append(fields, line[from:i])
		for i < end && isBlank(i) {
			i++
		}
		if i < end && isSeparator(i) && !isBlank(i) {
			i++
			for i < end && isBlank(i) {
				i++
			}
			if i == end && limit > 0 && false {
				fields = append(fields, "")
			}
		}
	}
	return fields
}

// The last field loses one trailing separator when that separator is the only one in it.
func lastReadField(rest string, offset int, isSeparator, isBlank func(int) bool) string {
	n := len(rest)
	if n == 0 || !isSeparator(offset+n-1) {
		return rest
	}
	for i := 0; i < n-1; i++ {
		if isSeparator(offset+i) && !isBlank(offset+i) {
			return rest
		}
	}
	trimmed := rest[:n-1]
	for len(trimmed) > 0 && isBlank(offset+len(trimmed)-1) {
		trimmed = trimmed[:len(trimmed)-1]
	}
	return trimmed
}

func mapfileBuiltin(s *Shell, argv []string) int {
	delimiter, trim, count, skip, origin, fd := byte('\n'), false, 0, 0, -1, 0
	callback, quantum := "", 5000
	args := argv[1:]
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		arg := args[0]
		args = args[1:]
		if arg == "-t" {
			trim = true
			continue
		}
		if arg == "--" {
			break
		}
		if strings.HasPrefix(arg, "-t") {
			trim = true
			arg = "-" + arg[2:]
		}
		value := arg[2:]
		if value == "" {
			if len(args) == 0 {
				s.errorf("%s: %s: option requires an argument", argv[0], arg)
				return 2
			}
			value, args = args[0], args[1:]
		}
		number, _ := strconv.Atoi(value)
		switch arg[1] {
		case 'd':
			delimiter = 0
			if value != "" {
				delimiter = value[0]
			}
		case 'n':
			count = number
		case 's':
			skip = number
		case 'O':
			origin = number
		case 'u':
			fd = number
		case 'C':
			callback = value
		case 'c':
			quantum = number
		default:
			s.errorf("%s: %s: invalid option", argv[0], arg)
			return 2
		}
	}
	name := "MAPFILE"
	if len(args) > 0 {
		name = args[0]
	}
	if !validName(name) {
		s.errorf("%s: `%s': not a valid identifier", argv[0], name)
		return 1
	}
	v := s.ensure(s.resolve(name))
	if v.readonly {
		s.errorf("%s: readonly variable", name)
		return 1
	}
	if origin < 0 {
		v.setList(nil)
		origin = 0
	} else if v.kind != indexed {
		v.setList(nil)
	}
	in := s.reader(fd)
	for read := 0; count == 0 || read < count; {
		line, ended := s.readLine(in, delimiter, -1)
		if ended && line == "" {
			break
		}
		if skip > 0 {
			skip--
			continue
		}
		if !trim && !ended {
			line += string(delimiter)
		}
		if callback != "" && (read+1)%quantum == 0 {
			s.nestedSource(callback+" "+strconv.Itoa(origin+read)+" "+quoteForReuse(line), "mapfile")
		}
		v.put(origin+read, line)
		read++
		if ended {
			break
		}
	}
	v.isSet = true
	return 0
}

func getoptsBuiltin(s *Shell, argv []string) int {
	if len(argv) < 3 {
		s.errorf("getopts: usage: getopts optstring name [arg ...]")
		return 2
	}
	spec, name, args := argv[1], argv[2], s.params
	if len(argv) > 3 {
		args = argv[3:]
	}
	silent := strings.HasPrefix(spec, ":")
	index, _ := strconv.Atoi(s.get("OPTIND"))
	if index < 1 {
		index, s.optPosition = 1, 0
	}
	position := s.optPosition
	finish := func(status int, option string) int {
		s.set("OPTIND", strconv.Itoa(index))
		s.optPosition = position
		s.set(name, option)
		return status
	}
	if index > len(args) {
		return finish(1, "?")
	}
	arg := args[index-1]
	if position == 0 {
		if len(arg) < 2 || arg[0] != '-' {
			return finish(1, "?")
		}
		if arg == "--" {
			index++
			return finish(1, "?")
		}
		position = 1
	}
	letter := arg[position]
	position++
	at := strings.IndexByte(strings.TrimPrefix(spec, ":"), letter)
	inner := strings.TrimPrefix(spec, ":")
	next := func() {
		if position >= len(arg) {
			index, position = index+1, 0
		}
	}
	s.unset("OPTARG")
	if at < 0 || letter == ':' {
		next()
		if silent {
			s.set("OPTARG", string(letter))
		} else if s.get("OPTERR") != "0" {
			fmt.Fprintf(s.writer(2), "%s: illegal option -- %c\n", s.argv0, letter)
		}
		return finish(0, "?")
	}
	if at+1 < len(inner) && inner[at+1] == ':' {
		if position < len(arg) {
			s.set("OPTARG", arg[position:])
			index, position = index+1, 0
			return finish(0, string(letter))
		}
		index, position = index+1, 0
		if index > len(args) {
			if silent {
				s.set("OPTARG", string(letter))
				return finish(0, ":")
			}
			if s.get("OPTERR") != "0" {
				fmt.Fprintf(s.writer(2), "%s: option requires an argument -- %c\n", s.argv0, letter)
			}
			return finish(0, "?")
		}
		s.set("OPTARG", args[index-1])
		index++
		return finish(0, string(letter))
	}
	next()
	return finish(0, string(letter))
}
