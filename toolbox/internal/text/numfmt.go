package text

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "numfmt", Summary: "Convert numbers from and to human-readable form.",
		Usage: "numfmt [--from=UNIT] [--to=UNIT] [--padding=N] [--suffix=TEXT] [--field=N] [-d SEP] [--format=F] [--round=METHOD] [--header[=N]] [number...]", Run: numfmt})
}

type numberFormat struct {
	from, to, suffix, format, round, delimiter string
	fromUnit, toUnit                           float64
	padding, header                            int
	fields                                     []span
	grouping                                   bool
	invalid                                    string
}

// seqFormat applies a single printf directive to a number.
func seqFormat(format string, value float64) string {
	return fmt.Sprintf(strings.ReplaceAll(format, "%'", "%"), value)
}

func numfmt(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "d:z", Long: "from= to= from-unit= to-unit= padding= suffix= field= delimiter=/d format= round= header? grouping invalid= debug zero-terminated/z"}.Parse(c)
	if !ok {
		return 1
	}
	f := &numberFormat{from: "none", to: "none", round: "from-zero", fromUnit: 1, toUnit: 1, fields: []span{{1, 1}}, invalid: "abort"}
	for _, option := range options {
		switch option.Name {
		case "from":
			f.from = option.Value
		case "to":
			f.to = option.Value
		case "from-unit":
			f.fromUnit, _, _ = parseScaled(option.Value, "auto")
		case "to-unit":
			f.toUnit, _, _ = parseScaled(option.Value, "auto")
		case "padding":
			f.padding, _ = strconv.Atoi(option.Value)
		case "suffix":
			f.suffix = option.Value
		case "field":
			value := option.Value
			if value == "-" {
				value = "1-"
			}
			if f.fields, ok = parseList(c, value, "field"); !ok {
				return 1
			}
		case "d":
			f.delimiter = option.Value
		case "format":
			f.format = option.Value
		case "round":
			f.round = option.Value
		case "header":
			f.header = 1
			if option.Given {
				f.header, _ = strconv.Atoi(option.Value)
			}
		case "grouping":
			f.grouping = true
		case "invalid":
			f.invalid = option.Value
		}
	}
	for _, unit := range []string{f.from, f.to} {
		if !strings.Contains(" none auto si iec iec-i ", " "+unit+" ") {
			return c.Usage(1, "invalid argument ‘%s’ for ‘--from’", unit)
		}
	}
	status := 0
	if len(operands) > 0 {
		for _, operand := range operands {
			text, problem := f.line(operand)
			if problem != "" {
				if status = f.complain(c, problem); f.invalid == "abort" {
					return 2
				}
			}
			c.Out.WriteString(text + "\n")
		}
		return status
	}
	core.Lines(c.Stdin, '\n', func(line []byte, _ bool) bool {
		if f.header > 0 {
			f.header--
			c.Out.WriteString(string(line) + "\n")
			return true
		}
		text, problem := f.line(string(line))
		if problem != "" {
			if status = max(status, f.complain(c, problem)); f.invalid == "abort" {
				return false
			}
		}
		c.Out.WriteString(text + "\n")
		return true
	})
	return status
}

// complain reports a line that is no number, as --invalid asks.
func (f *numberFormat) complain(c *core.Ctx, problem string) int {
	if f.invalid == "ignore" {
		return 0
	}
	c.Errorf("%s", problem)
	if f.invalid == "warn" {
		return 0
	}
	return 2
}

func (f *numberFormat) selected(field int) bool {
	for _, one := range f.fields {
		if field >= one.low && field <= one.high {
			return true
		}
	}
	return false
}

// line converts the chosen fields and keeps everything else as it is.
func (f *numberFormat) line(line string) (string, string) {
	if f.delimiter != "" {
		parts := strings.Split(line, f.delimiter)
		for i := range parts {
			if f.selected(i + 1) {
				text, problem := f.convert(parts[i], 0)
				if problem != "" {
					return line, problem
				}
				parts[i] = text
			}
		}
		return strings.Join(parts, f.delimiter), ""
	}
	var out strings.Builder
	field := 0
	for rest := line; rest != ""; {
		blanks := len(rest) - len(strings.TrimLeft(rest, " \t"))
		word := rest[blanks:]
		if end := strings.IndexAny(word, " \t"); end >= 0 {
			word = word[:end]
		}
		prefix := rest[:blanks]
		rest = rest[blanks+len(word):]
		field++
		if word == "" || !f.selected(field) {
			out.WriteString(prefix + word)
			continue
		}
		width := 0
		if field > 1 || blanks > 0 {
			width = blanks + len(word)
			if field > 1 {
				width--
			}
		}
		text, problem := f.convert(word, width)
		if problem != "" {
			return line, problem
		}
		if field > 1 {
			out.WriteByte(' ')
		}
		out.WriteString(text)
	}
	return out.String(), ""
}

func (f *numberFormat) convert(word string, width int) (string, string) {
	word = strings.TrimSpace(word)
	trimmed := word
	if f.suffix != "" {
		trimmed = strings.TrimSuffix(word, f.suffix)
	}
	value, precision, problem := parseScaled(trimmed, f.from)
	if problem != "" {
		return word, fmt.Sprintf(problem, word)
	}
	value = value * f.fromUnit / f.toUnit
	text := f.render(value, precision) + f.suffix
	if f.padding != 0 {
		width = f.padding
	}
	if f.format != "" {
		if open := strings.IndexByte(f.format, '%'); open >= 0 {
			end := open + 1
			for end < len(f.format) && f.format[end] != 'f' {
				end++
			}
			spec := strings.Trim(f.format[open+1:min(end, len(f.format))], "'")
			wide, _, _ := strings.Cut(spec, ".")
			zero := strings.HasPrefix(wide, "0")
			number, _ := strconv.Atoi(wide)
			for zero && len(text) < number {
				text = "0" + text
			}
			if number < 0 {
				text = fmt.Sprintf("%-*s", -number, text)
			} else {
				text = fmt.Sprintf("%*s", number, text)
			}
			return f.format[:open] + text + f.format[min(end+1, len(f.format)):], ""
		}
	}
	if width < 0 {
		return fmt.Sprintf("%-*s", -width, text), ""
	}
	return fmt.Sprintf("%*s", width, text), ""
}

const units = "KMGTPEZY"

func parseScaled(text, mode string) (value float64, precision int, problem string) {
	end := 0
	for end < len(text) && (text[end] >= '0' && text[end] <= '9' || text[end] == '.' || end == 0 && (text[end] == '-' || text[end] == '+')) {
		end++
	}
	value, err := strconv.ParseFloat(text[:end], 64)
	if err != nil {
		return 0, 0, "invalid number: ‘%s’"
	}
	precision = decimals(text[:end])
	unit := text[end:]
	if unit == "" {
		return value, precision, ""
	}
	power := strings.IndexByte(units, strings.ToUpper(unit[:1])[0])
	switch {
	case power < 0 || len(unit) > 2 || len(unit) == 2 && unit[1] != 'i':
		return 0, 0, "invalid suffix in input: ‘%s’"
	case mode == "none":
		return 0, 0, "rejecting suffix in input: ‘%s’ (consider using --from)"
	case mode == "iec-i" && len(unit) != 2:
		return 0, 0, "missing 'i' suffix in input: ‘%s’ (e.g Ki/Mi/Gi)"
	case (mode == "si" || mode == "iec") && len(unit) == 2:
		return 0, 0, "invalid suffix in input ‘%s’: ‘i’"
	}
	base := 1000.0
	if mode == "iec" || mode == "iec-i" || mode == "auto" && len(unit) == 2 {
		base = 1024
	}
	return value * math.Pow(base, float64(power+1)), 0, ""
}

func (f *numberFormat) rounded(value float64) float64 {
	switch f.round {
	case "up":
		return math.Ceil(value)
	case "down":
		return math.Floor(value)
	case "towards-zero":
		return math.Trunc(value)
	case "nearest":
		return math.Round(value)
	}
	if value < 0 {
		return math.Floor(value)
	}
	return math.Ceil(value)
}

func (f *numberFormat) formatPrecision() int {
	_, after, ok := strings.Cut(f.format, ".")
	if !ok {
		return -1
	}
	return int(parseInt(after))
}

func (f *numberFormat) render(value float64, precision int) string {
	wanted := f.formatPrecision()
	if f.to == "none" || f.to == "auto" {
		if wanted >= 0 {
			precision = wanted
		}
		text := strconv.FormatFloat(f.rounded(value*math.Pow10(precision))/math.Pow10(precision), 'f', precision, 64)
		if f.grouping || strings.Contains(f.format, "'") {
			text = group(text)
		}
		return text
	}
	base := 1000.0
	if f.to != "si" {
		base = 1024
	}
	power := 0
	size := math.Abs(value)
	for size >= base && power < len(units) {
		size /= base
		power++
	}
	scaled := value / math.Pow(base, float64(power))
	digits := 0
	if wanted >= 0 {
		digits = wanted
	} else if power > 0 && math.Abs(f.rounded(scaled*10)/10) < 10 {
		digits = 1
	}
	scaled = f.rounded(scaled*math.Pow10(digits)) / math.Pow10(digits)
	if math.Abs(scaled) >= base && power < len(units) {
		scaled /= base
		power++
		if wanted < 0 {
			digits = 1
		}
	}
	text := strconv.FormatFloat(scaled, 'f', digits, 64)
	if power == 0 {
		return text
	}
	text += units[power-1 : power]
	if f.to == "iec-i" {
		text += "i"
	}
	return text
}

func group(text string) string {
	whole, fraction, has := strings.Cut(text, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if has {
		return sign + whole + "." + fraction
	}
	return sign + whole
}
