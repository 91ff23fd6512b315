package text

import (
	"bytes"
	"io"
	"os"
	"strings"
	"time"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "head", Summary: "Output the first part of files.", Usage: "head [-n [-]lines] [-c [-]bytes] [-qvz] [file...]", Run: head},
		&core.Command{Name: "tail", Summary: "Output the last part of files.", Usage: "tail [-n [+]lines] [-c [+]bytes] [-fqvz] [file...]", Run: tail},
	)
}

type window struct {
	count     int64
	bytes     bool
	negative  bool // head -n -N, or tail -n +N
	quiet     bool
	verbose   bool
	follow    bool
	delimiter byte
}

func parseWindow(c *core.Ctx, isTail bool) (*window, []string, bool) {
	if isTail && len(c.Args) > 0 && len(c.Args[0]) > 1 && c.Args[0][0] == '+' {
		c.Args = append([]string{"-n", c.Args[0]}, c.Args[1:]...)
	}
	options, names, ok := core.Options{Short: "n:c:qvzfFs:", Long: "lines=/n bytes=/c quiet/q silent/q verbose/v zero-terminated/z follow?/f retry/F sleep-interval=/s pid=/s", Digit: true}.Parse(c)
	if !ok {
		return nil, nil, false
	}
	w := &window{count: 10, delimiter: '\n'}
	for _, option := range options {
		switch option.Name {
		case "n", "c", "#":
			value := option.Value
			w.bytes = option.Name == "c"
			w.negative = false
			if isTail && strings.HasPrefix(value, "+") || !isTail && strings.HasPrefix(value, "-") {
				w.negative, value = true, value[1:]
			} else if isTail {
				value = strings.TrimPrefix(value, "-")
			} else {
				value = strings.TrimPrefix(value, "+")
			}
			count, valid := parseSize(value)
			if !valid {
				what := "lines"
				if w.bytes {
					what = "bytes"
				}
				c.Errorf("invalid number of %s: ‘%s’", what, option.Value)
				return nil, nil, false
			}
			w.count = count
		case "q":
			w.quiet = true
		case "v":
			w.verbose = true
		case "z":
			w.delimiter = 0
		case "f", "F":
			w.follow = true
		}
	}
	return w, names, true
}

func (w *window) each(c *core.Ctx, names []string, fn func(io.Reader) error) int {
	shown := false
	headers := w.verbose || len(names) > 1 && !w.quiet
	return each(c, names, func(name string, reader io.Reader) error {
		if headers {
			if shown {
				c.Out.WriteByte('\n')
			}
			if name == "-" {
				name = "standard input"
			}
			c.Out.WriteString("==> " + name + " <==\n")
			shown = true
		}
		if directory, ok := reader.(interface{ Stat() (os.FileInfo, error) }); ok {
			if info, err := directory.Stat(); err == nil && info.IsDir() {
				return &os.PathError{Op: "error reading", Err: os.ErrInvalid}
			}
		}
		return fn(reader)
	})
}

func head(c *core.Ctx) int {
	w, names, ok := parseWindow(c, false)
	if !ok {
		return 1
	}
	return w.each(c, names, func(reader io.Reader) error {
		switch {
		case w.negative:
			return w.allBut(c, reader)
		case w.bytes:
			_, err := io.Copy(c.Out, io.LimitReader(reader, w.count))
			return err
		}
		return w.firstLines(c, reader)
	})
}

// firstLines reads no further than it must, so that a producer ends early.
func (w *window) firstLines(c *core.Ctx, reader io.Reader) error {
	block := make([]byte, 8<<10)
	remaining := w.count
	for remaining > 0 {
		n, err := reader.Read(block)
		data := block[:n]
		for len(data) > 0 && remaining > 0 {
			at := bytes.IndexByte(data, w.delimiter)
			if at < 0 {
				c.Out.Write(data)
				break
			}
			c.Out.Write(data[:at+1])
			data = data[at+1:]
			remaining--
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *window) allBut(c *core.Ctx, reader io.Reader) error {
	data, err := io.ReadAll(reader)
	if err != nil {
		return err
	}
	if w.bytes {
		c.Out.Write(data[:max(0, int64(len(data))-w.count)])
		return nil
	}
	c.Out.Write(data[:tailStart(data, w.count, w.delimiter)])
	return nil
}

// tailStart is the offset where the last n lines begin.
func tailStart(data []byte, n int64, delimiter byte) int {
	end := len(data)
	if n == 0 {
		return end
	}
	if end > 0 && data[end-1] == delimiter {
		end--
	}
	for ; n > 0; n-- {
		at := bytes.LastIndexByte(data[:end], delimiter)
		if at < 0 {
			return 0
		}
		end = at
	}
	return end + 1
}

func tail(c *core.Ctx) int {
	w, names, ok := parseWindow(c, true)
	if !ok {
		return 1
	}
	status := w.each(c, names, func(reader io.Reader) error {
		if w.negative {
			return w.fromStart(c, reader)
		}
		data, err := readTail(reader, w)
		if err != nil {
			return err
		}
		if w.bytes {
			c.Out.Write(data[max(0, int64(len(data))-w.count):])
		} else {
			c.Out.Write(data[tailStart(data, w.count, w.delimiter):])
		}
		if w.follow && len(names) > 0 {
			w.wait(c, reader)
		}
		return nil
	})
	return status
}

// readTail keeps only as much of a stream as can still be needed.
func readTail(reader io.Reader, w *window) ([]byte, error) {
	var kept []byte
	block := make([]byte, 64<<10)
	for {
		n, err := reader.Read(block)
		kept = append(kept, block[:n]...)
		if len(kept) > 8<<20 {
			start := tailStart(kept, w.count, w.delimiter)
			if w.bytes {
				start = int(max(0, int64(len(kept))-w.count))
			}
			kept = append([]byte(nil), kept[start:]...)
		}
		if err == io.EOF {
			return kept, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (w *window) fromStart(c *core.Ctx, reader io.Reader) error {
	skip := max(0, w.count-1)
	if w.bytes {
		if _, err := io.CopyN(io.Discard, reader, skip); err != nil && err != io.EOF {
			return err
		}
		return passThrough(c, reader)
	}
	return core.Lines(reader, w.delimiter, func(line []byte, terminated bool) bool {
		if skip > 0 {
			skip--
			return true
		}
		c.Out.Write(line)
		if terminated {
			c.Out.WriteByte(w.delimiter)
		}
		return true
	})
}

// wait implements -f: it polls until the command is ended from outside.
func (w *window) wait(c *core.Ctx, reader io.Reader) {
	for {
		c.Out.Flush()
		io.Copy(c.Out, reader)
		c.Out.Flush()
		c.Check()
		time.Sleep(100 * time.Millisecond)
	}
}
