package text

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

func init() {
	core.Register(
		&core.Command{Name: "fold", Summary: "Wrap lines to a width.", Usage: "fold [-bs] [-w WIDTH] [file...]", Run: fold},
		&core.Command{Name: "expand", Summary: "Convert tabs to spaces.", Usage: "expand [-i] [-t N] [file...]", Run: expand},
		&core.Command{Name: "unexpand", Summary: "Convert spaces to tabs.", Usage: "unexpand [-a] [-t N] [file...]", Run: unexpand},
		&core.Command{Name: "nl", Summary: "Number lines of files.", Usage: "nl [-b STYLE] [-n FORMAT] [-s SEP] [-v N] [-i N] [-w N] [file...]", Run: nl},
		&core.Command{Name: "fmt", Summary: "Fill paragraphs.", Usage: "fmt [-w WIDTH] [file...]", Run: fill},
	)
}

func fold(c *core.Ctx) int {
	if len(c.Args) > 0 && len(c.Args[0]) > 1 && c.Args[0][0] == '-' && c.Args[0][1] >= '0' && c.Args[0][1] <= '9' {
		c.Args = append([]string{"-w", c.Args[0][1:]}, c.Args[1:]...)
	}
	options, names, ok := core.Options{Short: "bsw:", Long: "bytes/b spaces/s width=/w"}.Parse(c)
	if !ok {
		return 1
	}
	width, spaces, bytes := 80, false, false
	for _, option := range options {
		switch option.Name {
		case "w":
			number, err := strconv.Atoi(option.Value)
			if err != nil || number < 1 {
				return c.Fail(1, "invalid number of columns: ‘%s’", option.Value)
			}
			width = number
		case "s":
			spaces = true
		case "b":
			bytes = true
		}
	}
	return each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, '\n', func(line []byte, terminated bool) bool {
			foldLine(c, string(line), width, spaces, bytes)
			if terminated {
				c.Out.WriteByte('\n')
			}
			return true
		})
	})
}

func foldLine(c *core.Ctx, line string, width int, spaces, bytes bool) {
	for {
		column, end := 0, 0
		for end < len(line) {
			r, size := utf8.DecodeRuneInString(line[end:])
			next := column + 1
			switch {
			case bytes:
				next = column + size
			case r == '\t':
				next = column + 8 - column%8
			case r == '\b':
				next = max(0, column-1)
			}
			if next > width && end > 0 {
				break
			}
			column = next
			end += size
		}
		if end >= len(line) {
			c.Out.WriteString(line)
			return
		}
		if spaces {
			if at := strings.LastIndexAny(line[:end], " \t"); at >= 0 {
				end = at + 1
			}
		}
		c.Out.WriteString(line[:end] + "\n")
		line = line[end:]
	}
}

// tabStops answers the next stop after a column.
func tabStops(list string) (func(int) int, bool) {
	if list == "" {
		list = "8"
	}
	var stops []int
	for _, item := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		number, err := strconv.Atoi(item)
		if err != nil || number < 1 {
			return nil, false
		}
		stops = append(stops, number)
	}
	if len(stops) == 1 {
		return func(column int) int { return column + stops[0] - column%stops[0] }, true
	}
	return func(column int) int {
		for _, stop := range stops {
			if stop > column {
				return stop
			}
		}
		return column + 1
	}, true
}

func expand(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "it:", Long: "initial/i tabs=/t"}.Parse(c)
	if !ok {
		return 1
	}
	list, initial := "", false
	for _, option := range options {
		if option.Name == "t" {
			list = option.Value
		} else {
			initial = true
		}
	}
	next, ok := tabStops(list)
	if !ok {
		return c.Fail(1, "tab size contains invalid character(s): ‘%s’", list)
	}
	return each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, '\n', func(line []byte, terminated bool) bool {
			column, leading := 0, true
			for _, r := range string(line) {
				if r == '\t' && (leading || !initial) {
					stop := next(column)
					c.Out.WriteString(strings.Repeat(" ", stop-column))
					column = stop
					continue
				}
				leading = leading && r == ' '
				column++
				c.Out.WriteRune(r)
			}
			if terminated {
				c.Out.WriteByte('\n')
			}
			return true
		})
	})
}

func unexpand(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "at:", Long: "all/a first-only/f tabs=/t"}.Parse(c)
	if !ok {
		return 1
	}
	list, all := "", false
	for _, option := range options {
		switch option.Name {
		case "t":
			list, all = option.Value, true
		case "a":
			all = true
		case "f":
			all = false
		}
	}
	next, ok := tabStops(list)
	if !ok {
		return c.Fail(1, "tab size contains invalid character(s): ‘%s’", list)
	}
	return each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, '\n', func(line []byte, terminated bool) bool {
			unexpandLine(c, string(line), next, all)
			if terminated {
				c.Out.WriteByte('\n')
			}
			return true
		})
	})
}

func unexpandLine(c *core.Ctx, line string, next func(int) int, all bool) {
	column, start := 0, 0
	blanks := 0
	active := true
	flush := func() {
		if blanks == 0 {
			return
		}
		for {
			stop := next(start)
			if stop > column || stop-start == 1 && column-start == 1 && blanks == 1 {
				break
			}
			c.Out.WriteByte('\t')
			start = stop
		}
		c.Out.WriteString(strings.Repeat(" ", column-start))
		blanks = 0
	}
	for _, r := range line {
		if active && (r == ' ' || r == '\t') {
			if blanks == 0 {
				start = column
			}
			blanks++
			if r == '\t' {
				column = next(column)
			} else {
				column++
			}
			continue
		}
		flush()
		active = all
		column++
		c.Out.WriteRune(r)
	}
	flush()
}

type numbering struct {
	body, header, footer, format, separator string
	start, step, width, blanks              int
	keepCounting                            bool
}

func nl(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "b:h:f:d:n:s:v:i:w:l:p", Long: "body-numbering=/b header-numbering=/h footer-numbering=/f number-format=/n number-separator=/s starting-line-number=/v line-increment=/i number-width=/w join-blank-lines=/l no-renumber/p section-delimiter=/d"}.Parse(c)
	if !ok {
		return 1
	}
	o := numbering{body: "t", header: "n", footer: "n", format: "rn", separator: "\t", start: 1, step: 1, width: 6, blanks: 1}
	for _, option := range options {
		number, err := strconv.Atoi(option.Value)
		switch option.Name {
		case "b":
			o.body = option.Value
		case "h":
			o.header = option.Value
		case "f":
			o.footer = option.Value
		case "n":
			o.format = option.Value
		case "s":
			o.separator = option.Value
		case "v", "i", "w", "l":
			if err != nil {
				return c.Fail(1, "invalid number: ‘%s’", option.Value)
			}
			*map[string]*int{"v": &o.start, "i": &o.step, "w": &o.width, "l": &o.blanks}[option.Name] = number
		case "p":
			o.keepCounting = true
		}
	}
	return o.run(c, names)
}

func (o *numbering) run(c *core.Ctx, names []string) int {
	line, blank := o.start, 0
	style := o.body
	var pattern *posix.Regex
	layouts := map[string]string{"ln": "%-*d", "rn": "%*d", "rz": "%0*d"}
	return each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, '\n', func(text []byte, _ bool) bool {
			switch string(text) {
			case `\:\:\:`, `\:\:`, `\:`:
				style = map[int]string{6: o.header, 4: o.body, 2: o.footer}[len(text)]
				if !o.keepCounting && len(text) == 6 {
					line = o.start
				}
				c.Out.WriteByte('\n')
				return true
			}
			numbered := false
			switch {
			case style == "a":
				if len(text) == 0 {
					blank++
					numbered = blank == o.blanks
				} else {
					numbered = true
				}
				if numbered {
					blank = 0
				}
			case style == "t":
				numbered = len(text) > 0
			case strings.HasPrefix(style, "p"):
				if pattern == nil {
					pattern, _ = posix.Compile(style[1:], posix.Options{})
				}
				numbered = pattern != nil && pattern.Match(text)
			}
			if numbered {
				fmt.Fprintf(c.Out, layouts[o.format], o.width, line)
				c.Out.WriteString(o.separator)
				line += o.step
			} else {
				c.Out.WriteString(strings.Repeat(" ", o.width+len(o.separator)))
			}
			c.Out.Write(text)
			c.Out.WriteByte('\n')
			return true
		})
	})
}

// fill is fmt: it joins the words of each paragraph into lines of bounded width.
func fill(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "w:su", Long: "width=/w"}.Parse(c)
	if !ok {
		return 1
	}
	width := 75
	for _, option := range options {
		if option.Name == "w" {
			width, _ = strconv.Atoi(option.Value)
		}
	}
	var words []string
	flush := func() {
		line := ""
		for _, word := range words {
			if line != "" && len(line)+1+len(word) > width {
				c.Out.WriteString(line + "\n")
				line = ""
			}
			if line != "" {
				line += " "
			}
			line += word
		}
		if line != "" {
			c.Out.WriteString(line + "\n")
		}
		words = nil
	}
	status := each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, '\n', func(line []byte, _ bool) bool {
			found := strings.Fields(string(line))
			if len(found) == 0 {
				flush()
				c.Out.WriteByte('\n')
				return true
			}
			words = append(words, found...)
			return true
		})
	})
	flush()
	return status
}
