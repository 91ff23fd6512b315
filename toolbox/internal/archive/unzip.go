package archive

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/shell"
	"warmcell/toolbox/internal/strftime"
)

func init() {
	core.Register(&core.Command{Name: "unzip", Summary: "List or extract a zip archive.", Usage: "unzip [-lpqontvj] [-d DIR] [-x GLOB] archive [member...]", Run: unzip})
}

type unzipper struct {
	c                                   *core.Ctx
	dir                                 string
	list, pipe, quiet, overwrite, never bool
	test, junk                          bool
	exclude, members                    []string
}

func unzip(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "lpqontvjcaLUCd:x:", Long: ""}.Parse(c)
	if !ok {
		return 10
	}
	u := &unzipper{c: c}
	for _, option := range options {
		switch option.Name {
		case "l", "v":
			u.list = true
		case "p", "c":
			u.pipe = true
		case "q":
			u.quiet = true
		case "o":
			u.overwrite = true
		case "n":
			u.never = true
		case "t":
			u.test = true
		case "j":
			u.junk = true
		case "d":
			u.dir = option.Value
		case "x":
			u.exclude = append(u.exclude, option.Value)
		}
	}
	if len(operands) == 0 {
		return c.Usage(10, "missing archive")
	}
	archive := operands[0]
	u.members = operands[1:]
	data, err := os.ReadFile(c.Path(archive))
	if err != nil {
		if data, err = os.ReadFile(c.Path(archive + ".zip")); err != nil {
			fmt.Fprintf(c.Stderr, "unzip:  cannot find or open %s, %s.zip or %s.ZIP.\n", archive, archive, archive)
			return 9
		}
		archive += ".zip"
	}
	reader, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		fmt.Fprintf(c.Stderr, "  End-of-central-directory signature not found.\nunzip:  cannot find zipfile directory in %s\n", archive)
		return 9
	}
	if !u.quiet && !u.pipe {
		c.Out.WriteString("Archive:  " + archive + "\n")
	}
	if u.list {
		u.table(reader)
		return 0
	}
	return u.extract(reader)
}

func (u *unzipper) selected(name string) bool {
	for _, pattern := range u.exclude {
		if shell.Glob(pattern, false)(name) {
			return false
		}
	}
	for _, pattern := range u.members {
		if shell.Glob(pattern, false)(name) {
			return true
		}
	}
	return len(u.members) == 0
}

func (u *unzipper) table(reader *zip.Reader) {
	u.c.Out.WriteString("  Length      Date    Time    Name\n---------  ---------- -----   ----\n")
	total, count := uint64(0), 0
	for _, member := range reader.File {
		if !u.selected(member.Name) {
			continue
		}
		fmt.Fprintf(u.c.Out, "%9d  %s   %s\n", member.UncompressedSize64, strftime.Format("%Y-%m-%d %H:%M", member.Modified.UTC()), member.Name)
		total += member.UncompressedSize64
		count++
	}
	fmt.Fprintf(u.c.Out, "---------                     -------\n%9d                     %d file%s\n", total, count, map[bool]string{true: "", false: "s"}[count == 1])
}

func (u *unzipper) extract(reader *zip.Reader) int {
	matched, status := 0, 0
	for _, member := range reader.File {
		if !u.selected(member.Name) {
			continue
		}
		matched++
		name := member.Name
		if u.junk {
			name = path.Base(name)
		}
		if strings.Contains("/"+name+"/", "/../") {
			fmt.Fprintf(u.c.Stderr, "warning:  skipped \"../\" path component(s) in %s\n", member.Name)
			status = 1
			continue
		}
		shown := path.Join(u.dir, strings.TrimLeft(name, "/"))
		if strings.HasSuffix(member.Name, "/") {
			if !u.pipe && !u.test && !u.junk {
				core.MkdirAll(u.c.Path(shown))
				u.say("   creating: " + shown + "/")
			}
			continue
		}
		content, err := member.Open()
		if err != nil {
			status = 3
			continue
		}
		switch {
		case u.pipe:
			io.Copy(u.c.Out, content)
		case u.test:
			_, err = io.Copy(io.Discard, content)
			u.say("    testing: " + member.Name + "   OK")
		default:
			err = u.write(shown, content)
		}
		content.Close()
		if err != nil {
			fmt.Fprintf(u.c.Stderr, "error:  cannot create %s: %s\n", shown, core.Reason(err))
			status = 50
		}
	}
	if matched == 0 && len(u.members) > 0 {
		fmt.Fprintf(u.c.Stderr, "caution: filename not matched:  %s\n", u.members[0])
		return 11
	}
	return status
}

func (u *unzipper) say(text string) {
	if !u.quiet {
		u.c.Out.WriteString(text + "  \n")
	}
}

func (u *unzipper) write(shown string, content io.Reader) error {
	if _, err := core.Stat(u.c.Path(shown)); err == nil && u.never {
		return nil
	}
	if err := core.MkdirAll(path.Dir(u.c.Path(shown))); err != nil {
		return err
	}
	file, err := u.c.Create(shown)
	if err != nil {
		return err
	}
	defer file.Close()
	u.say("  inflating: " + shown)
	_, err = io.Copy(struct{ io.Writer }{file}, content)
	return err
}
