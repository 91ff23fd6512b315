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
	core.Register(
		&core.Command{Name: "zip", Summary: "Package files in a zip archive.", Usage: "zip [-rqjumd0..9] [-x GLOB] archive file...", Run: zipCommand},
		&core.Command{Name: "unzip", Summary: "List or extract a zip archive.", Usage: "unzip [-lpqontvj] [-d DIR] [-x GLOB] archive [member...]", Run: unzip},
	)
}

func zipCommand(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "rqjumdTvyoDX0123456789i:x:@", Long: "recurse-paths/r quiet/q junk-paths/j exclude=/x include=/i"}.Parse(c)
	if !ok {
		return 16
	}
	on := map[string]bool{}
	var exclude []string
	for _, option := range options {
		on[option.Name] = true
		if option.Name == "x" {
			exclude = append(exclude, option.Value)
		}
	}
	if len(operands) == 0 {
		return c.Fail(16, "error: nothing to do")
	}
	archive := operands[0]
	if path.Ext(archive) == "" && archive != "-" {
		archive += ".zip"
	}
	var out bytes.Buffer
	writer := zip.NewWriter(&out)
	existing := copyOld(c, archive, writer, operands[1:], on["d"])
	added := 0
	var add func(name string)
	add = func(name string) {
		info, err := core.Stat(c.Path(name))
		if err != nil {
			fmt.Fprintf(c.Stderr, "\tzip warning: name not matched: %s\n", name)
			return
		}
		stored := strings.TrimPrefix(strings.TrimLeft(name, "/"), "./")
		if on["j"] {
			stored = path.Base(name)
		}
		for _, pattern := range exclude {
			if shell.Glob(pattern, false)(stored) {
				return
			}
		}
		if info.IsDir() {
			if !on["D"] && !on["j"] && stored != "." && stored != "" {
				writer.CreateHeader(&zip.FileHeader{Name: strings.TrimRight(stored, "/") + "/", Modified: info.ModTime()})
				added++
				if !on["q"] {
					c.Out.WriteString("  adding: " + strings.TrimRight(stored, "/") + "/ (stored 0%)\n")
				}
			}
			if on["r"] {
				entries, _ := core.ReadDir(c.Path(name))
				for _, entry := range entries {
					add(strings.TrimRight(name, "/") + "/" + entry.Name())
				}
			}
			return
		}
		data, err := os.ReadFile(c.Path(name))
		if err != nil {
			fmt.Fprintf(c.Stderr, "\tzip warning: could not open for reading: %s\n", name)
			return
		}
		header := &zip.FileHeader{Name: stored, Method: zip.Deflate, Modified: info.ModTime()}
		header.SetMode(info.Mode())
		verb, note := "adding", "deflated"
		if existing[stored] {
			verb = "updating"
		}
		if on["0"] || len(data) < 32 {
			header.Method, note = zip.Store, "stored"
		}
		if entry, err := writer.CreateHeader(header); err == nil {
			entry.Write(data)
			added++
			if !on["q"] {
				fmt.Fprintf(c.Out, "  %s: %s (%s %d%%)\n", verb, stored, note, 0)
			}
		}
	}
	if !on["d"] {
		for _, name := range operands[1:] {
			add(name)
		}
		if added == 0 {
			return c.Fail(12, "error: Nothing to do! (%s)", archive)
		}
	}
	writer.Close()
	if archive == "-" {
		c.Out.Write(out.Bytes())
		return 0
	}
	file, err := c.Create(archive)
	if err != nil {
		return c.Fail(15, "I/O error: %s", core.Reason(err))
	}
	defer file.Close()
	file.Write(out.Bytes())
	return 0
}

// copyOld keeps the members of an existing archive that are not replaced or deleted.
func copyOld(c *core.Ctx, archive string, writer *zip.Writer, names []string, deleting bool) map[string]bool {
	existing := map[string]bool{}
	data, err := os.ReadFile(c.Path(archive))
	if err != nil {
		return existing
	}
	reader, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return existing
	}
	for _, member := range reader.File {
		existing[member.Name] = true
		dropped := false
		for _, name := range names {
			dropped = dropped || member.Name == name || deleting && shell.Glob(name, false)(member.Name)
		}
		if !dropped {
			writer.Copy(member)
		}
	}
	return existing
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
