// Package awk runs goawk with GNU's usual extra functions.
package awk

import (
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/benhoyt/goawk/interp"
	"github.com/benhoyt/goawk/parser"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/strftime"
)

func init() {
	for _, name := range []string{"awk", "gawk", "mawk"} {
		core.Register(&core.Command{Name: name, Summary: "Scan and process patterns.", Usage: name + " [-F FS] [-v VAR=VALUE]... [-f FILE]... ['PROGRAM'] [file...]", Run: awk})
	}
}

func awk(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "F:v:f:e:i:Ew:bcCdDghIlLmMnNopPrsStVO", Long: "field-separator=/F assign=/v file=/f source=/e csv version/V re-interval/r posix/P traditional/c sandbox/S characters-as-bytes/b", Stop: true}.Parse(c)
	if !ok {
		return 2
	}
	var sources, vars []string
	config := &interp.Config{Argv0: c.Name, Vars: []string{}, Chars: true}
	for _, option := range options {
		switch option.Name {
		case "F":
			vars = append(vars, "FS", separator(option.Value))
		case "v":
			name, value, found := strings.Cut(option.Value, "=")
			if !found {
				return c.Fail(2, "`%s' argument to `-v' not in `var=value' form", option.Value)
			}
			vars = append(vars, name, unescape(value))
		case "f":
			reader, err := c.Open(option.Value)
			if err != nil {
				return c.Fail(2, "fatal: cannot open source file `%s' for reading: %s", option.Value, core.Reason(err))
			}
			data, _ := io.ReadAll(reader)
			reader.Close()
			sources = append(sources, string(data))
		case "e":
			sources = append(sources, option.Value)
		case "csv":
			config.InputMode = interp.CSVMode
		case "V":
			c.Out.WriteString("GNU Awk 5.2.1 compatible (goawk)\n")
			return 0
		}
	}
	if len(sources) == 0 {
		if len(operands) == 0 {
			io.WriteString(c.Stderr, "usage: awk [-F fs][-v var=value][prog | -f progfile][file ...]\n")
			return 2
		}
		sources, operands = operands[:1], operands[1:]
	}
	return run(c, config, strings.Join(sources, "\n"), vars, operands)
}

func separator(value string) string {
	if value == "t" {
		return "\t"
	}
	return unescape(value)
}

// unescape handles the escapes of -v and -F values.
func unescape(value string) string {
	if !strings.Contains(value, `\`) {
		return value
	}
	var out strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] != '\\' || i+1 == len(value) {
			out.WriteByte(value[i])
			continue
		}
		i++
		if at := strings.IndexByte(`ntr\"/abfv`, value[i]); at >= 0 {
			out.WriteByte("\n\t\r\\\"/\a\b\f\v"[at])
			continue
		}
		out.WriteString(`\` + string(value[i]))
	}
	return out.String()
}

func run(c *core.Ctx, config *interp.Config, source string, vars, args []string) int {
	functions := nativeFunctions(c)
	program, err := parser.ParseProgram([]byte(rewrite(source)), &parser.ParserConfig{Funcs: functions})
	if err != nil {
		return c.Fail(1, "%s", syntaxText(err))
	}
	config.Funcs = functions
	config.Stdin, config.Output, config.Error = c.Stdin, c.Out, c.Stderr
	config.Args, config.Vars = args, vars
	config.Environ = []string{}
	for _, entry := range c.Env {
		if name, value, ok := strings.Cut(entry, "="); ok {
			config.Environ = append(config.Environ, name, value)
		}
	}
	config.Open = func(name string, flags int) (io.ReadWriteCloser, error) { return c.OpenFile(name, flags) }
	config.Shell = func(code string, stdin io.Reader, stdout, stderr io.Writer) int {
		if out, ok := stdout.(*core.Out); ok {
			out.Flush()
			stdout = c.Stdout
		}
		return c.Exec(c.Child(stdin, stdout, stderr), []string{"sh", "-c", code})
	}
	status, err := interp.ExecProgram(program, config)
	if err != nil {
		c.Out.Flush()
		return c.Fail(2, "fatal: %s", problemText(err))
	}
	return status
}

func syntaxText(err error) string {
	var problem *parser.ParseError
	if errors.As(err, &problem) {
		return "cmd. line:" + strconv.Itoa(problem.Position.Line) + ": syntax error: " + problem.Message
	}
	return err.Error()
}

func problemText(err error) string {
	text := err.Error()
	if reason := core.Reason(err); reason != text {
		return "cannot open file for reading: " + reason
	}
	return text
}

func nativeFunctions(c *core.Ctx) map[string]any {
	zone := strftime.Zone(c.Getenv("TZ"))
	return map[string]any{
		"gensub":   gensub,
		"captures": captures,
		"systime":  func() int { return int(time.Now().Unix()) },
		"strftime": func(args ...string) string { return formatTime(args, zone) },
		"mktime":   func(spec string) int { return makeTime(spec, zone) },
		"strtonum": strtonum,
		"and":      func(a, b int) int { return a & b },
		"or":       func(a, b int) int { return a | b },
		"xor":      func(a, b int) int { return a ^ b },
		"compl":    func(a int) int { return ^a & (1<<53 - 1) },
		"lshift":   func(a, b int) int { return a << uint(b) },
		"rshift":   func(a, b int) int { return int(uint(a) >> uint(b)) },
	}
}

func gensub(pattern, replacement, how string, target string) string {
	regex, err := regexp.Compile(pattern)
	if err != nil {
		return target
	}
	which := 0
	if !strings.HasPrefix(strings.ToLower(how), "g") {
		if which, _ = strconv.Atoi(how); which < 1 {
			which = 1
		}
	}
	var out strings.Builder
	at := 0
	for i, match := range regex.FindAllStringSubmatchIndex(target, -1) {
		if which != 0 && i+1 != which {
			continue
		}
		out.WriteString(target[at:match[0]])
		for j := 0; j < len(replacement); j++ {
			switch {
			case replacement[j] == '&':
				out.WriteString(target[match[0]:match[1]])
			case replacement[j] == '\\' && j+1 < len(replacement):
				j++
				if digit := replacement[j]; digit >= '0' && digit <= '9' {
					if n := 2 * int(digit-'0'); n+1 < len(match) && match[n] >= 0 {
						out.WriteString(target[match[n]:match[n+1]])
					}
				} else {
					out.WriteByte(digit)
				}
			default:
				out.WriteByte(replacement[j])
			}
		}
		at = match[1]
	}
	return out.String() + target[at:]
}

func formatTime(args []string, zone *time.Location) string {
	layout, when := "%a %b %e %H:%M:%S %Z %Y", time.Now()
	if len(args) > 0 {
		layout = args[0]
	}
	if len(args) > 1 {
		seconds, _ := strconv.ParseFloat(args[1], 64)
		when = time.Unix(int64(seconds), 0)
	}
	if len(args) > 2 && args[2] != "" && args[2] != "0" {
		zone = time.UTC
	}
	return strftime.Format(layout, when.In(zone))
}

func makeTime(spec string, zone *time.Location) int {
	fields := strings.Fields(spec)
	if len(fields) < 6 {
		return -1
	}
	var n [6]int
	for i := range n {
		value, err := strconv.Atoi(fields[i])
		if err != nil {
			return -1
		}
		n[i] = value
	}
	return int(time.Date(n[0], time.Month(n[1]), n[2], n[3], n[4], n[5], 0, zone).Unix())
}

func strtonum(text string) float64 {
	trimmed := strings.TrimSpace(text)
	if number, err := strconv.ParseInt(trimmed, 0, 64); err == nil {
		return float64(number)
	}
	for end := len(trimmed); end > 0; end-- {
		if number, err := strconv.ParseFloat(trimmed[:end], 64); err == nil {
			return number
		}
	}
	return 0
}
