package text

import (
	"bytes"
	"fmt"
	"path"
	"sort"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/strftime"
)

func init() {
	core.Register(
		&core.Command{Name: "diff", Summary: "Compare files line by line.", Usage: "diff [-abBiNqrsuwyZ] [-U N] [-C N] [--label TEXT]... [--color] file1 file2", Run: diff},
		&core.Command{Name: "cmp", Summary: "Compare two files byte by byte.", Usage: "cmp [-bls] [-n LIMIT] file1 file2 [skip1 [skip2]]", Run: compareFiles},
	)
}

type differ struct {
	c                             *core.Ctx
	style                         byte // n normal, u unified, c context, y side by side, e ed
	context                       int
	brief, same, recursive, empty bool
	fold, allSpace, spaceChange   bool
	trailing, blankLines          bool
	text                          bool
	labels                        []string
	width                         int
	ignore                        string
}

func diff(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "abBiNqrsuwyZC:U:ceW:L:I:x:dtTp", Long: "text/a ignore-space-change/b ignore-blank-lines/B ignore-case/i new-file/N brief/q recursive/r report-identical-files/s unified?/u ignore-all-space/w side-by-side/y ignore-trailing-space/Z context?/c label=/L color? width=/W suppress-common-lines ignore-matching-lines=/I exclude=/x strip-trailing-cr minimal/d normal expand-tabs/t show-c-function/p"}.Parse(c)
	if !ok {
		return 2
	}
	d := &differ{c: c, style: 'n', context: 3, width: 130}
	for _, option := range options {
		switch option.Name {
		case "u", "c", "U", "C":
			d.style = strings.ToLower(option.Name)[0]
			if option.Value != "" {
				d.context, _ = strconv.Atoi(option.Value)
			}
		case "y":
			d.style = 'y'
		case "e":
			d.style = 'e'
		case "q":
			d.brief = true
		case "s":
			d.same = true
		case "r":
			d.recursive = true
		case "N":
			d.empty = true
		case "i":
			d.fold = true
		case "w":
			d.allSpace = true
		case "b":
			d.spaceChange = true
		case "Z":
			d.trailing = true
		case "B":
			d.blankLines = true
		case "a":
			d.text = true
		case "L":
			d.labels = append(d.labels, option.Value)
		case "W":
			d.width, _ = strconv.Atoi(option.Value)
		}
	}
	if len(names) < 2 {
		if len(names) == 0 {
			return c.Usage(2, "missing operand after '%s'", "diff")
		}
		return c.Usage(2, "missing operand after '%s'", names[0])
	}
	if len(names) > 2 {
		return c.Usage(2, "extra operand '%s'", names[2])
	}
	return d.paths(names[0], names[1], "")
}

func (d *differ) isDir(name string) bool {
	info, err := core.Stat(d.c.Path(name))
	return name != "-" && err == nil && info.IsDir()
}

func (d *differ) paths(a, b, header string) int {
	dirA, dirB := d.isDir(a), d.isDir(b)
	switch {
	case dirA && dirB:
		return d.directories(a, b)
	case dirA && b != "-":
		a = path.Join(a, path.Base(b))
	case dirB && a != "-":
		b = path.Join(b, path.Base(a))
	}
	return d.files(a, b, header)
}

func (d *differ) read(name string) ([]byte, error) {
	data, err := readAll(d.c, name)
	if err != nil && d.empty {
		return nil, nil
	}
	return data, err
}

func (d *differ) files(a, b, header string) int {
	left, err := d.read(a)
	if err != nil {
		d.c.Errorf("%s: %s", a, core.Reason(err))
		if _, err := d.read(b); err != nil {
			d.c.Errorf("%s: %s", b, core.Reason(err))
		}
		return 2
	}
	right, err := d.read(b)
	if err != nil {
		d.c.Errorf("%s: %s", b, core.Reason(err))
		return 2
	}
	if bytes.Equal(left, right) {
		return d.identical(a, b)
	}
	if !d.text && (bytes.IndexByte(left, 0) >= 0 || bytes.IndexByte(right, 0) >= 0) {
		d.c.Out.WriteString("Binary files " + a + " and " + b + " differ\n")
		return 2
	}
	linesA, linesB := rawLines(left), rawLines(right)
	edits := editScript(d.keys(linesA), d.keys(linesB))
	if d.blankLines {
		edits = dropBlank(edits, linesA, linesB)
	}
	if len(edits) == 0 && d.style != 'y' {
		return d.identical(a, b)
	}
	if d.brief {
		d.c.Out.WriteString("Files " + a + " and " + b + " differ\n")
		return 1
	}
	d.c.Out.WriteString(header)
	switch d.style {
	case 'u':
		d.header(a, b, "---", "+++")
		d.unified(linesA, linesB, edits)
	case 'c':
		d.header(a, b, "***", "---")
		d.contextual(linesA, linesB, edits)
	case 'y':
		d.sideBySide(linesA, linesB, edits)
	case 'e':
		d.ed(linesB, edits)
	default:
		d.normal(linesA, linesB, edits)
	}
	return 1
}

func (d *differ) identical(a, b string) int {
	if d.same {
		d.c.Out.WriteString("Files " + a + " and " + b + " are identical\n")
	}
	if d.style == 'y' && !d.brief {
		data, _ := d.read(a)
		lines := rawLines(data)
		d.sideBySide(lines, lines, nil)
	}
	return 0
}

func (d *differ) directories(a, b string) int {
	listA, errA := core.ReadDir(d.c.Path(a))
	listB, errB := core.ReadDir(d.c.Path(b))
	if errA != nil || errB != nil {
		return d.c.Fail(2, "%s: cannot read directory", a)
	}
	inA, inB, all := map[string]bool{}, map[string]bool{}, []string{}
	for _, entry := range listA {
		inA[entry.Name()] = true
		all = append(all, entry.Name())
	}
	for _, entry := range listB {
		if inB[entry.Name()] = true; !inA[entry.Name()] {
			all = append(all, entry.Name())
		}
	}
	sort.Strings(all)
	status := 0
	for _, name := range all {
		pathA, pathB := strings.TrimSuffix(a, "/")+"/"+name, strings.TrimSuffix(b, "/")+"/"+name
		switch {
		case !inB[name] && !d.empty:
			d.c.Out.WriteString("Only in " + strings.TrimSuffix(a, "/") + ": " + name + "\n")
			status = max(status, 1)
		case !inA[name] && !d.empty:
			d.c.Out.WriteString("Only in " + strings.TrimSuffix(b, "/") + ": " + name + "\n")
			status = max(status, 1)
		case d.isDir(pathA) && d.isDir(pathB):
			if d.recursive {
				status = max(status, d.directories(pathA, pathB))
			} else {
				d.c.Out.WriteString("Common subdirectories: " + pathA + " and " + pathB + "\n")
			}
		default:
			status = max(status, d.files(pathA, pathB, "diff "+d.flagText()+pathA+" "+pathB+"\n"))
		}
	}
	return status
}

func (d *differ) flagText() string {
	flags := ""
	for _, arg := range d.c.Args {
		if strings.HasPrefix(arg, "-") && arg != "-" {
			flags += arg + " "
		}
	}
	return flags
}

// rawLines keeps the newline, so that its absence at the end is a difference.
func rawLines(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	lines := strings.SplitAfter(string(data), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func (d *differ) keys(lines []string) []string {
	if !d.fold && !d.allSpace && !d.spaceChange && !d.trailing {
		return lines
	}
	keys := make([]string, len(lines))
	for i, line := range lines {
		if d.fold {
			line = strings.ToLower(line)
		}
		switch {
		case d.allSpace:
			line = strings.Join(strings.Fields(line), "")
		case d.spaceChange:
			line = strings.TrimRight(collapse(line), " ")
		case d.trailing:
			line = strings.TrimRight(line, " \t\r\n")
		}
		keys[i] = line
	}
	return keys
}

func collapse(line string) string {
	var out strings.Builder
	space := false
	for _, r := range line {
		if r == ' ' || r == '\t' || r == '\n' || r == '\r' {
			space = true
			continue
		}
		if space {
			out.WriteByte(' ')
			space = false
		}
		out.WriteRune(r)
	}
	return out.String()
}

func dropBlank(edits []edit, a, b []string) []edit {
	var kept []edit
	for _, e := range edits {
		if strings.TrimSpace(strings.Join(a[e.a0:e.a1], "")) != "" || strings.TrimSpace(strings.Join(b[e.b0:e.b1], "")) != "" {
			kept = append(kept, e)
		}
	}
	return kept
}

func (d *differ) header(a, b, markA, markB string) {
	for i, name := range []string{a, b} {
		mark := markA
		if i == 1 {
			mark = markB
		}
		if i < len(d.labels) {
			d.c.Out.WriteString(mark + " " + d.labels[i] + "\n")
			continue
		}
		stamp := "1970-01-01 00:00:00.000000000 +0000"
		if info, err := core.Stat(d.c.Path(name)); err == nil {
			stamp = strftime.Format("%Y-%m-%d %H:%M:%S.%N %z", info.ModTime().In(strftime.Zone(d.c.Getenv("TZ"))))
		}
		d.c.Out.WriteString(mark + " " + name + "\t" + stamp + "\n")
	}
}

func (d *differ) line(mark, line string) {
	d.c.Out.WriteString(mark + line)
	if !strings.HasSuffix(line, "\n") {
		d.c.Out.WriteString("\n\\ No newline at end of file\n")
	}
}

func compareFiles(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "bli:n:s", Long: "print-bytes/b verbose/l silent/s quiet/s bytes=/n ignore-initial=/i"}.Parse(c)
	if !ok {
		return 2
	}
	silent, verbose, show, limit := false, false, false, int64(-1)
	var skips [2]int64
	for _, option := range options {
		switch option.Name {
		case "s":
			silent = true
		case "l":
			verbose = true
		case "b":
			show = true
		case "n":
			limit, _ = parseSize(option.Value)
		case "i":
			one, two, both := strings.Cut(option.Value, ":")
			skips[0], _ = parseSize(one)
			if skips[1] = skips[0]; both {
				skips[1], _ = parseSize(two)
			}
		}
	}
	if len(names) == 0 {
		return c.Usage(2, "missing operand after 'cmp'")
	}
	if len(names) == 1 {
		names = append(names, "-")
	}
	var sides [2][]byte
	for i := range sides {
		if len(names) > 2+i {
			skips[i], _ = parseSize(names[2+i])
		}
		data, err := readAll(c, names[i])
		if err != nil {
			if !silent {
				c.Errorf("%s: %s", names[i], core.Reason(err))
			}
			return 2
		}
		data = data[min(skips[i], int64(len(data))):]
		if limit >= 0 && int64(len(data)) > limit {
			data = data[:limit]
		}
		sides[i] = data
	}
	return cmpReport(c, names, sides, silent, verbose, show)
}

func cmpReport(c *core.Ctx, names []string, sides [2][]byte, silent, verbose, show bool) int {
	a, b := sides[0], sides[1]
	line, status := 1, 0
	for i := 0; i < min(len(a), len(b)); i++ {
		if a[i] != b[i] {
			status = 1
			if silent {
				return 1
			}
			if !verbose {
				fmt.Fprintf(c.Out, "%s %s differ: byte %d, line %d", names[0], names[1], i+1, line)
				if show {
					fmt.Fprintf(c.Out, " is %3o %s %3o %s", a[i], printable(a[i:i+1]), b[i], printable(b[i:i+1]))
				}
				c.Out.WriteByte('\n')
				return 1
			}
			fmt.Fprintf(c.Out, "%*d %3o %3o\n", len(strconv.Itoa(max(len(a), len(b)))), i+1, a[i], b[i])
		}
		if a[i] == '\n' {
			line++
		}
	}
	if len(a) != len(b) {
		if !silent {
			shorter, n := names[0], len(a)
			if len(b) < len(a) {
				shorter, n = names[1], len(b)
			}
			if n == 0 {
				c.Errorf("EOF on %s which is empty", shorter)
			} else {
				c.Errorf("EOF on %s after byte %d, line %d", shorter, n, max(1, line-1))
			}
		}
		return 1
	}
	return status
}
