package search

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"warmcell/toolbox/internal/clock"
	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/shell"
	"warmcell/toolbox/internal/strftime"
)

// newGlob matches the whole text; unlike path.Match "*" crosses slashes.
func newGlob(pattern string, fold bool) func(string) bool { return shell.Glob(pattern, fold) }

func readLink(full string) string {
	target, _ := os.Readlink(full)
	return target
}

func kindLetter(info fs.FileInfo) string {
	mode := info.Mode()
	switch {
	case mode.IsDir():
		return "d"
	case mode&fs.ModeSymlink != 0:
		return "l"
	case mode&fs.ModeNamedPipe != 0:
		return "p"
	case mode&fs.ModeCharDevice != 0:
		return "c"
	}
	return "f"
}

func isEmpty(v *visit) bool {
	if v.info.IsDir() {
		entries, err := core.ReadDir(v.full)
		return err == nil && len(entries) == 0
	}
	return v.info.Mode().IsRegular() && v.info.Size() == 0
}

func (f *finder) sizeTest(spec string) test {
	unit := int64(512)
	if spec != "" {
		if factor, ok := map[byte]int64{'c': 1, 'w': 2, 'b': 512, 'k': 1024, 'M': 1 << 20, 'G': 1 << 30}[spec[len(spec)-1]]; ok {
			unit, spec = factor, spec[:len(spec)-1]
		}
	}
	matches, ok := compareNumber(spec, func(size int64) int64 { return (size + unit - 1) / unit })
	if !ok {
		f.problem = "invalid -size type"
		return nil
	}
	return func(v *visit) bool { return matches(v.info.Size()) }
}

func (f *finder) newerTest(word string) test {
	name := f.value(word)
	if word == "-newermt" {
		when, ok := clock.Parse(name, f.now)
		if !ok {
			f.problem = "I cannot figure out how to interpret ‘" + name + "’ as a date or time"
			return nil
		}
		return func(v *visit) bool { return v.info.ModTime().After(when) }
	}
	info, err := core.Stat(f.c.Path(name))
	if err != nil {
		f.problem = "‘" + name + "’: " + core.Reason(err)
		return nil
	}
	return func(v *visit) bool { return v.info.ModTime().After(info.ModTime()) }
}

func (f *finder) permTest(spec string) test {
	kind := byte(0)
	if spec != "" && (spec[0] == '-' || spec[0] == '/') {
		kind, spec = spec[0], spec[1:]
	}
	mode, ok := core.ParseMode(spec, 0, false)
	if !ok {
		f.problem = "invalid mode ‘" + spec + "’"
		return nil
	}
	return func(v *visit) bool {
		bits := v.info.Mode().Perm()
		switch kind {
		case '-':
			return bits&mode == mode
		case '/':
			return mode == 0 || bits&mode != 0
		}
		return bits == mode
	}
}

func (f *finder) action(word string) test {
	f.hasAction = true
	switch word {
	case "-print":
		return func(v *visit) bool { f.c.Out.WriteString(v.path + "\n"); return true }
	case "-print0":
		return func(v *visit) bool { f.c.Out.WriteString(v.path + "\x00"); return true }
	case "-printf":
		layout := f.value(word)
		return func(v *visit) bool { f.c.Out.WriteString(f.format(layout, v)); return true }
	case "-ls":
		return func(v *visit) bool {
			fmt.Fprintf(f.c.Out, "%9d %6d %s 1 %s %s %8d %s %s\n", 1, (v.info.Size()+1023)/1024, v.info.Mode().String(), core.UserName, core.UserName, v.info.Size(), strftime.Format("%b %e %H:%M", v.info.ModTime().UTC()), v.path)
			return true
		}
	case "-delete":
		f.depthFirst = true
		return func(v *visit) bool {
			if v.path == "." {
				return true
			}
			if err := core.Remove(v.full); err != nil {
				f.c.Errorf("cannot delete ‘%s’: %s", v.path, core.Reason(err))
				f.status = 1
				return false
			}
			return true
		}
	case "-exec", "-execdir", "-ok":
		return f.exec(word)
	}
	f.problem = "unknown predicate `" + word + "'"
	return nil
}

func (f *finder) exec(word string) test {
	var command []string
	for {
		if f.pos >= len(f.args) {
			f.problem = "missing argument to `" + word + "'"
			return nil
		}
		arg := f.args[f.pos]
		f.pos++
		if arg == ";" {
			return func(v *visit) bool { return f.runOne(command, v, word == "-execdir") }
		}
		if arg == "+" && len(command) > 0 && command[len(command)-1] == "{}" {
			one := &batch{command: command[:len(command)-1]}
			f.batches = append(f.batches, one)
			return func(v *visit) bool {
				one.names = append(one.names, v.path)
				if len(one.names) >= 5000 {
					f.flush(one)
				}
				return true
			}
		}
		command = append(command, arg)
	}
}

func (f *finder) runOne(command []string, v *visit, inDir bool) bool {
	argv := make([]string, len(command))
	name := v.path
	child := f.c.Child(f.c.Stdin, f.c.Stdout, f.c.Stderr)
	if inDir {
		child.Dir = path.Dir(v.full)
		name = "./" + path.Base(v.full)
	}
	for i, arg := range command {
		argv[i] = strings.ReplaceAll(arg, "{}", name)
	}
	f.c.Out.Flush()
	return f.c.Exec(child, argv) == 0
}

func (f *finder) flush(one *batch) {
	if len(one.names) == 0 {
		return
	}
	f.c.Out.Flush()
	if f.c.Exec(f.c.Child(f.c.Stdin, f.c.Stdout, f.c.Stderr), append(append([]string(nil), one.command...), one.names...)) != 0 {
		f.status = 1
	}
	one.names = nil
}

func (f *finder) format(layout string, v *visit) string {
	var out strings.Builder
	for i := 0; i < len(layout); i++ {
		c := layout[i]
		if c == '\\' && i+1 < len(layout) {
			i++
			if at := strings.IndexByte("ntr0\\", layout[i]); at >= 0 {
				out.WriteByte("\n\t\r\x00\\"[at])
			} else {
				out.WriteString(`\` + string(layout[i]))
			}
			continue
		}
		if c != '%' || i+1 == len(layout) {
			out.WriteByte(c)
			continue
		}
		i++
		width := ""
		for i < len(layout)-1 && (layout[i] == '-' || layout[i] >= '0' && layout[i] <= '9') {
			width += string(layout[i])
			i++
		}
		value := ""
		switch layout[i] {
		case 'T', 'A', 'C':
			i++
			value = f.timeField(layout, i, v.info.ModTime())
		default:
			value = f.field(layout[i], v)
		}
		out.WriteString(fmt.Sprintf("%"+width+"s", value))
	}
	return out.String()
}

func (f *finder) timeField(layout string, i int, when time.Time) string {
	when = when.In(strftime.Zone(f.c.Getenv("TZ")))
	switch layout[i] {
	case '@':
		return fmt.Sprintf("%d.%09d0", when.Unix(), when.Nanosecond())
	case 'S':
		return fmt.Sprintf("%02d.%09d0", when.Second(), when.Nanosecond())
	case '+':
		return strftime.Format("%Y-%m-%d+%H:%M:%S", when)
	}
	return strftime.Format("%"+string(layout[i]), when)
}

func (f *finder) field(letter byte, v *visit) string {
	switch letter {
	case 'p':
		return v.path
	case 'f':
		return path.Base(v.path)
	case 'h':
		if at := strings.LastIndexByte(v.path, '/'); at >= 0 {
			return v.path[:at]
		}
		return "."
	case 'P':
		return strings.TrimPrefix(strings.TrimPrefix(v.path, v.start), "/")
	case 'H':
		return v.start
	case 's':
		return strconv.FormatInt(v.info.Size(), 10)
	case 'k':
		return strconv.FormatInt((v.info.Size()+1023)/1024, 10)
	case 'd':
		return strconv.Itoa(v.depth)
	case 'y', 'Y':
		return kindLetter(v.info)
	case 'm':
		return strconv.FormatUint(uint64(v.info.Mode().Perm()), 8)
	case 'M':
		return strings.Replace(v.info.Mode().String(), "L", "l", 1)
	case 'u', 'g':
		return core.UserName
	case 'U', 'G':
		return core.UserID
	case 'l':
		return readLink(v.full)
	case 't':
		return strftime.Format("%a %b %e %H:%M:%S.%N %Y", v.info.ModTime().UTC())
	case 'n', 'i':
		return "1"
	case '%':
		return "%"
	}
	return "%" + string(letter)
}
