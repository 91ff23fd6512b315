package files

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "cp", Summary: "Copy files and directories.", Usage: "cp [-adfilnpPrRsuvTL] [-t DIR] source... destination", Run: cp},
		&core.Command{Name: "mv", Summary: "Move or rename files.", Usage: "mv [-finuvT] [-t DIR] source... destination", Run: mv},
		&core.Command{Name: "install", Summary: "Copy files and set attributes.", Usage: "install [-dD] [-m MODE] source... destination", Run: install},
	)
}

type copier struct {
	c                                          *core.Ctx
	recursive, noClobber, update, verbose      bool
	preserve, keepLinks, force, symbolic, hard bool
	plainTarget, backup, parents               bool
	into                                       string
	status                                     int
}

const copyShort = "adfilnpPrRsuvTLHbt:S:x"
const copyLong = "archive/a force/f interactive/i link/l no-clobber/n preserve?/p no-dereference/P recursive/r symbolic-link/s update?/u verbose/v no-target-directory/T dereference/L backup?/b target-directory=/t suffix=/S parents one-file-system/x no-preserve= reflink? sparse="

func parseCopy(c *core.Ctx) (*copier, []string, bool) {
	options, names, ok := core.Options{Short: copyShort, Long: copyLong}.Parse(c)
	if !ok {
		return nil, nil, false
	}
	p := &copier{c: c}
	for _, option := range options {
		switch option.Name {
		case "a":
			p.recursive, p.preserve, p.keepLinks = true, true, true
		case "d", "P":
			p.keepLinks = true
		case "L":
			p.keepLinks = false
		case "r", "R":
			p.recursive, p.keepLinks = true, true
		case "f":
			p.force, p.noClobber = true, false
		case "n":
			p.noClobber = true
		case "p":
			p.preserve = true
		case "s":
			p.symbolic = true
		case "l":
			p.hard = true
		case "u":
			p.update = true
		case "v":
			p.verbose = true
		case "T":
			p.plainTarget = true
		case "t":
			p.into = option.Value
		case "b":
			p.backup = true
		case "parents":
			p.parents = true
		}
	}
	if p.into == "" {
		switch len(names) {
		case 0:
			c.Usage(1, "missing file operand")
			return nil, nil, false
		case 1:
			c.Usage(1, "missing destination file operand after '%s'", names[0])
			return nil, nil, false
		}
		p.into, names = names[len(names)-1], names[:len(names)-1]
	}
	return p, names, true
}

// targets calls fn for each source with its destination name.
func (p *copier) targets(names []string, fn func(from, to string)) int {
	info, err := core.Stat(p.c.Path(p.into))
	isDir := err == nil && info.IsDir() && !p.plainTarget
	if len(names) > 1 && !isDir {
		return p.c.Fail(1, "target '%s': %s", p.into, map[bool]string{true: "Not a directory", false: "No such file or directory"}[err == nil])
	}
	if !isDir && strings.HasSuffix(p.into, "/") && err != nil {
		source, statErr := core.Stat(p.c.Path(names[0]))
		if statErr == nil && !source.IsDir() {
			return p.c.Fail(1, "cannot create regular file '%s': Not a directory", p.into)
		}
	}
	for _, name := range names {
		to := p.into
		if isDir {
			base := path.Base(strings.TrimRight(name, "/"))
			if p.parents {
				base = name
			}
			if base == ".." || base == "." {
				base = ""
			}
			to = strings.TrimRight(p.into, "/") + "/" + base
			if p.into == "/" {
				to = "/" + base
			}
		}
		fn(name, strings.TrimSuffix(to, "/"))
	}
	return p.status
}

func (p *copier) fail(format string, args ...any) {
	p.c.Errorf(format, args...)
	p.status = 1
}

func cp(c *core.Ctx) int {
	p, names, ok := parseCopy(c)
	if !ok {
		return 1
	}
	return p.targets(names, func(from, to string) {
		if p.parents {
			core.MkdirAll(path.Dir(c.Path(to)))
		}
		p.copy(from, to, true)
	})
}

func (p *copier) skip(to string, info fs.FileInfo) bool {
	existing, err := core.Stat(p.c.Path(to))
	if err != nil {
		return false
	}
	return p.noClobber || p.update && !info.ModTime().After(existing.ModTime())
}

func (p *copier) copy(from, to string, top bool) {
	stat := core.Lstat
	if !p.keepLinks {
		stat = core.Stat
	}
	if top && !p.keepLinks || strings.HasSuffix(from, "/") {
		stat = core.Stat
	}
	info, err := stat(p.c.Path(from))
	if err != nil {
		p.fail("cannot stat '%s': %s", from, core.Reason(err))
		return
	}
	switch {
	case info.IsDir():
		p.copyDir(from, to, info)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(p.c.Path(from))
		if err == nil {
			core.Remove(p.c.Path(to))
			err = symlink(p.c, target, p.c.Path(to), false)
		}
		if err != nil {
			p.fail("cannot create symbolic link '%s': %s", to, core.Reason(err))
		}
	default:
		p.copyFile(from, to, info)
	}
}

func (p *copier) copyFile(from, to string, info fs.FileInfo) {
	if p.skip(to, info) {
		return
	}
	if same, err := core.Stat(p.c.Path(to)); err == nil {
		if same.IsDir() {
			p.fail("cannot overwrite directory '%s' with non-directory", to)
			return
		}
		if real, _ := core.RealPath(p.c.Path(to)); real == mustReal(p.c.Path(from)) {
			p.fail("'%s' and '%s' are the same file", from, to)
			return
		}
		if p.backup {
			core.Rename(p.c.Path(to), p.c.Path(to)+"~")
		}
	}
	var err error
	switch {
	case p.symbolic:
		err = symlink(p.c, from, p.c.Path(to), false)
	case p.hard:
		err = os.Link(p.c.Path(from), p.c.Path(to))
	default:
		err = p.transfer(from, to, info)
	}
	if err != nil {
		p.fail("cannot create regular file '%s': %s", to, core.Reason(err))
		return
	}
	if p.verbose {
		p.c.Out.WriteString("'" + from + "' -> '" + to + "'\n")
	}
}

func mustReal(name string) string {
	real, err := core.RealPath(name)
	if err != nil {
		return name
	}
	return real
}

func (p *copier) transfer(from, to string, info fs.FileInfo) error {
	_, existed := core.Stat(p.c.Path(to))
	if err := copyBytes(p.c, from, to); err != nil {
		return err
	}
	full := p.c.Path(to)
	if p.preserve {
		setTimes(full, info.ModTime(), info.ModTime())
		core.SetMode(full, info.Mode().Perm())
	} else if existed != nil {
		core.SetMode(full, info.Mode().Perm()&^core.Umask)
	}
	return nil
}

func (p *copier) copyDir(from, to string, info fs.FileInfo) {
	if !p.recursive {
		p.fail("-r not specified; omitting directory '%s'", from)
		return
	}
	source, target := strings.TrimRight(p.c.Path(from), "/"), strings.TrimRight(p.c.Path(to), "/")
	if target == source || strings.HasPrefix(target, source+"/") {
		p.fail("cannot copy a directory, '%s', into itself, '%s'", from, to)
		return
	}
	if existing, err := core.Stat(target); err == nil {
		if !existing.IsDir() {
			p.fail("cannot overwrite non-directory '%s' with directory '%s'", to, from)
			return
		}
	} else if err := core.Mkdir(target, info.Mode().Perm()); err != nil {
		p.fail("cannot create directory '%s': %s", to, core.Reason(err))
		return
	}
	if p.verbose {
		p.c.Out.WriteString("'" + from + "' -> '" + to + "'\n")
	}
	entries, err := core.ReadDir(source)
	if err != nil {
		p.fail("cannot access '%s': %s", from, core.Reason(err))
		return
	}
	for _, entry := range entries {
		p.c.Check()
		p.copy(strings.TrimRight(from, "/")+"/"+entry.Name(), to+"/"+entry.Name(), false)
	}
	if p.preserve {
		setTimes(target, info.ModTime(), info.ModTime())
	}
}

func mv(c *core.Ctx) int {
	p, names, ok := parseCopy(c)
	if !ok {
		return 1
	}
	p.recursive, p.keepLinks, p.preserve = true, true, true
	return p.targets(names, p.move)
}

func (p *copier) move(from, to string) {
	source, target := strings.TrimRight(p.c.Path(from), "/"), p.c.Path(to)
	info, err := core.Lstat(source)
	if err != nil {
		p.fail("cannot stat '%s': %s", from, core.Reason(err))
		return
	}
	existing, err := core.Lstat(target)
	if err == nil {
		switch {
		case p.skip(to, info):
			return
		case source == target:
			p.fail("'%s' and '%s' are the same file", from, to)
			return
		case existing.IsDir() && !info.IsDir():
			p.fail("cannot overwrite directory '%s' with non-directory", to)
			return
		case !existing.IsDir() && info.IsDir():
			p.fail("cannot overwrite non-directory '%s' with directory '%s'", to, from)
			return
		}
		if p.backup {
			core.Rename(target, target+"~")
		}
	}
	if info.IsDir() && strings.HasPrefix(target, source+"/") {
		p.fail("cannot move '%s' to a subdirectory of itself, '%s'", from, to)
		return
	}
	err = core.Rename(source, target)
	if err != nil && (errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP)) {
		before := p.status
		wasVerbose := p.verbose
		p.verbose = false
		p.copy(from, to, false)
		p.verbose = wasVerbose
		if p.status == before {
			(&remover{c: p.c, recursive: true}).remove(from)
		}
		err = nil
	}
	if err != nil {
		p.fail("cannot move '%s' to '%s': %s", from, to, core.Reason(err))
		return
	}
	if p.verbose {
		p.c.Out.WriteString("renamed '" + from + "' -> '" + to + "'\n")
	}
}

func install(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "dDm:vpcT", Long: "directory/d mode=/m verbose/v"}.Parse(c)
	if !ok {
		return 1
	}
	mode, makeDirs, leading := core.FileMode(0o755), false, false
	for _, option := range options {
		switch option.Name {
		case "d":
			makeDirs = true
		case "D":
			leading = true
		case "m":
			mode, _ = core.ParseMode(option.Value, 0, false)
		}
	}
	if makeDirs {
		for _, name := range names {
			if err := core.MkdirAll(c.Path(name)); err != nil {
				return c.Fail(1, "cannot create directory '%s': %s", name, core.Reason(err))
			}
		}
		return 0
	}
	if len(names) < 2 {
		return c.Usage(1, "missing file operand")
	}
	p := &copier{c: c, into: names[len(names)-1]}
	if leading {
		core.MkdirAll(path.Dir(c.Path(p.into)))
	}
	return p.targets(names[:len(names)-1], func(from, to string) {
		p.copy(from, to, true)
		core.SetMode(c.Path(to), mode)
	})
}
