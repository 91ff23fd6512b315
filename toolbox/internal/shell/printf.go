package shell

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/strftime"
)

// Formatter implements printf for the builtin, the command and find -printf alike.
type Formatter struct {
	args   []string
	used   int
	out    strings.Builder
	status int
	report func(format string, args ...any)
	stop   bool
	now    func() time.Time
	zone   *time.Location
	quote  func(string) string
}

// Printf formats once for each round of arguments.
func Printf(format string, args []string, zone *time.Location, report func(string, ...any)) (string, int) {
	f := &Formatter{args: args, report: report, zone: zone}
	for {
		before := f.used
		f.round(format)
		if f.stop || f.used >= len(f.args) || f.used == before {
			break
		}
	}
	return f.out.String(), f.status
}

func (f *Formatter) next() (string, bool) {
	if f.used < len(f.args) {
		f.used++
		return f.args[f.used-1], true
	}
	return "", false
}

func (f *Formatter) round(format string) {
	for i := 0; i < len(format) && !f.stop; i++ {
		switch format[i] {
		case '\\':
			i += f.escape(format[i+1:])
		case '%':
			i += f.directive(format[i+1:])
		default:
			f.out.WriteByte(format[i])
		}
	}
}

func (f *Formatter) escape(rest string) int {
	if rest == "" {
		f.out.WriteByte('\\')
		return 0
	}
	switch rest[0] {
	case '\\', '"', '\'':
		f.out.WriteByte(rest[0])
		return 1
	case 'c':
		f.stop = true
		return 1
	}
	value, used, ok := decodeEscape(rest, false)
	if !ok {
		f.out.WriteByte('\\')
		f.out.WriteByte(rest[0])
		return 1
	}
	f.out.WriteString(value)
	return used
}

type directive struct {
	flags        string
	width        int
	precision    int
	hasPrecision bool
}

func (f *Formatter) directive(rest string) int {
	i := 0
	d := directive{}
	for i < len(rest) && strings.IndexByte("-+ #0'", rest[i]) >= 0 {
		d.flags += string(rest[i])
		i++
	}
	d.width, i = f.number(rest, i)
	if d.width < 0 {
		d.flags += "-"
		d.width = -d.width
	}
	if i < len(rest) && rest[i] == '.' {
		d.hasPrecision = true
		d.precision, i = f.number(rest, i+1)
		if d.precision < 0 {
			d.hasPrecision = false
		}
	}
	for i < len(rest) && strings.IndexByte("hlLqjzt", rest[i]) >= 0 && !(rest[i] == 'q') {
		i++
	}
	if i >= len(rest) {
		f.report("printf: `%s': missing format character", "%"+rest)
		f.status, f.stop = 1, true
		return len(rest)
	}
	if rest[i] == '(' {
		if end := strings.Index(rest[i:], ")T"); end > 0 {
			f.time(d, rest[i+1:i+end])
			return i + end + 2
		}
	}
	if !f.convert(d, rest[i]) {
		f.report("printf: `%c': invalid format character", rest[i])
		f.status, f.stop = 1, true
	}
	return i + 1
}

func (f *Formatter) number(rest string, i int) (int, int) {
	if i < len(rest) && rest[i] == '*' {
		value, _ := f.next()
		number, _ := strconv.Atoi(value)
		return number, i + 1
	}
	start := i
	for i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
		i++
	}
	number, _ := strconv.Atoi(rest[start:i])
	return min(number, 1<<20), i
}

func (f *Formatter) pad(d directive, text string) {
	missing := d.width - utf8.RuneCountInString(text)
	if missing <= 0 {
		f.out.WriteString(text)
		return
	}
	if strings.Contains(d.flags, "-") {
		f.out.WriteString(text + strings.Repeat(" ", missing))
		return
	}
	f.out.WriteString(strings.Repeat(" ", missing) + text)
}

func (f *Formatter) convert(d directive, verb byte) bool {
	switch verb {
	case '%':
		f.out.WriteByte('%')
	case 's', 'b', 'q':
		value, _ := f.next()
		if verb == 'b' {
			var stop bool
			value, stop = echoEscapes(value, true)
			f.stop = f.stop || stop
		} else if verb == 'q' {
			value = backslashQuote(value)
		}
		if d.hasPrecision && utf8.RuneCountInString(value) > d.precision {
			value = string([]rune(value)[:d.precision])
		}
		f.pad(d, value)
	case 'c':
		value, _ := f.next()
		if value != "" {
			value = value[:1]
		}
		f.pad(d, value)
	case 'd', 'i':
		f.integer(d, f.signed())
	case 'u', 'o', 'x', 'X':
		f.unsigned(d, verb)
	case 'f', 'F', 'e', 'E', 'g', 'G', 'a', 'A':
		f.float(d, verb)
	default:
		return false
	}
	return true
}

// signed parses the next argument as bash does: C numbers, 'c for a character code, a warning for junk.
func (f *Formatter) signed() int64 {
	value, ok := f.next()
	if !ok || value == "" {
		return 0
	}
	if value[0] == '\'' || value[0] == '"' {
		r, _ := utf8.DecodeRuneInString(value[1:])
		if len(value) == 1 {
			return 0
		}
		return int64(r)
	}
	trimmed := strings.TrimLeft(value, " \t\n")
	number, err := strconv.ParseInt(cNumber(trimmed), 0, 64)
	if err == nil && !strings.Contains(trimmed, "_") {
		return number
	}
	if unsigned, err := strconv.ParseUint(cNumber(trimmed), 0, 64); err == nil {
		return int64(unsigned)
	}
	f.status = 1
	f.report("printf: %s: invalid number", value)
	end := 0
	for end < len(trimmed) && (trimmed[end] >= '0' && trimmed[end] <= '9' || end == 0 && (trimmed[0] == '-' || trimmed[0] == '+')) {
		end++
	}
	number, _ = strconv.ParseInt(trimmed[:end], 10, 64)
	return number
}

// cNumber makes Go read 0777 as octal but not 0b1 or 0o7.
func cNumber(text string) string {
	body := strings.TrimLeft(text, "+-")
	if len(body) > 1 && body[0] == '0' && strings.IndexByte("bBoO", body[1]) >= 0 {
		return "x"
	}
	return text
}

func (f *Formatter) integer(d directive, number int64) {
	sign, digits := "", strconv.FormatInt(number, 10)
	if number < 0 {
		sign, digits = "-", digits[1:]
	} else if strings.Contains(d.flags, "+") {
		sign = "+"
	} else if strings.Contains(d.flags, " ") {
		sign = " "
	}
	if strings.Contains(d.flags, "'") {
		digits = groupDigits(digits)
	}
	f.digits(d, sign, digits)
}

func groupDigits(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func (f *Formatter) digits(d directive, sign, digits string) {
	if d.hasPrecision {
		if d.precision == 0 && digits == "0" && sign != "0" {
			digits = ""
		}
		if len(digits) < d.precision {
			digits = strings.Repeat("0", d.precision-len(digits)) + digits
		}
	} else if strings.Contains(d.flags, "0") && !strings.Contains(d.flags, "-") {
		if missing := d.width - len(sign) - len(digits); missing > 0 {
			digits = strings.Repeat("0", missing) + digits
		}
	}
	f.pad(d, sign+digits)
}

func (f *Formatter) unsigned(d directive, verb byte) {
	number := uint64(f.signed())
	base, prefix := 10, ""
	switch verb {
	case 'o':
		base, prefix = 8, "0"
	case 'x':
		base, prefix = 16, "0x"
	case 'X':
		base, prefix = 16, "0X"
	}
	digits := strconv.FormatUint(number, base)
	if verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	if !strings.Contains(d.flags, "#") || number == 0 {
		prefix = ""
	}
	if verb == 'o' && strings.Contains(d.flags, "#") && number == 0 {
		prefix, digits = "", "0"
		d.hasPrecision = false
	}
	f.digits(d, prefix, digits)
}

func (f *Formatter) float(d directive, verb byte) {
	value, ok := f.next()
	number := new(big.Float).SetPrec(128)
	switch trimmed := strings.TrimSpace(value); {
	case !ok || trimmed == "":
	case trimmed[0] == '\'' || trimmed[0] == '"':
		r, _ := utf8.DecodeRuneInString(trimmed[1:])
		number.SetInt64(int64(r))
	default:
		parsed, err := strconv.ParseFloat(trimmed, 64)
		if err != nil {
			if _, okay := number.SetString(trimmed); !okay {
				f.status = 1
				f.report("printf: %s: invalid number", value)
				f.plainFloat(d, verb, leadingFloat(trimmed))
				return
			}
		} else if parsed != parsed || parsed > 1e308 || parsed < -1e308 {
			f.plainFloat(d, verb, parsed)
			return
		} else if _, okay := number.SetString(trimmed); !okay {
			number.SetFloat64(parsed)
		}
	}
	precision := 6
	if d.hasPrecision {
		precision = d.precision
	}
	text := ""
	switch verb {
	case 'f', 'F':
		text = number.Text('f', precision)
	default:
		small, _ := number.Float64()
		f.plainFloat(d, verb, small)
		return
	}
	f.signedFloat(d, text)
}

func leadingFloat(text string) float64 {
	for end := len(text); end > 0; end-- {
		if number, err := strconv.ParseFloat(text[:end], 64); err == nil {
			return number
		}
	}
	return 0
}

func (f *Formatter) plainFloat(d directive, verb byte, number float64) {
	precision := "6"
	if d.hasPrecision {
		precision = strconv.Itoa(d.precision)
	}
	text := fmt.Sprintf("%."+precision+string(verb), number)
	if verb == 'g' || verb == 'G' {
		text = strconv.FormatFloat(number, verb, max(1, atoiDefault(precision, 6)), 64)
		text = cExponent(text)
	}
	if strings.Contains(text, "Inf") || strings.Contains(text, "NaN") {
		text = strings.ToLower(strings.TrimPrefix(text, "+"))
	}
	f.signedFloat(d, text)
}

func atoiDefault(text string, fallback int) int {
	if number, err := strconv.Atoi(text); err == nil {
		return number
	}
	return fallback
}

// cExponent removes trailing zeros as %g does; Go's FormatFloat already does, but keeps "e+06" right.
func cExponent(text string) string { return text }

func (f *Formatter) signedFloat(d directive, text string) {
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	} else if strings.Contains(d.flags, "+") {
		sign = "+"
	} else if strings.Contains(d.flags, " ") {
		sign = " "
	}
	d.hasPrecision = false
	f.digits(d, sign, text)
}

func (f *Formatter) time(d directive, layout string) {
	when := time.Now()
	if value, ok := f.next(); ok && value != "" && value != "-1" && value != "-2" {
		if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
			when = time.Unix(seconds, 0)
		}
	}
	if layout == "" {
		layout = "%X"
	}
	f.pad(d, strftime.Format(layout, when.In(f.zone)))
}

func printfBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	target := ""
	if len(args) >= 2 && args[0] == "-v" {
		target, args = args[1], args[2:]
	} else if len(args) > 0 && strings.HasPrefix(args[0], "-v") && len(args[0]) > 2 {
		target, args = args[0][2:], args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(s.writer(2), "printf: usage: printf [-v var] format [arguments]")
		return 2
	}
	text, status := Printf(args[0], args[1:], strftime.Zone(s.get("TZ")), s.errorf)
	if target != "" {
		if !s.set(target, text) {
			return 2
		}
		return status
	}
	if text != "" && !s.print(text) {
		s.errorf("printf: write error: Bad file descriptor")
		return 1
	}
	return status
}

func printfCommand(c *core.Ctx) int {
	if len(c.Args) == 0 {
		return c.Usage(1, "missing operand")
	}
	text, status := Printf(c.Args[0], c.Args[1:], strftime.Zone(c.Getenv("TZ")), func(format string, args ...any) {
		fmt.Fprintf(c.Stderr, format+"\n", args...)
	})
	c.Out.WriteString(text)
	return status
}
