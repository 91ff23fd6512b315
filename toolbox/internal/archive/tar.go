package archive

import (
	"archive/tar"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/shell"
	"warmcell/toolbox/internal/strftime"
)

func init() {
	core.Register(&core.Command{Name: "tar", Summary: "Store and extract archives.",
		Usage: "tar [-]{c|x|t|r|u} [-f ARCHIVE] [-C DIR] [-zjvkOph] [--strip-components=N] [--exclude=GLOB] [-T FILE] [file...]", Run: tarCommand})
}

type archiver struct {
	c                                         *core.Ctx
	mode                                      byte
	file, dir                                 string
	gzip, bzip, auto, verbose, keep, toStdout bool
	follow, absolute                          bool
	strip                                     int
	exclude, names                            []string
	wildcards                                 bool
	status                                    int
}

func tarCommand(c *core.Ctx) int {
	if len(c.Args) > 0 && !strings.HasPrefix(c.Args[0], "-") {
		c.Args = oldStyle(c.Args)
	}
	t := &archiver{c: c, dir: c.Dir}
	if !t.parse() {
		return 2
	}
	switch t.mode {
	case 'c', 'r', 'u':
		if len(t.names) == 0 {
			return c.Fail(2, "Cowardly refusing to create an empty archive\nTry 'tar --help' or 'tar --usage' for more information.")
		}
		return t.create()
	case 'x', 't', 'd':
		return t.extract()
	}
	return c.Usage(2, "You must specify one of the '-Acdtrux', '--delete' or '--test-label' options")
}

// oldStyle turns "tar xzf a.tgz" into "-x -z -f a.tgz".
func oldStyle(args []string) []string {
	var out []string
	rest := args[1:]
	for _, letter := range args[0] {
		out = append(out, "-"+string(letter))
		if strings.ContainsRune("fCTXbK", letter) && len(rest) > 0 {
			out = append(out, rest[0])
			rest = rest[1:]
		}
	}
	return append(out, rest...)
}

func (t *archiver) parse() bool {
	// -C holds for the operands after it, so options are read in order.
	args := t.c.Args
	take := func(i *int, attached string) string {
		if attached != "" {
			return attached
		}
		if *i+1 < len(args) {
			*i++
			return args[*i]
		}
		return ""
	}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if name, value, hasValue := strings.Cut(strings.TrimPrefix(arg, "--"), "="); strings.HasPrefix(arg, "--") && len(arg) > 2 {
			if !t.long(name, func() string {
				if hasValue {
					return value
				}
				return take(&i, "")
			}) {
				t.c.Usage(2, "unrecognized option '%s'", arg)
				return false
			}
			continue
		}
		if len(arg) < 2 || arg[0] != '-' {
			t.names = append(t.names, t.dir+"\x00"+arg)
			continue
		}
		for j := 1; j < len(arg); j++ {
			letter := arg[j]
			if strings.IndexByte("fCTXbI", letter) >= 0 {
				if !t.valued(letter, take(&i, arg[j+1:])) {
					return false
				}
				break
			}
			if !t.flag(letter) {
				t.c.Usage(2, "invalid option -- '%c'", letter)
				return false
			}
		}
	}
	return true
}

func (t *archiver) flag(letter byte) bool {
	switch letter {
	case 'c', 'x', 't', 'r', 'u', 'd':
		t.mode = letter
	case 'z':
		t.gzip = true
	case 'j':
		t.bzip = true
	case 'a':
		t.auto = true
	case 'v':
		t.verbose = true
	case 'k':
		t.keep = true
	case 'O':
		t.toStdout = true
	case 'h':
		t.follow = true
	case 'P':
		t.absolute = true
	case 'p', 'm', 'o', 'w', 'S', 'l', 'W', 'B', 'i', 'J':
	default:
		return false
	}
	return true
}

func (t *archiver) valued(letter byte, value string) bool {
	switch letter {
	case 'f':
		t.file = value
	case 'C':
		t.dir = core.Abs(t.dir, value)
		if info, err := core.Stat(t.dir); err != nil || !info.IsDir() {
			t.c.Errorf("%s: Cannot open: No such file or directory\ntar: Error is not recoverable: exiting now", value)
			return false
		}
	case 'T':
		data, err := t.read(value)
		if err != nil {
			t.c.Errorf("%s: Cannot open: %s", value, core.Reason(err))
			return false
		}
		for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			t.names = append(t.names, t.dir+"\x00"+line)
		}
	case 'X':
		data, _ := t.read(value)
		t.exclude = append(t.exclude, strings.Fields(string(data))...)
	}
	return true
}

func (t *archiver) long(name string, value func() string) bool {
	letters := map[string]byte{"create": 'c', "extract": 'x', "get": 'x', "list": 't', "append": 'r', "update": 'u', "gzip": 'z', "gunzip": 'z', "bzip2": 'j', "auto-compress": 'a', "verbose": 'v',
		"keep-old-files": 'k', "to-stdout": 'O', "dereference": 'h', "absolute-names": 'P', "preserve-permissions": 'p', "touch": 'm', "no-same-owner": 'o', "numeric-owner": 'p', "no-same-permissions": 'p', "overwrite": 'p'}
	if letter, ok := letters[name]; ok {
		return t.flag(letter)
	}
	switch name {
	case "file":
		return t.valued('f', value())
	case "directory":
		return t.valued('C', value())
	case "files-from":
		return t.valued('T', value())
	case "exclude-from":
		return t.valued('X', value())
	case "strip-components", "strip":
		fmt.Sscan(value(), &t.strip)
	case "exclude":
		t.exclude = append(t.exclude, value())
	case "wildcards":
		t.wildcards = true
	case "owner", "group", "mode", "mtime", "sort", "format", "transform", "warning":
		value()
	case "no-recursion", "exclude-vcs", "no-wildcards", "totals":
	default:
		return false
	}
	return true
}

func (t *archiver) read(name string) ([]byte, error) {
	reader, err := t.c.Open(name)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}

func (t *archiver) excluded(name string) bool {
	for _, pattern := range t.exclude {
		matches := shell.Glob(strings.TrimSuffix(pattern, "/"), false)
		parts := strings.Split(strings.Trim(name, "/"), "/")
		for i := range parts {
			if matches(strings.Join(parts[i:], "/")) || matches(parts[i]) || matches(strings.Join(parts[:i+1], "/")) {
				return true
			}
		}
	}
	return false
}

func (t *archiver) fail(format string, args ...any) {
	t.c.Errorf(format, args...)
	t.status = 2
}

func (t *archiver) create() int {
	var raw bytes.Buffer
	if t.mode != 'c' && t.file != "" {
		if data, err := t.read(t.file); err == nil {
			raw.Write(bytes.TrimRight(data, "\x00"))
			for raw.Len()%512 != 0 {
				raw.WriteByte(0)
			}
		}
	}
	writer := tar.NewWriter(&raw)
	for _, item := range t.names {
		dir, name, _ := strings.Cut(item, "\x00")
		t.add(writer, dir, name)
	}
	writer.Close()
	if t.auto && (strings.HasSuffix(t.file, "gz")) {
		t.gzip = true
	}
	data := raw.Bytes()
	if t.gzip {
		var packed bytes.Buffer
		compressor := gzip.NewWriter(&packed)
		compressor.Write(data)
		compressor.Close()
		data = packed.Bytes()
	}
	if t.file == "" || t.file == "-" {
		t.c.Out.Write(data)
	} else if file, err := t.c.Create(t.file); err != nil {
		return t.c.Fail(2, "%s: Cannot open: %s\ntar: Error is not recoverable: exiting now", t.file, core.Reason(err))
	} else {
		file.Write(data)
		file.Close()
	}
	if t.status != 0 {
		t.c.Errorf("Exiting with failure status due to previous errors")
	}
	return t.status
}

func (t *archiver) say(text string) {
	if !t.verbose {
		return
	}
	if t.mode == 'c' && (t.file == "" || t.file == "-") || t.toStdout {
		io.WriteString(t.c.Stderr, text+"\n")
		return
	}
	t.c.Out.WriteString(text + "\n")
}

func (t *archiver) add(writer *tar.Writer, dir, name string) {
	full := strings.TrimRight(core.Abs(dir, name), "/")
	look := core.Lstat
	if t.follow {
		look = core.Stat
	}
	info, err := look(full)
	if err != nil {
		t.fail("%s: Cannot stat: %s", name, core.Reason(err))
		return
	}
	if t.excluded(name) {
		return
	}
	stored := name
	if !t.absolute {
		stored = strings.TrimLeft(name, "/")
	}
	header := &tar.Header{Name: stored, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Truncate(time.Second), Uid: 1000, Gid: 1000, Uname: core.UserName, Gname: core.UserName, Format: tar.FormatGNU}
	switch {
	case info.IsDir():
		header.Typeflag = tar.TypeDir
		header.Name = strings.TrimRight(stored, "/") + "/"
	case info.Mode()&fs.ModeSymlink != 0:
		header.Typeflag = tar.TypeSymlink
		header.Linkname, _ = os.Readlink(full)
	default:
		header.Typeflag = tar.TypeReg
		header.Size = info.Size()
	}
	t.say(header.Name)
	if err := writer.WriteHeader(header); err != nil {
		t.fail("%s: %s", name, err)
		return
	}
	switch header.Typeflag {
	case tar.TypeReg:
		if file, err := os.Open(full); err == nil {
			io.CopyN(writer, file, header.Size)
			file.Close()
		}
	case tar.TypeDir:
		entries, _ := core.ReadDir(full)
		for _, entry := range entries {
			t.c.Check()
			t.add(writer, dir, strings.TrimRight(name, "/")+"/"+entry.Name())
		}
	}
}

func (t *archiver) open() (io.Reader, bool) {
	input := t.file
	if input == "" {
		input = "-"
	}
	data, err := t.read(input)
	if err != nil {
		t.fail("%s: Cannot open: %s\ntar: Error is not recoverable: exiting now", input, core.Reason(err))
		return nil, false
	}
	switch {
	case bytes.HasPrefix(data, []byte("\x1f\x8b")):
		reader, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.fail("Child returned status 1\ntar: Error is not recoverable: exiting now")
			return nil, false
		}
		return reader, true
	case bytes.HasPrefix(data, []byte("BZh")):
		return bzip2.NewReader(bytes.NewReader(data)), true
	case t.gzip:
		io.WriteString(t.c.Stderr, "\ngzip: stdin: not in gzip format\n")
		t.fail("Child returned status 1\ntar: Error is not recoverable: exiting now")
		return nil, false
	}
	return bytes.NewReader(data), true
}

func (t *archiver) extract() int {
	source, ok := t.open()
	if !ok {
		return 2
	}
	reader := tar.NewReader(source)
	found := map[string]bool{}
	for {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.fail("This does not look like a tar archive\ntar: Exiting with failure status due to previous errors")
			return 2
		}
		t.c.Check()
		if !t.wanted(header.Name, found) || t.excluded(header.Name) {
			continue
		}
		t.entry(header, reader)
	}
	for _, item := range t.names {
		_, name, _ := strings.Cut(item, "\x00")
		if !found[name] {
			t.fail("%s: Not found in archive", name)
		}
	}
	if t.status != 0 {
		t.c.Errorf("Exiting with failure status due to previous errors")
	}
	return t.status
}

func (t *archiver) wanted(name string, found map[string]bool) bool {
	if len(t.names) == 0 {
		return true
	}
	clean := strings.TrimRight(name, "/")
	for _, item := range t.names {
		_, wanted, _ := strings.Cut(item, "\x00")
		trimmed := strings.TrimRight(wanted, "/")
		if clean == trimmed || strings.HasPrefix(clean, trimmed+"/") || t.wildcards && shell.Glob(trimmed, false)(clean) {
			found[wanted] = true
			return true
		}
	}
	return false
}

func (t *archiver) entry(header *tar.Header, reader io.Reader) {
	if t.mode == 't' {
		if t.verbose {
			t.c.Out.WriteString(longEntry(header) + "\n")
		} else {
			t.c.Out.WriteString(header.Name + "\n")
		}
		return
	}
	name := header.Name
	for i := 0; i < t.strip; i++ {
		_, rest, ok := strings.Cut(strings.TrimLeft(name, "/"), "/")
		if !ok {
			return
		}
		name = rest
	}
	if name == "" {
		return
	}
	t.say(header.Name)
	if t.toStdout {
		if header.Typeflag == tar.TypeReg {
			io.Copy(t.c.Out, reader)
		}
		return
	}
	clean := path.Clean("/" + name)
	if clean != path.Clean("/"+strings.TrimSuffix(name, "/")) || strings.Contains("/"+name+"/", "/../") {
		t.fail("%s: Member name contains '..'", name)
		return
	}
	t.place(header, reader, path.Join(t.dir, clean))
}

func (t *archiver) place(header *tar.Header, reader io.Reader, full string) {
	var err error
	switch header.Typeflag {
	case tar.TypeDir:
		err = core.MkdirAll(full)
	case tar.TypeSymlink:
		core.MkdirAll(path.Dir(full))
		core.Remove(full)
		err = os.Symlink(header.Linkname, full)
	case tar.TypeLink:
		core.MkdirAll(path.Dir(full))
		err = os.Link(path.Join(t.dir, path.Clean("/"+header.Linkname)), full)
	default:
		if _, statErr := core.Lstat(full); statErr == nil {
			if t.keep {
				t.fail("%s: Cannot open: File exists", header.Name)
				return
			}
			core.Remove(full)
		}
		core.MkdirAll(path.Dir(full))
		var file core.File
		if file, err = t.c.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_TRUNC); err == nil {
			_, err = io.Copy(struct{ io.Writer }{file}, reader)
			file.Close()
			os.Chtimes(full, header.ModTime, header.ModTime)
		}
	}
	if err != nil {
		t.fail("%s: Cannot open: %s", header.Name, core.Reason(err))
		return
	}
	if header.Typeflag != tar.TypeSymlink {
		core.SetMode(full, core.FileMode(header.Mode)&0o777)
	}
}

func longEntry(header *tar.Header) string {
	info := header.FileInfo()
	kind := map[byte]string{tar.TypeDir: "d", tar.TypeSymlink: "l"}[header.Typeflag]
	if kind == "" {
		kind = "-"
	}
	line := fmt.Sprintf("%s%s %s/%s %9d %s %s", kind, info.Mode().Perm().String()[1:], header.Uname, header.Gname, header.Size, strftime.Format("%Y-%m-%d %H:%M", header.ModTime.UTC()), header.Name)
	if header.Linkname != "" {
		line += " -> " + header.Linkname
	}
	return line
}
