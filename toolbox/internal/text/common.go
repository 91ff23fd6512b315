// Package text holds the commands that turn lines and bytes into other lines and bytes.
package text

import (
	"io"
	"strings"

	"warmcell/toolbox/internal/core"
)

// each opens the operands in turn ("-" or none: standard input) and calls fn; it returns 1 if any could not be read.
func each(c *core.Ctx, names []string, fn func(name string, reader io.Reader) error) int {
	if len(names) == 0 {
		names = []string{"-"}
	}
	status := 0
	for _, name := range names {
		reader, err := c.Open(name)
		if err == nil {
			err = fn(name, reader)
			reader.Close()
		}
		if err != nil {
			c.Errorf("%s: %s", name, core.Reason(err))
			status = 1
		}
	}
	return status
}

// parseSize reads numbers with a unit.
func parseSize(value string) (int64, bool) { return core.ParseSize(value) }

// unescape decodes \n \t \\ \0 and octal in option values.
func unescape(value string) string {
	var out strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] != '\\' || i+1 == len(value) {
			out.WriteByte(value[i])
			continue
		}
		i++
		switch value[i] {
		case 'n':
			out.WriteByte('\n')
		case 't':
			out.WriteByte('\t')
		case 'r':
			out.WriteByte('\r')
		case '0':
			out.WriteByte(0)
		default:
			out.WriteByte(value[i])
		}
	}
	return out.String()
}
