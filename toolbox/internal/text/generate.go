package text

import (
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "seq", Summary: "Print a sequence of numbers.", Usage: "seq [-w] [-s SEP] [-f FORMAT] [FIRST [STEP]] LAST", Run: seq},
		&core.Command{Name: "yes", Summary: "Output a line until killed.", Usage: "yes [text...]", Run: yes},
		&core.Command{Name: "shuf", Summary: "Shuffle lines.", Usage: "shuf [-e] [-i LO-HI] [-n COUNT] [-r] [-z] [-o FILE] [file]", Run: shuf},
	)
}

func decimals(text string) int {
	if strings.ContainsAny(text, "eE") {
		return 0
	}
	if _, fraction, ok := strings.Cut(text, "."); ok {
		return len(fraction)
	}
	return 0
}

func seq(c *core.Ctx) int {
	args := c.Args
	separator, format, equal := "\n", "", false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && (args[0][1] < '0' || args[0][1] > '9') && args[0][1] != '.' {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "--":
		case arg == "-w" || arg == "--equal-width":
			equal = true
			continue
		case strings.HasPrefix(arg, "--separator="):
			separator = arg[len("--separator="):]
			continue
		case strings.HasPrefix(arg, "--format="):
			format = arg[len("--format="):]
			continue
		case arg[1] == 's' || arg[1] == 'f':
			value := arg[2:]
			if value == "" {
				if len(args) == 0 {
					return c.Usage(1, "option requires an argument -- '%c'", arg[1])
				}
				value, args = args[0], args[1:]
			}
			if arg[1] == 's' {
				separator = value
			} else {
				format = value
			}
			continue
		default:
			return c.Usage(1, "invalid option -- '%s'", arg[1:])
		}
		break
	}
	if len(args) == 0 {
		return c.Usage(1, "missing operand")
	}
	if len(args) > 3 {
		return c.Usage(1, "extra operand ‘%s’", args[3])
	}
	first, step, last := "1", "1", args[len(args)-1]
	if len(args) > 1 {
		first = args[0]
	}
	if len(args) > 2 {
		step = args[1]
	}
	for _, text := range []string{first, step, last} {
		if _, err := strconv.ParseFloat(text, 64); err != nil {
			return c.Usage(1, "invalid floating point argument: ‘%s’", text)
		}
	}
	if whole(first) && whole(step) && whole(last) && format == "" {
		return seqIntegers(c, first, step, last, separator, equal)
	}
	return seqFloats(c, first, step, last, separator, format, equal)
}

func whole(text string) bool { return !strings.ContainsAny(text, ".eEnNfFxX") }

func seqIntegers(c *core.Ctx, first, step, last, separator string, equal bool) int {
	from, okFrom := new(big.Int).SetString(first, 10)
	by, okBy := new(big.Int).SetString(step, 10)
	to, okTo := new(big.Int).SetString(last, 10)
	if !okFrom || !okBy || !okTo {
		return c.Usage(1, "invalid floating point argument: ‘%s’", last)
	}
	if by.Sign() == 0 {
		return c.Usage(1, "invalid Zero increment value: ‘%s’", step)
	}
	width := 0
	if equal {
		width = max(len(from.String()), len(to.String()))
	}
	if from.IsInt64() && to.IsInt64() && by.IsInt64() {
		return seqFast(c, from.Int64(), by.Int64(), to.Int64(), separator, width)
	}
	for isFirst := true; from.Cmp(to)*by.Sign() <= 0; from.Add(from, by) {
		if !isFirst {
			c.Out.WriteString(separator)
		}
		isFirst = false
		c.Out.WriteString(from.String())
	}
	c.Out.WriteByte('\n')
	return 0
}

func seqFast(c *core.Ctx, from, by, to int64, separator string, width int) int {
	buffer := make([]byte, 0, 32)
	printed := false
	for n := from; by > 0 && n <= to || by < 0 && n >= to; n += by {
		if printed {
			c.Out.WriteString(separator)
		}
		printed = true
		buffer = strconv.AppendInt(buffer[:0], n, 10)
		if len(buffer) < width {
			text := string(buffer)
			sign := ""
			if n < 0 {
				sign, text = "-", text[1:]
			}
			c.Out.WriteString(sign + strings.Repeat("0", width-len(sign)-len(text)) + text)
			continue
		}
		c.Out.Write(buffer)
		if by > 0 && n > math.MaxInt64-by || by < 0 && n < math.MinInt64-by {
			break
		}
	}
	if printed {
		c.Out.WriteByte('\n')
	}
	return 0
}

func seqFloats(c *core.Ctx, first, step, last, separator, format string, equal bool) int {
	from, _ := strconv.ParseFloat(first, 64)
	by, _ := strconv.ParseFloat(step, 64)
	to, _ := strconv.ParseFloat(last, 64)
	if by == 0 {
		return c.Usage(1, "invalid Zero increment value: ‘%s’", step)
	}
	precision := max(decimals(first), decimals(step))
	width := 0
	if equal {
		width = max(len(strconv.FormatFloat(from, 'f', precision, 64)), len(strconv.FormatFloat(to, 'f', precision, 64)))
	}
	printed := false
	for i := 0; ; i++ {
		value := from + float64(i)*by
		slack := math.Abs(by) * 1e-9
		if by > 0 && value > to+slack || by < 0 && value < to-slack {
			break
		}
		if printed {
			c.Out.WriteString(separator)
		}
		printed = true
		text := strconv.FormatFloat(value, 'f', precision, 64)
		if format != "" {
			text = seqFormat(format, value)
		}
		for len(text) < width {
			text = "0" + text
		}
		c.Out.WriteString(text)
	}
	if printed {
		c.Out.WriteByte('\n')
	}
	return 0
}

func yes(c *core.Ctx) int {
	line := "y\n"
	if len(c.Args) > 0 {
		line = strings.Join(c.Args, " ") + "\n"
	}
	block := []byte(strings.Repeat(line, max(1, 8192/len(line))))
	for c.Out.Err() == nil {
		c.Out.Write(block)
		c.Out.Flush()
		c.Check()
	}
	return 1
}

func shuf(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "ei:n:rzo:", Long: "echo/e input-range=/i head-count=/n repeat/r zero-terminated/z output=/o random-source="}.Parse(c)
	if !ok {
		return 1
	}
	echo, repeat, count, span, end, output := false, false, -1, "", byte('\n'), ""
	for _, option := range options {
		switch option.Name {
		case "e":
			echo = true
		case "i":
			span = option.Value
		case "n":
			number, err := strconv.Atoi(option.Value)
			if err != nil {
				return c.Fail(1, "invalid line count: ‘%s’", option.Value)
			}
			count = number
		case "r":
			repeat = true
		case "z":
			end = 0
		case "o":
			output = option.Value
		}
	}
	var items []string
	switch {
	case span != "":
		low, high, _ := strings.Cut(span, "-")
		from, err1 := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil || to < from {
			return c.Fail(1, "invalid input range: ‘%s’", span)
		}
		for n := from; n <= to; n++ {
			items = append(items, strconv.Itoa(n))
		}
	case echo:
		items = names
	default:
		if status := each(c, names, func(_ string, reader io.Reader) error {
			return core.Lines(reader, end, func(line []byte, _ bool) bool { items = append(items, string(line)); return true })
		}); status != 0 {
			return status
		}
	}
	out := c.Out
	if output != "" {
		file, err := c.Create(output)
		if err != nil {
			return c.Fail(1, "%s: %s", output, core.Reason(err))
		}
		defer file.Close()
		out = core.NewOut(file)
	}
	generator := rand.New(rand.NewPCG(core.Random64(), core.Random64()))
	if repeat {
		for i := 0; len(items) > 0 && (count < 0 || i < count); i++ {
			out.WriteString(items[generator.IntN(len(items))])
			out.WriteByte(end)
		}
	} else {
		generator.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		if count >= 0 && count < len(items) {
			items = items[:count]
		}
		for _, item := range items {
			out.WriteString(item)
			out.WriteByte(end)
		}
	}
	out.Flush()
	return 0
}
