package main

import (
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// change is one path that differs between two sides. A side that does not have it has the zero node.
type change struct {
	from, to     string
	old, new     node
	score        int // similarity in percent for renames and copies
	status       byte
	oldData      []byte
	newData      []byte
	isUnmerged   bool
	hasLoaded    bool
	hasNewOnDisk bool
}

func (c *change) isRename() bool { return c.status == 'R' }

// compareTrees lists the changes from a to b in path order, with renames joined when asked.
func compareTrees(a, b snapshot, spec pathspec) []*change {
	var changes []*change
	for name := range union(a, b) {
		if !spec.matches(name) {
			continue
		}
		old, had := a[name]
		now, has := b[name]
		if old == now {
			continue
		}
		c := &change{from: name, to: name, old: old, new: now, status: 'M'}
		switch {
		case !had:
			c.status = 'A'
		case !has:
			c.status = 'D'
		case (old.mode == filemode.Symlink) != (now.mode == filemode.Symlink):
			c.status = 'T'
		}
		changes = append(changes, c)
	}
	sortBy(changes, func(c *change) string { return c.to })
	return changes
}

// load reads both sides; the new side comes from disk where the object may not exist yet.
func (r *repo) load(c *change) {
	if c.hasLoaded {
		return
	}
	c.hasLoaded = true
	if c.old.mode != 0 && c.old.mode != filemode.Submodule {
		c.oldData = r.readBlob(c.old.hash)
	}
	if c.new.mode == 0 || c.new.mode == filemode.Submodule {
		return
	}
	if !c.hasNewOnDisk {
		c.newData = r.readBlob(c.new.hash)
		return
	}
	info, err := os.Lstat(r.file(c.to))
	must(err)
	c.newData, err = r.content(c.to, info)
	must(err)
}

// ---- renames ----

const renameThreshold = 50

func (r *repo) findRenames(changes []*change) []*change {
	var added, deleted []*change
	for _, c := range changes {
		switch {
		case c.status == 'A' && !c.isUnmerged:
			added = append(added, c)
		case c.status == 'D' && !c.isUnmerged:
			deleted = append(deleted, c)
		}
	}
	if len(added) == 0 || len(deleted) == 0 || len(added)*len(deleted) > 100000 {
		return changes
	}
	type pair struct {
		from, to *change
		score    int
	}
	var pairs []pair
	for _, d := range deleted {
		for _, a := range added {
			if (d.old.mode == filemode.Symlink) != (a.new.mode == filemode.Symlink) {
				continue
			}
			if d.old.hash == a.new.hash {
				score := 100
				if baseName(d.from) == baseName(a.to) {
					score = 101 // the same name is preferred among equals
				}
				pairs = append(pairs, pair{d, a, score})
				continue
			}
			r.load(d)
			r.load(a)
			if score := similarity(d.oldData, a.newData); score >= renameThreshold {
				pairs = append(pairs, pair{d, a, score})
			}
		}
	}
	slices.SortStableFunc(pairs, func(x, y pair) int { return y.score - x.score })
	used := map[*change]bool{}
	for _, p := range pairs {
		if used[p.from] || used[p.to] {
			continue
		}
		used[p.from], used[p.to] = true, true
		p.to.status, p.to.score = 'R', min(p.score, 100)
		p.to.from, p.to.old, p.to.oldData = p.from.from, p.from.old, p.from.oldData
		p.to.hasLoaded = p.to.hasLoaded && p.from.hasLoaded
	}
	return slices.DeleteFunc(changes, func(c *change) bool { return c.status == 'D' && used[c] })
}

func baseName(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// similarity is the share of bytes that lines (or runs of 64 bytes) of the two have in common, in percent.
func similarity(a, b []byte) int {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	if max(len(a), len(b))-min(len(a), len(b)) > max(len(a), len(b))/2 {
		return 0
	}
	left, right := chunks(a), chunks(b)
	copied := 0
	for hash, size := range left {
		copied += min(size, right[hash])
	}
	return copied * 60000 / max(len(a), len(b)) * 100 / 60000
}

func chunks(data []byte) map[uint64]int {
	isText := !isBinary(data)
	sizes := map[uint64]int{}
	h := fnv.New64a()
	n := 0
	for i, c := range data {
		if isText && c == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			continue
		}
		h.Write([]byte{c})
		n++
		if n < 64 && c != '\n' {
			continue
		}
		sizes[h.Sum64()] += n
		h.Reset()
		n = 0
	}
	if n > 0 {
		sizes[h.Sum64()] += n
	}
	return sizes
}

// ---- output ----

type diffFormat struct {
	patch, stat, shortStat, numStat, nameOnly, nameStatus, summary, quiet, raw bool
	context                                                                    int
	noPrefix                                                                   bool
	ignoreSpace                                                                string
	nul                                                                        bool
}

const diffFlags = "-p -u --patch --no-patch -s --stat --shortstat --numstat --name-only --name-status --summary -q --quiet --raw --cached --staged --no-color --color --exit-code --no-ext-diff --no-renames -M --find-renames -w -b --ignore-all-space --ignore-space-change --no-prefix --minimal --patience --histogram --text -a --full-index --no-index --relative --check -z --merge-base -C --patch-with-stat --compact-summary -R"
const diffValues = "-U --unified --diff-filter --diff-algorithm --word-diff --color-words"

func formatFrom(o *options) diffFormat {
	f := diffFormat{context: 3}
	f.stat = o.has("--stat", "--patch-with-stat", "--compact-summary")
	f.shortStat, f.numStat, f.nameOnly = o.has("--shortstat"), o.has("--numstat"), o.has("--name-only")
	f.nameStatus, f.summary, f.quiet, f.raw = o.has("--name-status"), o.has("--summary"), o.has("-q", "--quiet"), o.has("--raw")
	f.patch = o.has("-p", "-u", "--patch", "-U", "--unified", "--patch-with-stat")
	f.noPrefix = o.has("--no-prefix")
	f.nul = o.has("-z")
	switch {
	case o.has("-w", "--ignore-all-space"):
		f.ignoreSpace = "all"
	case o.has("-b", "--ignore-space-change"):
		f.ignoreSpace = "change"
	}
	if text := o.value("-U", "--unified"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			fatal("--unified expects a numerical value")
		}
		f.context = n
	}
	return f
}

func (f diffFormat) isAnything() bool {
	return f.patch || f.stat || f.shortStat || f.numStat || f.nameOnly || f.nameStatus || f.summary || f.raw || f.quiet
}

func (r *repo) printChanges(changes []*change, f diffFormat) {
	end := "\n"
	if f.nul {
		end = "\x00"
	}
	for _, c := range changes {
		switch {
		case f.nameOnly:
			say("%s%s", quoted(c.to), end)
		case f.nameStatus && c.isRename():
			say("R%03d\t%s\t%s%s", c.score, quoted(c.from), quoted(c.to), end)
		case f.nameStatus && c.isUnmerged:
			say("U\t%s%s", quoted(c.to), end)
		case f.nameStatus:
			say("%c\t%s%s", c.status, quoted(c.to), end)
		case f.raw:
			newHash := short(c.new.hash)
			if c.hasNewOnDisk {
				newHash = "0000000"
			}
			say(":%06o %06o %s %s %c\t%s\n", uint32(c.old.mode), uint32(c.new.mode), short(c.old.hash), newHash, c.status, quoted(c.to))
		}
	}
	if f.numStat {
		r.printNumStat(changes)
	}
	if f.stat || f.shortStat {
		r.printStat(changes, f.stat)
	}
	if f.summary {
		printSummary(changes)
	}
	if f.patch {
		if (f.stat || f.shortStat || f.numStat || f.raw) && len(changes) > 0 {
			say("\n")
		}
		for _, c := range changes {
			r.printPatch(c, f)
		}
	}
}

func (r *repo) printPatch(c *change, f diffFormat) {
	if c.isUnmerged {
		say("* Unmerged path %s\n", c.to)
		return
	}
	r.load(c)
	if c.status == 'T' { // a change of type is a deletion and a creation
		gone, come := *c, *c
		gone.status, gone.new, gone.newData = 'D', node{}, nil
		come.status, come.old, come.oldData = 'A', node{}, nil
		r.printPatch(&gone, f)
		r.printPatch(&come, f)
		return
	}
	a, b := "a/"+c.from, "b/"+c.to
	if f.noPrefix {
		a, b = c.from, c.to
	}
	var hunks string
	isBinaryFile := isBinary(c.oldData) || isBinary(c.newData)
	if !isBinaryFile {
		hunks = unified(c.oldData, c.newData, f)
	}
	if f.ignoreSpace != "" && hunks == "" && c.status == 'M' && !isBinaryFile {
		return
	}
	say("diff --git %s %s\n", quoted(a), quoted(b))
	switch {
	case c.status == 'A':
		say("new file mode %06o\n", uint32(c.new.mode))
	case c.status == 'D':
		say("deleted file mode %06o\n", uint32(c.old.mode))
	case c.old.mode != c.new.mode:
		say("old mode %06o\nnew mode %06o\n", uint32(c.old.mode), uint32(c.new.mode))
	}
	if c.isRename() {
		say("similarity index %d%%\nrename from %s\nrename to %s\n", c.score, quoted(c.from), quoted(c.to))
	}
	if c.old.hash == c.new.hash {
		return
	}
	say("index %s..%s", short(c.old.hash), short(c.new.hash))
	if c.old.mode == c.new.mode {
		say(" %06o", uint32(c.old.mode))
	}
	say("\n")
	oldName, newName := quoted(a), quoted(b)
	if c.status == 'A' {
		oldName = "/dev/null"
	}
	if c.status == 'D' {
		newName = "/dev/null"
	}
	if isBinaryFile {
		say("Binary files %s and %s differ\n", oldName, newName)
		return
	}
	if hunks != "" {
		tab := func(name string) string {
			if strings.Contains(name, " ") && name[0] != '"' {
				return name + "\t"
			}
			return name
		}
		say("--- %s\n+++ %s\n%s", tab(oldName), tab(newName), hunks)
	}
}

// fold gives the form in which lines are compared when whitespace is to be ignored.
func fold(lines []string, how string) []string {
	if how == "" {
		return lines
	}
	out := make([]string, len(lines))
	for i, line := range lines {
		fields := strings.Fields(line)
		if how == "all" {
			out[i] = strings.Join(fields, "")
		} else {
			out[i] = strings.Join(fields, " ")
			if line != "" && (line[0] == ' ' || line[0] == '\t') {
				out[i] = " " + out[i]
			}
		}
	}
	return out
}

type edit struct{ a0, a1, b0, b1 int }

func edits(gone, come []bool) []edit {
	var found []edit
	for i, j := 0, 0; i < len(gone) || j < len(come); {
		if i < len(gone) && gone[i] || j < len(come) && come[j] {
			e := edit{a0: i, b0: j}
			for i < len(gone) && gone[i] {
				i++
			}
			for j < len(come) && come[j] {
				j++
			}
			e.a1, e.b1 = i, j
			found = append(found, e)
			continue
		}
		i, j = i+1, j+1
	}
	return found
}

func unified(old, new []byte, f diffFormat) string {
	a, b := splitLines(old), splitLines(new)
	all := edits(lineDiff(fold(a, f.ignoreSpace), fold(b, f.ignoreSpace)))
	var text strings.Builder
	for first := 0; first < len(all); {
		last := first
		for last+1 < len(all) && all[last+1].a0-all[last].a1 <= 2*f.context {
			last++
		}
		writeHunk(&text, a, b, all[first:last+1], f.context)
		first = last + 1
	}
	return text.String()
}

func writeHunk(text *strings.Builder, a, b []string, group []edit, context int) {
	before := min(context, group[0].a0)
	end := group[len(group)-1]
	after := min(context, len(a)-end.a1)
	a0, b0 := group[0].a0-before, group[0].b0-before
	countA, countB := end.a1+after-a0, end.b1+after-b0
	fmt.Fprintf(text, "@@ -%s +%s @@%s\n", hunkRange(a0, countA), hunkRange(b0, countB), heading(a, a0))
	at := a0
	emit := func(mark byte, line string) {
		text.WriteByte(mark)
		text.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			text.WriteString("\n\\ No newline at end of file\n")
		}
	}
	for _, e := range group {
		for ; at < e.a0; at++ {
			emit(' ', a[at])
		}
		for ; at < e.a1; at++ {
			emit('-', a[at])
		}
		for j := e.b0; j < e.b1; j++ {
			emit('+', b[j])
		}
	}
	for ; at < end.a1+after; at++ {
		emit(' ', a[at])
	}
}

func hunkRange(start, count int) string {
	if count == 0 {
		return fmt.Sprintf("%d,0", start)
	}
	if count == 1 {
		return strconv.Itoa(start + 1)
	}
	return fmt.Sprintf("%d,%d", start+1, count)
}

// heading is the last line before the hunk that looks like the start of a function.
func heading(lines []string, before int) string {
	for i := before - 1; i >= 0; i-- {
		line := lines[i]
		if c := line[0]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$' {
			line = strings.TrimRight(line, " \t\r\n")
			if len(line) > 80 {
				line = strings.TrimRight(line[:80], " \t")
			}
			return " " + line
		}
	}
	return ""
}

// ---- statistics ----

type lineCount struct {
	added, deleted int
	isBinary       bool
}

func (r *repo) count(c *change) lineCount {
	r.load(c)
	if isBinary(c.oldData) || isBinary(c.newData) {
		return lineCount{len(c.newData), len(c.oldData), true}
	}
	if c.old.hash == c.new.hash {
		return lineCount{}
	}
	gone, come := lineDiff(splitLines(c.oldData), splitLines(c.newData))
	var n lineCount
	for _, isSet := range gone {
		if isSet {
			n.deleted++
		}
	}
	for _, isSet := range come {
		if isSet {
			n.added++
		}
	}
	return n
}

// renamePair shortens what two names share: "dir/{a => b}.txt".
func renamePair(from, to string) string {
	prefix := 0
	for i := 0; i < len(from) && i < len(to) && from[i] == to[i]; i++ {
		if from[i] == '/' {
			prefix = i + 1
		}
	}
	suffix := 0
	for i := 1; i <= len(from)-prefix+min(prefix, 1) && i <= len(to)-prefix+min(prefix, 1) && from[len(from)-i] == to[len(to)-i]; i++ {
		if from[len(from)-i] == '/' {
			suffix = i
		}
	}
	if prefix == 0 && suffix == 0 {
		return from + " => " + to
	}
	middleOf := func(name string) string {
		if end := len(name) - suffix; end > prefix {
			return name[prefix:end]
		}
		return ""
	}
	return from[:prefix] + "{" + middleOf(from) + " => " + middleOf(to) + "}" + from[len(from)-suffix:]
}

func (c *change) label() string {
	if c.isRename() {
		return renamePair(c.from, c.to)
	}
	return quoted(c.to)
}

func (r *repo) printNumStat(changes []*change) {
	for _, c := range changes {
		if n := r.count(c); n.isBinary {
			say("-\t-\t%s\n", c.label())
		} else {
			say("%d\t%d\t%s\n", n.added, n.deleted, c.label())
		}
	}
}

const statWidth = 80

func (r *repo) printStat(changes []*change, withFiles bool) {
	if len(changes) == 0 {
		return
	}
	counts := make([]lineCount, len(changes))
	longest, most, binaryWidth, added, deleted := 0, 0, 0, 0, 0
	for i, c := range changes {
		counts[i] = r.count(c)
		longest = max(longest, len([]rune(c.label())))
		if counts[i].isBinary {
			binaryWidth = max(binaryWidth, len(fmt.Sprintf("Bin %d -> %d bytes", counts[i].deleted, counts[i].added)))
			continue
		}
		most = max(most, counts[i].added+counts[i].deleted)
		added += counts[i].added
		deleted += counts[i].deleted
	}
	if withFiles {
		printStatLines(changes, counts, longest, most, binaryWidth)
	}
	say(" %d %s changed", len(changes), plural(len(changes), "file"))
	if added > 0 || deleted == 0 {
		say(", %d %s(+)", added, plural(added, "insertion"))
	}
	if deleted > 0 || added == 0 {
		say(", %d %s(-)", deleted, plural(deleted, "deletion"))
	}
	say("\n")
}

func printStatLines(changes []*change, counts []lineCount, longest, most, binaryWidth int) {
	numberWidth := len(strconv.Itoa(most))
	if binaryWidth > 0 {
		numberWidth = max(numberWidth, 3)
	}
	nameWidth, graphWidth := longest, most
	if graphWidth+4 < binaryWidth-numberWidth+4 && binaryWidth > 0 {
		graphWidth = max(most, binaryWidth-numberWidth)
	}
	if nameWidth+numberWidth+6+graphWidth > statWidth {
		if graphWidth > statWidth*3/8-numberWidth-6 {
			graphWidth = max(statWidth*3/8-numberWidth-6, 6)
		}
		if nameWidth > statWidth-numberWidth-6-graphWidth {
			nameWidth = statWidth - numberWidth - 6 - graphWidth
		} else {
			graphWidth = statWidth - numberWidth - 6 - nameWidth
		}
	}
	for i, c := range changes {
		label := []rune(c.label())
		if len(label) > nameWidth {
			tail := label[len(label)-nameWidth+3:]
			if slash := slices.Index(tail, '/'); slash != -1 {
				tail = tail[slash:]
			}
			label = append([]rune("..."), tail...)
		}
		name := string(label) + strings.Repeat(" ", max(0, nameWidth-len(label)))
		n := counts[i]
		if n.isBinary {
			say(" %s | %*s", name, numberWidth, "Bin")
			if n.added == 0 && n.deleted == 0 {
				say("\n")
			} else {
				say(" %d -> %d bytes\n", n.deleted, n.added)
			}
			continue
		}
		total := n.added + n.deleted
		plus, minus := n.added, n.deleted
		if graphWidth < most {
			scaled := scale(total, graphWidth, most)
			if scaled < 2 && plus > 0 && minus > 0 {
				scaled = 2
			}
			if plus < minus {
				plus = scale(plus, graphWidth, most)
				minus = scaled - plus
			} else {
				minus = scale(minus, graphWidth, most)
				plus = scaled - minus
			}
		}
		say(" %s | %*d%s%s%s\n", name, numberWidth, total, map[bool]string{true: " ", false: ""}[total > 0], strings.Repeat("+", plus), strings.Repeat("-", minus))
	}
}

func scale(n, width, most int) int {
	if n == 0 {
		return 0
	}
	return 1 + n*(width-1)/most
}

func printSummary(changes []*change) {
	for _, c := range changes {
		switch {
		case c.status == 'A':
			say(" create mode %06o %s\n", uint32(c.new.mode), quoted(c.to))
		case c.status == 'D':
			say(" delete mode %06o %s\n", uint32(c.old.mode), quoted(c.from))
		case c.isRename():
			say(" rename %s (%d%%)\n", renamePair(c.from, c.to), c.score)
		case c.old.mode != c.new.mode:
			say(" mode change %06o => %06o %s\n", uint32(c.old.mode), uint32(c.new.mode), quoted(c.to))
		}
	}
}

// ---- git diff ----

func cmdDiff(args []string) {
	o := parseOptions(args, diffFlags, diffValues)
	if o.has("--no-index") || (findRepo() == nil && len(o.all()) == 2) {
		diffNoIndex(o)
		return
	}
	r := openRepo()
	revisions, paths := r.splitRevisions(o)
	f := formatFrom(o)
	if !f.isAnything() && !o.has("--no-patch", "-s") {
		f.patch = true
	}
	changes := r.diffSides(revisions, o.has("--cached", "--staged"), o.has("--merge-base"), r.pathspec(paths))
	if o.has("-R") {
		for _, c := range changes {
			r.load(c)
			c.old, c.new, c.oldData, c.newData, c.from, c.to = c.new, c.old, c.newData, c.oldData, c.to, c.from
			switch c.status {
			case 'A':
				c.status = 'D'
			case 'D':
				c.status = 'A'
			}
		}
	}
	if !o.has("--no-renames") {
		changes = r.findRenames(changes)
	}
	if filter := o.value("--diff-filter"); filter != "" {
		changes = slices.DeleteFunc(changes, func(c *change) bool {
			isListed := strings.ContainsRune(strings.ToUpper(filter), rune(c.status))
			return isListed == (strings.ToLower(filter) == filter)
		})
	}
	if o.has("--check") {
		return
	}
	if !f.quiet {
		r.printChanges(changes, f)
	}
	if (f.quiet || o.has("--exit-code")) && len(changes) > 0 {
		exit(exitFailure)
	}
}

// splitRevisions tells revisions from paths as Git does: a name that resolves is a revision, unless it follows "--".
func (r *repo) splitRevisions(o *options) (revisions, paths []string) {
	if o.hasDashes {
		for _, rev := range o.rest {
			r.checkRevision(rev)
		}
		return o.rest, o.paths
	}
	for i, arg := range o.rest {
		if r.isRevision(arg) {
			revisions = append(revisions, arg)
			continue
		}
		for _, name := range o.rest[i:] {
			if _, err := os.Lstat(r.file(r.repoPath(name))); err != nil && !strings.ContainsAny(name, "*?[") {
				fatal("ambiguous argument '%s': unknown revision or path not in the working tree.\nUse '--' to separate paths from revisions, like this:\n'git <command> [<revision>...] -- [<file>...]'", name)
			}
		}
		return revisions, o.rest[i:]
	}
	return revisions, nil
}

func (r *repo) isRevision(arg string) bool {
	for _, separator := range []string{"...", ".."} {
		if left, right, isRange := strings.Cut(arg, separator); isRange {
			_, foundLeft := r.resolve(orHead(left))
			_, foundRight := r.resolve(orHead(right))
			return foundLeft && foundRight && arg != ".."
		}
	}
	_, found := r.resolve(strings.TrimPrefix(arg, "^"))
	return found && arg != ""
}

func (r *repo) checkRevision(arg string) {
	if !r.isRevision(arg) {
		fatal("bad revision '%s'", arg)
	}
}

func orHead(text string) string {
	if text == "" {
		return "HEAD"
	}
	return text
}

func (r *repo) diffSides(revisions []string, isCached, fromMergeBase bool, spec pathspec) []*change {
	if len(revisions) == 1 {
		if left, right, isRange := strings.Cut(revisions[0], "..."); isRange {
			a, b := r.mustCommit(orHead(left)), r.mustCommit(orHead(right))
			if bases := r.mergeBases(a, b); len(bases) > 0 {
				a = bases[0]
			}
			return compareTrees(r.treeOf(a), r.treeOf(b), spec)
		}
		if left, right, isRange := strings.Cut(revisions[0], ".."); isRange {
			revisions = []string{orHead(left), orHead(right)}
		}
	}
	tree := func(rev string) snapshot {
		hash, found := r.resolve(rev)
		if !found {
			r.mustCommit(rev)
		}
		return r.treeOf(hash)
	}
	switch {
	case len(revisions) >= 2:
		if a, foundA := r.resolve(revisions[0]); foundA {
			if b, foundB := r.resolve(revisions[1]); foundB {
				if _, isTree := r.peel(a, "tree"); !isTree { // two blobs
					return []*change{{from: revisions[0], to: revisions[1], old: node{a, filemode.Regular}, new: node{b, filemode.Regular}, status: 'M'}}
				}
			}
		}
		return compareTrees(tree(revisions[0]), tree(revisions[1]), spec)
	case isCached:
		base := r.treeOf(r.head())
		if len(revisions) == 1 {
			base = tree(revisions[0])
		}
		return r.markUnmerged(compareTrees(base, staged(r.readIndex()), spec))
	}
	if r.workTree == "" {
		fatal("this operation must be run in a work tree")
	}
	idx := r.readIndex()
	disk := r.worktree(idx)
	base := staged(idx)
	if len(revisions) == 1 {
		hash, _ := r.resolve(revisions[0])
		if fromMergeBase {
			if bases := r.mergeBases(hash, r.head()); len(bases) > 0 {
				hash = bases[0]
			}
		}
		base = r.treeOf(hash)
	}
	conflicts := unmerged(idx)
	for name := range conflicts {
		if len(revisions) == 0 {
			delete(disk, name)
		}
	}
	changes := compareTrees(base, disk, spec)
	for _, c := range changes {
		c.hasNewOnDisk = c.new.mode != 0
	}
	if len(revisions) == 0 {
		for name := range conflicts {
			if spec.matches(name) {
				changes = append(changes, &change{from: name, to: name, status: 'U', isUnmerged: true})
			}
		}
		sortBy(changes, func(c *change) string { return c.to })
	}
	return changes
}

func (r *repo) markUnmerged(changes []*change) []*change {
	conflicts := unmerged(r.readIndex())
	for _, c := range changes {
		if _, isConflict := conflicts[c.to]; isConflict {
			c.isUnmerged, c.status = true, 'U'
		}
	}
	return changes
}

func diffNoIndex(o *options) {
	names := o.all()
	if len(names) != 2 {
		usage("usage: git diff --no-index [<options>] <path> <path>")
	}
	c := &change{from: names[0], to: names[1], status: 'M', hasLoaded: true}
	read := func(name string) ([]byte, node) {
		data, err := os.ReadFile(name)
		if err != nil {
			panic(stop{exitFailure, fmt.Sprintf("error: Could not access '%s'", name)})
		}
		return data, node{plumbing.ComputeHash(plumbing.BlobObject, data), filemode.Regular}
	}
	c.oldData, c.old = read(names[0])
	c.newData, c.new = read(names[1])
	if c.old == c.new {
		return
	}
	f := formatFrom(o)
	if !f.isAnything() {
		f.patch = true
	}
	(&repo{}).printChanges([]*change{c}, f)
	exit(exitFailure)
}
