package files

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

func looksLikeJSON(data []byte) bool { return json.Valid(data) }

func init() {
	core.Register(
		&core.Command{Name: "tree", Summary: "List directories as a tree.", Usage: "tree [-adfiFhsp] [-L DEPTH] [-I GLOB] [-P GLOB] [--noreport] [--dirsfirst] [directory...]", Run: tree},
		&core.Command{Name: "du", Summary: "Estimate file space usage.", Usage: "du [-abchkmsS] [-d DEPTH] [--max-depth=N] [--apparent-size] [--exclude=GLOB] [file...]", Run: du},
	)
}

type treePrinter struct {
	c                                    *core.Ctx
	all, dirsOnly, full, noIndent, slash bool
	human, size, perms, dirsFirst        bool
	depth                                int
	ignore, include                      []string
	dirs, files                          int
}

func tree(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "adfiFhspL:I:P:Nn", Long: "noreport dirsfirst prune charset= gitignore fromfile sort="}.Parse(c)
	if !ok {
		return 1
	}
	t := &treePrinter{c: c, depth: -1}
	report := true
	for _, option := range options {
		switch option.Name {
		case "a":
			t.all = true
		case "d":
			t.dirsOnly = true
		case "f":
			t.full = true
		case "i":
			t.noIndent = true
		case "F":
			t.slash = true
		case "h":
			t.human = true
		case "s":
			t.size = true
		case "p":
			t.perms = true
		case "L":
			depth, err := strconv.Atoi(option.Value)
			if err != nil || depth < 1 {
				return c.Fail(1, "Invalid level, must be greater than 0.")
			}
			t.depth = depth
		case "I":
			t.ignore = append(t.ignore, strings.Split(option.Value, "|")...)
		case "P":
			t.include = append(t.include, strings.Split(option.Value, "|")...)
		case "noreport":
			report = false
		case "dirsfirst":
			t.dirsFirst = true
		}
	}
	if len(names) == 0 {
		names = []string{"."}
	}
	status := 0
	for _, name := range names {
		info, err := core.Stat(c.Path(name))
		if err != nil || !info.IsDir() {
			c.Out.WriteString(name + "  [error opening dir]\n")
			status = 2
			continue
		}
		t.dirs++
		c.Out.WriteString(name + "\n")
		t.walk(name, "", 1)
	}
	if report {
		dirs := fmt.Sprintf("%d director%s", t.dirs, map[bool]string{true: "y", false: "ies"}[t.dirs == 1])
		if t.dirsOnly {
			fmt.Fprintf(c.Out, "\n%s\n", dirs)
		} else {
			fmt.Fprintf(c.Out, "\n%s, %d file%s\n", dirs, t.files, map[bool]string{true: "", false: "s"}[t.files == 1])
		}
	}
	return status
}

func matchesAny(patterns []string, name string) bool {
	for _, pattern := range patterns {
		if matched, _ := path.Match(strings.TrimSuffix(pattern, "/"), name); matched {
			return true
		}
	}
	return false
}

func (t *treePrinter) entries(dir string) []fs.DirEntry {
	found, _ := core.ReadDir(t.c.Path(dir))
	var kept, later []fs.DirEntry
	for _, one := range found {
		name := one.Name()
		if !t.all && strings.HasPrefix(name, ".") || matchesAny(t.ignore, name) || t.dirsOnly && !one.IsDir() {
			continue
		}
		if len(t.include) > 0 && !one.IsDir() && !matchesAny(t.include, name) {
			continue
		}
		if t.dirsFirst && !one.IsDir() {
			later = append(later, one)
		} else {
			kept = append(kept, one)
		}
	}
	return append(kept, later...)
}

func (t *treePrinter) walk(dir, indent string, level int) {
	if t.depth >= 0 && level > t.depth {
		return
	}
	entries := t.entries(dir)
	for i, one := range entries {
		t.c.Check()
		branch, next := "├── ", "│   "
		if i == len(entries)-1 {
			branch, next = "└── ", "    "
		}
		if t.noIndent {
			branch, next = "", ""
		}
		name := strings.TrimRight(dir, "/") + "/" + one.Name()
		t.c.Out.WriteString(indent + branch + t.label(name, one) + "\n")
		if one.IsDir() {
			t.dirs++
			t.walk(name, indent+next, level+1)
		} else {
			t.files++
		}
	}
}

func (t *treePrinter) label(name string, one fs.DirEntry) string {
	label := one.Name()
	if t.full {
		label = name
	}
	info, err := core.Lstat(t.c.Path(name))
	if err == nil && (t.perms || t.size || t.human) {
		var columns []string
		if t.perms {
			columns = append(columns, modeText(info.Mode()))
		}
		if t.human {
			columns = append(columns, fmt.Sprintf("%4s", core.HumanSize(info.Size(), false)))
		} else if t.size {
			columns = append(columns, fmt.Sprintf("%11d", info.Size()))
		}
		label = "[" + strings.Join(columns, " ") + "]  " + label
	}
	if one.Type()&fs.ModeSymlink != 0 {
		if target, err := os.Readlink(t.c.Path(name)); err == nil {
			label += " -> " + target
		}
	}
	if t.slash && one.IsDir() {
		label += "/"
	}
	return label
}

type usage struct {
	c                                           *core.Ctx
	all, bytes, human, total, summary, separate bool
	depth                                       int
	unit                                        int64
	exclude                                     []string
	status                                      int
}

func du(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "abchkmsSd:B:xLl0", Long: "all/a bytes/b total/c human-readable/h summarize/s max-depth=/d apparent-size exclude= separate-dirs/S block-size=/B si one-file-system/x time"}.Parse(c)
	if !ok {
		return 1
	}
	u := &usage{c: c, depth: -1, unit: 1024}
	apparent := false
	for _, option := range options {
		switch option.Name {
		case "a":
			u.all = true
		case "b":
			u.unit, apparent = 1, true
		case "c":
			u.total = true
		case "h":
			u.human = true
		case "k":
			u.unit = 1024
		case "m":
			u.unit = 1 << 20
		case "s":
			u.depth = 0
		case "S":
			u.separate = true
		case "d":
			u.depth, _ = strconv.Atoi(option.Value)
		case "apparent-size":
			apparent = true
		case "exclude":
			u.exclude = append(u.exclude, option.Value)
		case "B":
			u.unit, _ = core.ParseSize(strings.TrimLeft(option.Value, " "))
			if u.unit == 0 {
				u.unit, _ = core.ParseSize("1" + option.Value)
			}
		}
	}
	u.bytes = apparent
	if len(names) == 0 {
		names = []string{"."}
	}
	sum := int64(0)
	for _, name := range names {
		sum += u.visit(name, 0)
	}
	if u.total {
		u.print(sum, "total")
	}
	return u.status
}

func (u *usage) print(size int64, name string) {
	shown := strconv.FormatInt((size+u.unit-1)/u.unit, 10)
	if u.human {
		shown = core.HumanSize(size, false)
	}
	u.c.Out.WriteString(shown + "\t" + name + "\n")
}

func (u *usage) visit(name string, level int) int64 {
	info, err := core.Lstat(u.c.Path(name))
	if err != nil {
		u.c.Errorf("cannot access '%s': %s", name, core.Reason(err))
		u.status = 1
		return 0
	}
	size := blocksOf(info) * 1024
	if u.bytes {
		size = info.Size()
		if info.IsDir() {
			size = 4096
		}
	}
	if info.IsDir() {
		entries, _ := core.ReadDir(u.c.Path(name))
		for _, one := range entries {
			u.c.Check()
			if !matchesAny(u.exclude, one.Name()) {
				below := u.visit(strings.TrimRight(name, "/")+"/"+one.Name(), level+1)
				if !u.separate || !one.IsDir() {
					size += below
				}
			}
		}
	}
	if (info.IsDir() || u.all || level == 0) && (u.depth < 0 || level <= u.depth) {
		u.print(size, name)
	}
	return size
}
