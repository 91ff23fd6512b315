// Package files holds the commands that look at and change the file system.
package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "mkdir", Summary: "Make directories.", Usage: "mkdir [-pv] [-m MODE] directory...", Run: mkdir},
		&core.Command{Name: "rmdir", Summary: "Remove empty directories.", Usage: "rmdir [-pv] [--ignore-fail-on-non-empty] directory...", Run: rmdir},
		&core.Command{Name: "rm", Summary: "Remove files or directories.", Usage: "rm [-dfiIrRv] file...", Run: rm},
		&core.Command{Name: "ln", Summary: "Make links between files.", Usage: "ln [-sfnrvT] target... link", Run: ln},
		&core.Command{Name: "unlink", Summary: "Remove one file.", Usage: "unlink file", Run: unlink},
	)
}

func mkdir(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "pvm:", Long: "parents/p verbose/v mode=/m"}.Parse(c)
	if !ok {
		return 1
	}
	parents, verbose := false, false
	mode := 0o777 &^ core.Umask
	for _, option := range options {
		switch option.Name {
		case "p":
			parents = true
		case "v":
			verbose = true
		case "m":
			if mode, ok = core.ParseMode(option.Value, 0o777, true); !ok {
				return c.Fail(1, "invalid mode ‘%s’", option.Value)
			}
		}
	}
	if len(names) == 0 {
		return c.Usage(1, "missing operand")
	}
	status := 0
	for _, name := range names {
		full := strings.TrimRight(c.Path(name), "/")
		if full == "" {
			full = "/"
		}
		var err error
		if parents {
			if err = core.MkdirAll(full); err == nil && mode != 0o777&^core.Umask {
				core.SetMode(full, mode)
			}
		} else {
			err = core.Mkdir(full, mode)
		}
		if err != nil {
			c.Errorf("cannot create directory ‘%s’: %s", name, core.Reason(err))
			status = 1
		} else if verbose {
			c.Out.WriteString("mkdir: created directory '" + name + "'\n")
		}
	}
	return status
}

func rmdir(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "pv", Long: "parents/p verbose/v ignore-fail-on-non-empty/i"}.Parse(c)
	if !ok {
		return 1
	}
	on := map[string]bool{}
	for _, option := range options {
		on[option.Name] = true
	}
	if len(names) == 0 {
		return c.Usage(1, "missing operand")
	}
	status := 0
	for _, name := range names {
		for name != "" && name != "." && name != "/" {
			if err := removeDir(strings.TrimRight(c.Path(name), "/")); err != nil {
				if !(on["i"] && errors.Is(err, syscall.ENOTEMPTY)) {
					c.Errorf("failed to remove '%s': %s", name, core.Reason(err))
					status = 1
				}
				break
			}
			if !on["p"] {
				break
			}
			name = path.Dir(strings.TrimRight(name, "/"))
		}
	}
	return status
}

func removeDir(full string) error {
	info, err := core.Lstat(full)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return syscall.ENOTDIR
	}
	if entries, err := core.ReadDir(full); err == nil && len(entries) > 0 {
		return syscall.ENOTEMPTY
	}
	return core.Remove(full)
}

type remover struct {
	c                         *core.Ctx
	recursive, force, verbose bool
	dirs                      bool
	status                    int
}

func rm(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "dfiIrRv", Long: "dir/d force/f interactive?/i recursive/r verbose/v preserve-root? no-preserve-root one-file-system"}.Parse(c)
	if !ok {
		return 1
	}
	r := &remover{c: c}
	for _, option := range options {
		switch option.Name {
		case "r", "R":
			r.recursive = true
		case "f":
			r.force = true
		case "v":
			r.verbose = true
		case "d":
			r.dirs = true
		}
	}
	if len(names) == 0 {
		if r.force {
			return 0
		}
		return c.Usage(1, "missing operand")
	}
	for _, name := range names {
		base := path.Base(strings.TrimRight(name, "/"))
		if base == "." || base == ".." {
			c.Errorf("refusing to remove '.' or '..' directory: skipping '%s'", name)
			r.status = 1
			continue
		}
		if path.Clean(c.Path(name)) == "/" {
			c.Errorf("it is dangerous to operate recursively on '/'")
			r.status = 1
			continue
		}
		r.remove(name)
	}
	return r.status
}

func (r *remover) fail(name string, err error) {
	r.c.Errorf("cannot remove '%s': %s", name, core.Reason(err))
	r.status = 1
}

func (r *remover) remove(name string) {
	full := strings.TrimRight(r.c.Path(name), "/")
	info, err := core.Lstat(full)
	if err != nil {
		if !(r.force && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR))) {
			r.fail(name, err)
		}
		return
	}
	if info.IsDir() {
		if !r.recursive && !r.dirs {
			r.fail(name, syscall.EISDIR)
			return
		}
		entries, err := core.ReadDir(full)
		if err != nil {
			r.fail(name, err)
			return
		}
		if r.recursive {
			for _, entry := range entries {
				r.c.Check()
				r.remove(strings.TrimRight(name, "/") + "/" + entry.Name())
			}
		}
	}
	if err := core.Remove(full); err != nil {
		r.fail(name, err)
		return
	}
	if r.verbose {
		what := "removed '"
		if info.IsDir() {
			what = "removed directory '"
		}
		r.c.Out.WriteString(what + name + "'\n")
	}
}

func unlink(c *core.Ctx) int {
	if len(c.Args) != 1 {
		return c.Usage(1, "missing operand")
	}
	if err := core.Remove(c.Path(c.Args[0])); err != nil {
		return c.Fail(1, "cannot unlink '%s': %s", c.Args[0], core.Reason(err))
	}
	return 0
}

func ln(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "sfnrvTt:bi", Long: "symbolic/s force/f no-dereference/n relative/r verbose/v no-target-directory/T target-directory=/t"}.Parse(c)
	if !ok {
		return 1
	}
	on := map[string]bool{}
	into := ""
	for _, option := range options {
		on[option.Name] = true
		if option.Name == "t" {
			into = option.Value
		}
	}
	if len(names) == 0 {
		return c.Usage(1, "missing file operand")
	}
	targets := names
	if into == "" && len(names) > 1 {
		targets, into = names[:len(names)-1], names[len(names)-1]
	} else if into == "" {
		into = "."
	}
	status := 0
	for _, target := range targets {
		link := into
		info, err := core.Stat(c.Path(into))
		if on["n"] {
			info, err = core.Lstat(c.Path(into))
		}
		if err == nil && info.IsDir() && !on["T"] {
			link = strings.TrimRight(into, "/") + "/" + path.Base(target)
		} else if len(targets) > 1 {
			return c.Fail(1, "target '%s' is not a directory", into)
		}
		if !makeLink(c, target, link, on) {
			status = 1
		}
	}
	return status
}

func makeLink(c *core.Ctx, target, link string, on map[string]bool) bool {
	full := strings.TrimRight(c.Path(link), "/")
	kind := "hard"
	if on["s"] {
		kind = "symbolic"
	}
	if _, err := core.Lstat(full); err == nil {
		if !on["f"] {
			c.Errorf("failed to create %s link '%s': File exists", kind, link)
			return false
		}
		core.Remove(full)
	}
	var err error
	if on["s"] {
		err = symlink(c, target, full, on["r"])
	} else {
		info, statErr := core.Stat(c.Path(target))
		if statErr != nil {
			c.Errorf("failed to access '%s': %s", target, core.Reason(statErr))
			return false
		}
		if info.IsDir() {
			c.Errorf("%s: hard link not allowed for directory", target)
			return false
		}
		err = os.Link(c.Path(target), full)
	}
	if err != nil {
		c.Errorf("failed to create %s link '%s': %s", kind, link, core.Reason(err))
		return false
	}
	if on["v"] {
		arrow := " => "
		if on["s"] {
			arrow = " -> "
		}
		c.Out.WriteString("'" + link + "'" + arrow + "'" + target + "'\n")
	}
	return true
}

// symlink writes the target as given; WASI refuses absolute targets, so those become relative to the link.
func symlink(c *core.Ctx, target, link string, relative bool) error {
	if relative {
		target = Relative(path.Dir(link), c.Path(target))
	}
	err := os.Symlink(target, link)
	if err != nil && path.IsAbs(target) && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOENT)) {
		if again := os.Symlink(Relative(path.Dir(link), path.Clean(target)), link); again == nil {
			return nil
		}
	}
	return err
}

// Relative gives the path from a directory to a target, both absolute.
func Relative(from, to string) string {
	a := strings.Split(strings.Trim(path.Clean(from), "/"), "/")
	b := strings.Split(strings.Trim(path.Clean(to), "/"), "/")
	if a[0] == "" {
		a = nil
	}
	if b[0] == "" {
		b = nil
	}
	shared := 0
	for shared < len(a) && shared < len(b) && a[shared] == b[shared] {
		shared++
	}
	parts := make([]string, 0, len(a)+len(b))
	for range a[shared:] {
		parts = append(parts, "..")
	}
	parts = append(parts, b[shared:]...)
	if len(parts) == 0 {
		return "."
	}
	return strings.Join(parts, "/")
}

func copyBytes(c *core.Ctx, from, to string) error {
	source, err := c.OpenFile(from, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := c.Create(to)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{target}, struct{ io.Reader }{source}, make([]byte, 128<<10))
	if closeErr := target.Close(); err == nil {
		err = closeErr
	}
	return err
}

func setTimes(full string, access, modified time.Time) error {
	return os.Chtimes(full, access, modified)
}
