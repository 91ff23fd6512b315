// Package archive holds tar, gzip, zip and their relatives.
package archive

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "gzip", Summary: "Compress files.", Usage: "gzip [-cdfklnqrtv1..9] [-S SUFFIX] [file...]", Run: gzipCommand},
		&core.Command{Name: "gunzip", Summary: "Decompress files.", Usage: "gunzip [-cfklqtv] [file...]", Run: gzipCommand},
		&core.Command{Name: "zcat", Summary: "Decompress files to standard output.", Usage: "zcat [file...]", Run: gzipCommand},
	)
}

type zipper struct {
	c                                       *core.Ctx
	decompress, toStdout, keep, force, test bool
	verbose, quiet, list                    bool
	level                                   int
	suffix                                  string
	status                                  int
}

func gzipCommand(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "cdfklnNqrtv123456789S:", Long: "stdout/c to-stdout/c decompress/d uncompress/d force/f keep/k list/l no-name/n quiet/q recursive/r test/t verbose/v fast/1 best/9 suffix=/S"}.Parse(c)
	if !ok {
		return 1
	}
	z := &zipper{c: c, level: gzip.DefaultCompression, suffix: ".gz", decompress: c.Name != "gzip", toStdout: c.Name == "zcat"}
	for _, option := range options {
		switch option.Name {
		case "c":
			z.toStdout = true
		case "d":
			z.decompress = true
		case "f":
			z.force = true
		case "k":
			z.keep = true
		case "l":
			z.list = true
		case "t":
			z.test, z.decompress = true, true
		case "v":
			z.verbose = true
		case "q":
			z.quiet = true
		case "S":
			z.suffix = option.Value
		case "1", "2", "3", "4", "5", "6", "7", "8", "9":
			z.level = int(option.Name[0] - '0')
		}
	}
	if len(names) == 0 {
		names = []string{"-"}
	}
	for _, name := range names {
		z.one(name)
	}
	return z.status
}

func (z *zipper) fail(format string, args ...any) {
	z.c.Errorf(format, args...)
	z.status = 1
}

func (z *zipper) one(name string) {
	if name != "-" && z.decompress && !strings.HasSuffix(name, z.suffix) && !strings.HasSuffix(name, ".tgz") && !z.toStdout {
		if _, err := core.Stat(z.c.Path(name)); err != nil {
			if _, err := core.Stat(z.c.Path(name + z.suffix)); err == nil {
				name += z.suffix
			}
		} else {
			z.fail("%s: unknown suffix -- ignored", name)
			z.status = 2
			return
		}
	}
	if z.toStdout && name != "-" {
		if _, err := core.Stat(z.c.Path(name)); err != nil && z.decompress {
			name += z.suffix
		}
	}
	if info, err := core.Stat(z.c.Path(name)); name != "-" && err == nil && info.IsDir() {
		z.fail("%s is a directory -- ignored", name)
		z.status = 2
		return
	}
	reader, err := z.c.Open(name)
	if err != nil {
		z.fail("%s: %s", name, core.Reason(err))
		return
	}
	data, err := io.ReadAll(reader)
	reader.Close()
	if err != nil {
		z.fail("%s: %s", name, core.Reason(err))
		return
	}
	if !z.decompress && !z.list {
		z.compress(name, data)
		return
	}
	plain, err := inflate(data)
	if err != nil {
		what := name
		if name == "-" {
			what = "stdin"
		}
		z.fail("%s: %s", what, gzipProblem(err))
		return
	}
	if z.list {
		z.c.Out.WriteString("         compressed        uncompressed  ratio uncompressed_name\n")
		return
	}
	if z.test {
		return
	}
	target := strings.TrimSuffix(name, z.suffix)
	if strings.HasSuffix(name, ".tgz") {
		target = strings.TrimSuffix(name, ".tgz") + ".tar"
	}
	z.write(name, target, plain)
}

func gzipProblem(err error) string {
	switch err {
	case gzip.ErrHeader:
		return "not in gzip format"
	case io.ErrUnexpectedEOF, io.EOF:
		return "unexpected end of file"
	}
	return "invalid compressed data--format violated"
}

func inflate(data []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}

func (z *zipper) compress(name string, data []byte) {
	if strings.HasSuffix(name, z.suffix) && !z.toStdout {
		z.fail("%s already has %s suffix -- unchanged", name, z.suffix)
		z.status = 2
		return
	}
	var out bytes.Buffer
	writer, _ := gzip.NewWriterLevel(&out, z.level)
	writer.Write(data)
	writer.Close()
	z.write(name, name+z.suffix, out.Bytes())
}

func (z *zipper) write(name, target string, data []byte) {
	if z.toStdout || name == "-" {
		z.c.Out.Write(data)
		return
	}
	if _, err := core.Stat(z.c.Path(target)); err == nil && !z.force {
		z.fail("%s already exists; not overwritten", target)
		z.status = 2
		return
	}
	file, err := z.c.Create(target)
	if err == nil {
		_, err = file.Write(data)
		file.Close()
	}
	if err != nil {
		z.fail("%s: %s", target, core.Reason(err))
		return
	}
	if !z.keep {
		core.Remove(z.c.Path(name))
	}
	if z.verbose {
		io.WriteString(z.c.Stderr, name+":\t -- replaced with "+target+"\n")
	}
}
