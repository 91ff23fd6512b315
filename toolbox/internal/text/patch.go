package text

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(&core.Command{Name: "patch", Summary: "Apply a diff to files.", Usage: "patch [-p N] [-R] [-N] [-s] [-f] [--dry-run] [-d DIR] [-i FILE] [-o FILE] [file [patchfile]]", Run: patch})
}

type hunk struct {
	oldStart, oldCount int
	lines              []string // with their mark
}

type filePatch struct {
	oldName, newName string
	hunks            []hunk
}

type patcher struct {
	c                                     *core.Ctx
	strip                                 int
	reverse, forward, silent, dry, backup bool
	target, output                        string
	failed                                bool
}

func patch(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "p:RNsfd:i:o:bEtuF:V:Y:z:r:l", Long: "strip=/p reverse/R forward/N silent/s quiet/s force/f directory=/d input=/i output=/o dry-run backup/b batch/t unified/u fuzz=/F reject-file=/r ignore-whitespace/l"}.Parse(c)
	if !ok {
		return 2
	}
	p := &patcher{c: c, strip: -1}
	input := "-"
	for _, option := range options {
		switch option.Name {
		case "p":
			p.strip, _ = strconv.Atoi(option.Value)
		case "R":
			p.reverse = true
		case "N":
			p.forward = true
		case "s":
			p.silent = true
		case "dry-run":
			p.dry = true
		case "b":
			p.backup = true
		case "d":
			c.Dir = c.Path(option.Value)
		case "i":
			input = option.Value
		case "o":
			p.output = option.Value
		}
	}
	if len(names) > 0 {
		p.target = names[0]
	}
	if len(names) > 1 {
		input = names[1]
	}
	data, err := readAll(c, input)
	if err != nil {
		return c.Fail(2, "**** Can't open patch file %s : %s", input, core.Reason(err))
	}
	patches := parsePatch(string(data))
	if len(patches) == 0 {
		return c.Fail(2, "**** Only garbage was found in the patch input.")
	}
	for _, one := range patches {
		if code := p.apply(one); code == 2 {
			return 2
		}
	}
	if p.failed {
		return 1
	}
	return 0
}

func headerName(line string) string {
	name, _, _ := strings.Cut(line[4:], "\t")
	return strings.TrimSpace(name)
}

func parsePatch(text string) []filePatch {
	lines := strings.SplitAfter(text, "\n")
	var out []filePatch
	for i := 0; i < len(lines); {
		line := lines[i]
		switch {
		case strings.HasPrefix(line, "--- ") && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "+++ "):
			out = append(out, filePatch{oldName: headerName(line), newName: headerName(lines[i+1])})
			i += 2
		case strings.HasPrefix(line, "@@ ") && len(out) > 0:
			var h hunk
			h, i = parseHunk(lines, i)
			out[len(out)-1].hunks = append(out[len(out)-1].hunks, h)
		case isNormalCommand(line):
			if len(out) == 0 {
				out = append(out, filePatch{})
			}
			var h hunk
			h, i = parseNormal(lines, i)
			out[len(out)-1].hunks = append(out[len(out)-1].hunks, h)
		default:
			i++
		}
	}
	return out
}

func isNormalCommand(line string) bool {
	line = strings.TrimRight(line, "\n")
	at := strings.IndexAny(line, "acd")
	return at > 0 && strings.Trim(line[:at], "0123456789,") == "" && at+1 < len(line) && strings.Trim(line[at+1:], "0123456789,") == ""
}

func parseNormal(lines []string, i int) (hunk, int) {
	line := strings.TrimRight(lines[i], "\n")
	at := strings.IndexAny(line, "acd")
	low, _, _ := strings.Cut(line[:at], ",")
	start, _ := strconv.Atoi(low)
	h := hunk{oldStart: start}
	if line[at] == 'a' {
		h.oldStart++
	}
	for i++; i < len(lines); i++ {
		switch {
		case strings.HasPrefix(lines[i], "< "):
			h.lines = append(h.lines, "-"+lines[i][2:])
			h.oldCount++
		case strings.HasPrefix(lines[i], "> "):
			h.lines = append(h.lines, "+"+lines[i][2:])
		case strings.HasPrefix(lines[i], "---"):
		case strings.HasPrefix(lines[i], "\\"):
			h.dropNewline()
		default:
			return h, i
		}
	}
	return h, i
}

func (h *hunk) dropNewline() {
	if n := len(h.lines); n > 0 {
		h.lines[n-1] = strings.TrimSuffix(h.lines[n-1], "\n")
	}
}

func parseHunk(lines []string, i int) (hunk, int) {
	var h hunk
	h.oldCount = 1
	newCount := 1
	fields := strings.Fields(lines[i])
	parse := func(text string, start, count *int) {
		first, second, ok := strings.Cut(text[1:], ",")
		*start, _ = strconv.Atoi(first)
		if ok {
			*count, _ = strconv.Atoi(second)
		}
	}
	newStart := 0
	if len(fields) >= 3 {
		parse(fields[1], &h.oldStart, &h.oldCount)
		parse(fields[2], &newStart, &newCount)
	}
	if h.oldCount == 0 {
		h.oldStart++
	}
	old, added := 0, 0
	for i++; i < len(lines); i++ {
		line := lines[i]
		if strings.HasPrefix(line, "\\") {
			h.dropNewline()
			continue
		}
		if old >= h.oldCount && added >= newCount {
			break
		}
		if line == "\n" {
			line = " \n"
		}
		if line == "" {
			break
		}
		switch line[0] {
		case ' ':
			old, added = old+1, added+1
		case '-':
			old++
		case '+':
			added++
		default:
			return h, i
		}
		h.lines = append(h.lines, line)
	}
	return h, i
}

// choose picks the file to patch: the operand, else the header name that exists.
func (p *patcher) choose(one filePatch) (name string, isNew bool) {
	if p.target != "" {
		return p.target, false
	}
	candidates := []string{one.oldName, one.newName}
	if p.reverse {
		candidates = []string{one.newName, one.oldName}
	}
	best := ""
	for _, candidate := range candidates {
		if candidate == "/dev/null" || candidate == "" {
			continue
		}
		stripped := p.stripped(candidate)
		if best == "" {
			best = stripped
		}
		if _, err := core.Stat(p.c.Path(stripped)); err == nil {
			return stripped, false
		}
	}
	if candidates[0] == "/dev/null" {
		return p.stripped(candidates[1]), true
	}
	return best, true
}

func (p *patcher) stripped(name string) string {
	if p.strip < 0 {
		return path.Base(name)
	}
	for i := 0; i < p.strip; i++ {
		_, rest, ok := strings.Cut(name, "/")
		if !ok {
			return name
		}
		name = strings.TrimLeft(rest, "/")
	}
	return name
}

func (p *patcher) apply(one filePatch) int {
	name, isNew := p.choose(one)
	if name == "" {
		p.c.Errorf("**** can't find file to patch")
		return 2
	}
	data, err := readAll(p.c, name)
	if err != nil && !isNew && one.oldName != "/dev/null" {
		p.c.Errorf("%s: %s", name, core.Reason(err))
		p.failed = true
		return 1
	}
	if !p.silent {
		verb := "patching"
		if p.dry {
			verb = "checking"
		}
		p.c.Out.WriteString(verb + " file " + name + "\n")
	}
	lines := rawLines(data)
	var rejected []hunk
	offset := 0
	for i, h := range one.hunks {
		if p.reverse {
			h = h.reversed()
		}
		at, fuzz := locate(lines, h, h.oldStart-1+offset)
		if at < 0 {
			fmt.Fprintf(p.c.Out, "Hunk #%d FAILED at %d.\n", i+1, h.oldStart)
			rejected = append(rejected, h)
			continue
		}
		if drift := at - (h.oldStart - 1 + offset); !p.silent && (drift != 0 || fuzz > 0) {
			fmt.Fprintf(p.c.Out, "Hunk #%d succeeded at %d", i+1, at+1)
			if fuzz > 0 {
				fmt.Fprintf(p.c.Out, " with fuzz %d", fuzz)
			}
			if drift != 0 {
				fmt.Fprintf(p.c.Out, " (offset %d line%s)", drift, map[bool]string{true: "", false: "s"}[drift == 1 || drift == -1])
			}
			p.c.Out.WriteString(".\n")
		}
		before := len(lines)
		lines = replaceHunk(lines, h, at, fuzz)
		offset += len(lines) - before + (at - (h.oldStart - 1 + offset))
	}
	return p.finish(name, one, data, lines, rejected)
}

// finish writes the result, or removes a file that the patch emptied, and leaves rejects beside it.
func (p *patcher) finish(name string, one filePatch, original []byte, lines []string, rejected []hunk) int {
	if len(rejected) > 0 {
		p.failed = true
		fmt.Fprintf(p.c.Out, "%d out of %d hunk%s FAILED", len(rejected), len(one.hunks), map[bool]string{true: "", false: "s"}[len(one.hunks) == 1])
		if p.dry {
			p.c.Out.WriteString("\n")
			return 1
		}
		p.c.Out.WriteString(" -- saving rejects to file " + name + ".rej\n")
		p.save(name+".rej", rejectText(name, rejected))
	}
	if p.dry || len(rejected) == len(one.hunks) && len(one.hunks) > 0 {
		return 0
	}
	if p.backup {
		p.save(name+".orig", string(original))
	}
	goal := one.newName
	if p.reverse {
		goal = one.oldName
	}
	if goal == "/dev/null" && len(lines) == 0 {
		core.Remove(p.c.Path(name))
		return 0
	}
	if p.output != "" {
		name = p.output
	}
	if dir := path.Dir(p.c.Path(name)); dir != "/" {
		core.MkdirAll(dir)
	}
	return p.save(name, strings.Join(lines, ""))
}

func (p *patcher) save(name, content string) int {
	file, err := p.c.Create(name)
	if err != nil {
		p.c.Errorf("**** Can't create file %s : %s", name, core.Reason(err))
		p.failed = true
		return 2
	}
	defer file.Close()
	if _, err := file.Write([]byte(content)); err != nil {
		p.failed = true
		return 2
	}
	return 0
}

func rejectText(name string, rejected []hunk) string {
	var out strings.Builder
	out.WriteString("--- " + name + "\n+++ " + name + "\n")
	for _, h := range rejected {
		fmt.Fprintf(&out, "@@ -%d,%d @@\n", h.oldStart, h.oldCount)
		out.WriteString(strings.Join(h.lines, ""))
	}
	return out.String()
}

func (h hunk) reversed() hunk {
	swapped := h
	swapped.lines = make([]string, len(h.lines))
	for i, line := range h.lines {
		switch line[0] {
		case '-':
			line = "+" + line[1:]
		case '+':
			line = "-" + line[1:]
		}
		swapped.lines[i] = line
	}
	return swapped
}

func (h hunk) old() []string {
	var out []string
	for _, line := range h.lines {
		if line[0] != '+' {
			out = append(out, line[1:])
		}
	}
	return out
}

// locate searches outwards from the expected line, first exactly, then with the outer context ignored.
func locate(lines []string, h hunk, expected int) (at, fuzz int) {
	old := h.old()
	for fuzz = 0; fuzz <= 2; fuzz++ {
		trimmed := old
		if fuzz > 0 {
			if len(old) <= 2*fuzz {
				break
			}
			trimmed = old[fuzz : len(old)-fuzz]
		}
		for distance := 0; distance <= len(lines)+1; distance++ {
			for _, start := range []int{expected + distance, expected - distance} {
				if start >= 0 && start <= len(lines) && matchesAt(lines, trimmed, start+fuzz) {
					return start, fuzz
				}
			}
		}
	}
	return -1, 0
}

func matchesAt(lines, old []string, start int) bool {
	if start+len(old) > len(lines) {
		return false
	}
	for i, line := range old {
		if lines[start+i] != line {
			return false
		}
	}
	return true
}

func replaceHunk(lines []string, h hunk, at, fuzz int) []string {
	var out []string
	out = append(out, lines[:at]...)
	cursor := at
	for _, line := range h.lines {
		switch line[0] {
		case ' ':
			if cursor < len(lines) {
				out = append(out, lines[cursor])
			}
			cursor++
		case '-':
			cursor++
		case '+':
			out = append(out, line[1:])
		}
	}
	return append(out, lines[min(cursor, len(lines)):]...)
}
