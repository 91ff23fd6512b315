package files

import (
	"fmt"
	"io/fs"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/strftime"
	"warmcell/toolbox/internal/text"
)

func init() {
	core.Register(
		&core.Command{Name: "ls", Summary: "List directory contents.", Usage: "ls [-1aAbBcCdFghiIklLmnNopQrRsStTuUvwxX] [--color] [--sort=WORD] [--time-style=STYLE] [file...]", Run: ls},
		&core.Command{Name: "dir", Summary: "List directory contents.", Usage: "dir [options] [file...]", Run: ls},
	)
}

type lister struct {
	c                                                   *core.Ctx
	all, almost, long, recursive, reverse, human, si    bool
	directory, classify, slash, inode, noGroup, noOwner bool
	blocks, numeric, commas, deref, dirsFirst, color    bool
	columns, across, zero, quote                        bool
	sortBy, timeStyle                                   string
	width                                               int
	status                                              int
	zone                                                *time.Location
	ignore                                              []string
}

type entry struct {
	name string
	full string
	info fs.FileInfo
	link string
}

func ls(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "1aAbBcCdfFgGhiIklLmnNopqQrRsStTuUvw:xXZHD", Long: "all/a almost-all/A human-readable/h si directory/d classify?/F file-type recursive/R reverse/r size/s inode/i numeric-uid-gid/n no-group/G dereference/L color? sort= time= time-style= full-time group-directories-first width=/w zero quote-name/Q format= indicator-style= hide= ignore=/hide literal/N hyperlink? block-size= ignore-backups/B"}.Parse(c)
	if !ok {
		return 2
	}
	l := &lister{c: c, width: 80, zone: strftime.Zone(c.Getenv("TZ")), sortBy: "name"}
	for _, option := range options {
		l.set(option)
	}
	if len(names) == 0 {
		names = []string{"."}
	}
	var files, dirs []entry
	for _, name := range names {
		info, err := core.Stat(c.Path(name))
		if err != nil || l.long && !strings.HasSuffix(name, "/") || l.directory {
			if link, linkErr := core.Lstat(c.Path(name)); linkErr == nil && (err != nil || link.Mode()&fs.ModeSymlink != 0 && (l.long || l.directory)) {
				info, err = link, nil
			}
		}
		if err != nil {
			c.Errorf("cannot access '%s': %s", name, core.Reason(err))
			l.status = 2
			continue
		}
		one := entry{name: name, full: c.Path(name), info: info}
		if info.IsDir() && !l.directory {
			dirs = append(dirs, one)
		} else {
			files = append(files, l.withLink(one))
		}
	}
	l.sort(files)
	l.sort(dirs)
	l.print(files)
	for i, dir := range dirs {
		if len(names) > 1 || l.recursive {
			if i > 0 || len(files) > 0 {
				c.Out.WriteByte('\n')
			}
			c.Out.WriteString(dir.name + ":\n")
		}
		l.list(dir)
	}
	return l.status
}

func (l *lister) set(option core.Option) {
	switch option.Name {
	case "a", "f":
		l.all = true
		if option.Name == "f" {
			l.sortBy = "none"
		}
	case "A":
		l.almost = true
	case "l":
		l.long, l.columns, l.commas = true, false, false
	case "o":
		l.long, l.noGroup = true, true
	case "g":
		l.long, l.noOwner = true, true
	case "n":
		l.long, l.numeric = true, true
	case "G":
		l.noGroup = true
	case "1":
		l.columns, l.commas = false, false
	case "C":
		l.columns = true
	case "x":
		l.columns, l.across = true, true
	case "m":
		l.commas = true
	case "d":
		l.directory = true
	case "F":
		l.classify = true
	case "p", "file-type":
		l.slash = true
	case "h":
		l.human = true
	case "si":
		l.human, l.si = true, true
	case "i":
		l.inode = true
	case "r":
		l.reverse = true
	case "R":
		l.recursive = true
	case "s":
		l.blocks = true
	case "L":
		l.deref = true
	case "Q":
		l.quote = true
	case "S":
		l.sortBy = "size"
	case "t":
		l.sortBy = "time"
	case "U":
		l.sortBy = "none"
	case "v":
		l.sortBy = "version"
	case "X":
		l.sortBy = "extension"
	case "sort":
		l.sortBy = option.Value
	case "w":
		l.width, _ = strconv.Atoi(option.Value)
	case "group-directories-first":
		l.dirsFirst = true
	case "color":
		l.color = option.Value == "always"
	case "time-style":
		l.timeStyle = option.Value
	case "full-time":
		l.long, l.timeStyle = true, "full-iso"
	case "zero":
		l.zero = true
	case "hide":
		l.ignore = append(l.ignore, option.Value)
	case "format":
		switch option.Value {
		case "long", "verbose":
			l.long = true
		case "commas":
			l.commas = true
		}
	}
}

func (l *lister) withLink(one entry) entry {
	if one.info.Mode()&fs.ModeSymlink != 0 {
		one.link, _ = os.Readlink(one.full)
		if l.deref {
			if info, err := core.Stat(one.full); err == nil {
				one.info, one.link = info, ""
			}
		}
	}
	return one
}

func (l *lister) list(dir entry) {
	found, err := core.ReadDir(dir.full)
	if err != nil {
		l.c.Errorf("cannot open directory '%s': %s", dir.name, core.Reason(err))
		l.status = max(l.status, 1)
		return
	}
	var entries []entry
	base := strings.TrimRight(dir.full, "/") + "/"
	if l.all {
		for _, name := range []string{".", ".."} {
			info, err := core.Stat(core.Abs(base, name))
			if err != nil {
				info = dir.info
			}
			entries = append(entries, entry{name: name, full: core.Abs(base, name), info: info})
		}
	}
	for _, one := range found {
		if strings.HasPrefix(one.Name(), ".") && !l.all && !l.almost {
			continue
		}
		info, err := core.Lstat(base + one.Name())
		if err != nil {
			continue
		}
		entries = append(entries, l.withLink(entry{name: one.Name(), full: base + one.Name(), info: info}))
	}
	l.sort(entries)
	if l.long || l.blocks {
		total := int64(0)
		for _, one := range entries {
			total += blocksOf(one.info)
		}
		size := strconv.FormatInt(total, 10)
		if l.human {
			size = core.HumanSize(total*1024, l.si)
		}
		l.c.Out.WriteString("total " + size + "\n")
	}
	l.print(entries)
	if !l.recursive {
		return
	}
	for _, one := range entries {
		if one.info.IsDir() && one.name != "." && one.name != ".." {
			one.name = strings.TrimRight(dir.name, "/") + "/" + one.name
			l.c.Out.WriteString("\n" + one.name + ":\n")
			l.list(one)
		}
	}
}

func blocksOf(info fs.FileInfo) int64 {
	if info.Mode()&fs.ModeSymlink != 0 {
		return 0
	}
	if info.IsDir() {
		return 4
	}
	return (info.Size() + 4095) / 4096 * 4
}

func (l *lister) sort(entries []entry) {
	if l.sortBy == "none" {
		return
	}
	less := func(i, j int) bool { return entries[i].name < entries[j].name }
	switch l.sortBy {
	case "size":
		less = func(i, j int) bool {
			if a, b := entries[i].info.Size(), entries[j].info.Size(); a != b {
				return a > b
			}
			return entries[i].name < entries[j].name
		}
	case "time":
		less = func(i, j int) bool {
			if a, b := entries[i].info.ModTime(), entries[j].info.ModTime(); !a.Equal(b) {
				return a.After(b)
			}
			return entries[i].name < entries[j].name
		}
	case "version":
		less = func(i, j int) bool { return text.VersionCompare(entries[i].name, entries[j].name) < 0 }
	case "extension":
		extension := func(name string) string {
			if at := strings.LastIndexByte(name, '.'); at > 0 {
				return name[at:]
			}
			return ""
		}
		less = func(i, j int) bool {
			if a, b := extension(entries[i].name), extension(entries[j].name); a != b {
				return a < b
			}
			return entries[i].name < entries[j].name
		}
	}
	ordered := less
	if l.reverse {
		ordered = func(i, j int) bool { return less(j, i) }
	}
	if l.dirsFirst {
		inner := ordered
		ordered = func(i, j int) bool {
			if a, b := entries[i].info.IsDir(), entries[j].info.IsDir(); a != b {
				return a
			}
			return inner(i, j)
		}
	}
	sort.SliceStable(entries, ordered)
}

func (l *lister) label(one entry) string {
	name := one.name
	if l.quote {
		name = `"` + name + `"`
	}
	mode := one.info.Mode()
	if l.color {
		switch {
		case mode.IsDir():
			name = "\x1b[01;34m" + name + "\x1b[0m"
		case mode&fs.ModeSymlink != 0:
			name = "\x1b[01;36m" + name + "\x1b[0m"
		case mode&0o111 != 0:
			name = "\x1b[01;32m" + name + "\x1b[0m"
		}
	}
	switch {
	case mode.IsDir() && (l.classify || l.slash):
		name += "/"
	case mode&fs.ModeSymlink != 0 && l.classify && !l.long:
		name += "@"
	case mode.IsRegular() && mode&0o111 != 0 && l.classify:
		name += "*"
	case mode&fs.ModeNamedPipe != 0 && l.classify:
		name += "|"
	}
	if l.inode {
		name = "1 " + name
	}
	if l.blocks {
		name = strconv.FormatInt(blocksOf(one.info), 10) + " " + name
	}
	return name
}

func (l *lister) print(entries []entry) {
	if len(entries) == 0 {
		return
	}
	switch {
	case l.long:
		l.printLong(entries)
	case l.commas:
		labels := make([]string, len(entries))
		for i, one := range entries {
			labels[i] = l.label(one)
		}
		l.c.Out.WriteString(strings.Join(labels, ", ") + "\n")
	case l.columns:
		l.printColumns(entries)
	default:
		end := "\n"
		if l.zero {
			end = "\x00"
		}
		for _, one := range entries {
			l.c.Out.WriteString(l.label(one) + end)
		}
	}
}

func (l *lister) printColumns(entries []entry) {
	labels := make([]string, len(entries))
	for i, one := range entries {
		labels[i] = l.label(one)
	}
	rows := 1
	var widths []int
	for ; rows <= len(labels); rows++ {
		columns := (len(labels) + rows - 1) / rows
		widths = make([]int, columns)
		total := 0
		for i, label := range labels {
			column := i / rows
			if l.across {
				column = i % columns
			}
			widths[column] = max(widths[column], core.TextWidth(label)+2)
		}
		for _, width := range widths {
			total += width
		}
		if total-2 <= l.width {
			break
		}
	}
	for row := 0; row < rows; row++ {
		line := ""
		for column := range widths {
			index := column*rows + row
			if l.across {
				index = row*len(widths) + column
			}
			if index < len(labels) {
				line += labels[index] + strings.Repeat(" ", widths[column]-core.TextWidth(labels[index]))
			}
		}
		if line = strings.TrimRight(line, " "); line != "" {
			l.c.Out.WriteString(line + "\n")
		}
	}
}

// modeText is the ten-character form of type and permissions.
func modeText(mode fs.FileMode) string {
	kind := "-"
	switch {
	case mode.IsDir():
		kind = "d"
	case mode&fs.ModeSymlink != 0:
		kind = "l"
	case mode&fs.ModeNamedPipe != 0:
		kind = "p"
	case mode&fs.ModeCharDevice != 0:
		kind = "c"
	}
	bits := []byte(letters(mode.Perm()))
	for _, special := range []struct {
		flag  fs.FileMode
		at    int
		lower byte
	}{{fs.ModeSetuid, 2, 's'}, {fs.ModeSetgid, 5, 's'}, {fs.ModeSticky, 8, 't'}} {
		if mode&special.flag == 0 {
			continue
		}
		if bits[special.at] == 'x' {
			bits[special.at] = special.lower
		} else {
			bits[special.at] = special.lower - 32
		}
	}
	return kind + string(bits)
}

func (l *lister) when(t time.Time) string {
	t = t.In(l.zone)
	switch l.timeStyle {
	case "full-iso":
		return strftime.Format("%Y-%m-%d %H:%M:%S.%N %z", t)
	case "long-iso":
		return strftime.Format("%Y-%m-%d %H:%M", t)
	case "iso":
		return strftime.Format("%m-%d %H:%M", t)
	}
	if strings.HasPrefix(l.timeStyle, "+") {
		return strftime.Format(l.timeStyle[1:], t)
	}
	if age := time.Since(t); age > 182*24*time.Hour || age < -time.Hour {
		return strftime.Format("%b %e  %Y", t)
	}
	return strftime.Format("%b %e %H:%M", t)
}

func (l *lister) printLong(entries []entry) {
	sizes := make([]string, len(entries))
	width := 0
	for i, one := range entries {
		sizes[i] = strconv.FormatInt(one.info.Size(), 10)
		if l.human {
			sizes[i] = core.HumanSize(one.info.Size(), l.si)
		}
		width = max(width, len(sizes[i]))
	}
	owner := core.UserName
	if l.numeric {
		owner = core.UserID
	}
	for i, one := range entries {
		line := modeText(one.info.Mode()) + " " + strconv.Itoa(linkCount(one.info))
		if !l.noOwner {
			line += " " + owner
		}
		if !l.noGroup {
			line += " " + owner
		}
		line += fmt.Sprintf(" %*s %s %s", width, sizes[i], l.when(one.info.ModTime()), l.label(one))
		if one.link != "" {
			line += " -> " + one.link
		}
		l.c.Out.WriteString(line + "\n")
	}
}

func linkCount(info fs.FileInfo) int {
	if info.IsDir() {
		return 2
	}
	return 1
}
