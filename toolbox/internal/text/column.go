package text

import (
	"io"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "column", Summary: "Format input into columns.", Usage: "column [-t] [-s SEPS] [-o SEP] [-N NAMES] [-R COLS] [-c WIDTH] [-x] [file...]", Run: column})
}

func column(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "ts:o:N:R:c:xneJl:", Long: "table/t separator=/s output-separator=/o table-columns=/N table-right=/R output-width=/c columns=/c fillrows/x table-columns-limit=/l keep-empty-lines/e json/J table-name=/n"}.Parse(c)
	if !ok {
		return 1
	}
	table, separators, joiner, width, rows := false, "", "  ", 80, false
	right := map[string]bool{}
	var header []string
	for _, option := range options {
		switch option.Name {
		case "t":
			table = true
		case "s":
			separators = option.Value
		case "o":
			joiner = option.Value
		case "N":
			header = strings.Split(option.Value, ",")
		case "R":
			for _, name := range strings.Split(option.Value, ",") {
				right[name] = true
			}
		case "c":
			width = int(parseInt(option.Value))
		case "x":
			rows = true
		}
	}
	var lines []string
	status := each(c, names, func(_ string, reader io.Reader) error {
		return core.Lines(reader, '\n', func(line []byte, _ bool) bool {
			if strings.TrimSpace(string(line)) != "" {
				lines = append(lines, string(line))
			}
			return true
		})
	})
	if table {
		printTable(c, lines, separators, joiner, header, right)
	} else {
		printColumns(c, lines, width, rows)
	}
	return status
}

func splitCells(line, separators string) []string {
	if separators == "" {
		return strings.Fields(line)
	}
	var cells []string
	start := 0
	for i, r := range line {
		if strings.ContainsRune(separators, r) {
			cells = append(cells, line[start:i])
			start = i + len(string(r))
		}
	}
	return append(cells, line[start:])
}

func printTable(c *core.Ctx, lines []string, separators, joiner string, header []string, right map[string]bool) {
	var rows [][]string
	if header != nil {
		rows = append(rows, header)
	}
	for _, line := range lines {
		rows = append(rows, splitCells(line, separators))
	}
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], core.TextWidth(cell))
		}
	}
	isRight := func(i int) bool {
		return right[itoa(i+1)] || i < len(header) && right[header[i]]
	}
	for _, row := range rows {
		var out strings.Builder
		for i, cell := range row {
			if i > 0 {
				out.WriteString(joiner)
			}
			padding := strings.Repeat(" ", widths[i]-core.TextWidth(cell))
			switch {
			case isRight(i):
				out.WriteString(padding + cell)
			case i == len(row)-1 && i == len(widths)-1:
				out.WriteString(cell)
			default:
				out.WriteString(cell + padding)
			}
		}
		for i := len(row); i < len(widths); i++ {
			out.WriteString(joiner)
			if i < len(widths)-1 || true {
				out.WriteString(strings.Repeat(" ", widths[i]))
			}
		}
		c.Out.WriteString(strings.TrimRight(out.String(), "") + "\n")
	}
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

func printColumns(c *core.Ctx, items []string, width int, byRows bool) {
	if len(items) == 0 {
		return
	}
	longest := 0
	for _, item := range items {
		longest = max(longest, core.TextWidth(item))
	}
	cell := (longest + 8) / 8 * 8
	columns := max(1, width/cell)
	height := (len(items) + columns - 1) / columns
	for row := 0; row < height; row++ {
		var line strings.Builder
		position := 0
		for col := 0; col < columns; col++ {
			index := col*height + row
			if byRows {
				index = row*columns + col
			}
			if index >= len(items) {
				break
			}
			for position < col*cell {
				line.WriteByte('\t')
				position = position/8*8 + 8
			}
			line.WriteString(items[index])
			position += core.TextWidth(items[index])
		}
		c.Out.WriteString(line.String() + "\n")
	}
}
