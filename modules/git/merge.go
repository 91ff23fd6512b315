package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/plumbing/object"
)

func cmdMerge(args []string) {
	o := parseOptions(args, "--ff --no-ff --ff-only --no-edit -e --edit --commit --no-commit --squash --abort --continue --quit -q --quiet -v --verbose --stat --no-stat -n --allow-unrelated-histories --no-verify --progress --no-progress", "-m --message -s --strategy -X --strategy-option -F --into-name")
	r := openWorkTree()
	switch {
	case o.has("--abort"):
		r.abortMerge()
		return
	case o.has("--continue"):
		if !r.isMerging() {
			fatal("There is no merge in progress (MERGE_HEAD missing).")
		}
		cmdCommit([]string{"--no-edit"})
		return
	case o.has("--quit"):
		r.endMerge()
		return
	}
	if len(unmerged(r.readIndex())) > 0 {
		warn("error: Merging is not possible because you have unmerged files.\nhint: Fix them up in the work tree, and then use 'git add/rm <file>'\nhint: as appropriate to mark resolution and make a commit.")
		fatal("Exiting because of an unresolved conflict.")
	}
	if r.isMerging() {
		fatal("You have not concluded your merge (MERGE_HEAD exists).\nPlease, commit your changes before you merge.")
	}
	if len(o.rest) != 1 {
		if len(o.rest) == 0 {
			fatal("No remote for the current branch.")
		}
		fatal("merging more than one branch at once is not supported")
	}
	name := o.rest[0]
	theirs, found := r.resolveCommit(name)
	if !found {
		warn("merge: %s - not something we can merge", name)
		exit(exitFailure)
	}
	r.merge(name, theirs, o)
}

func (r *repo) abortMerge() {
	if !r.isMerging() {
		fatal("There is no merge to abort (MERGE_HEAD missing).")
	}
	r.forceTree(r.treeOf(r.head()))
	r.endMerge()
}

func (r *repo) merge(name string, theirs plumbing.Hash, o *options) {
	ours := r.head()
	if ours.IsZero() {
		r.forceTree(r.treeOf(theirs))
		r.updateHead(theirs, "initial pull")
		return
	}
	bases := r.mergeBases(ours, theirs)
	if len(bases) == 0 && !o.has("--allow-unrelated-histories") {
		fatal("refusing to merge unrelated histories")
	}
	isFF := r.config.isTrue("merge.ff", true) || o.has("--ff")
	switch {
	case len(bases) > 0 && bases[0] == theirs:
		say("Already up to date.\n")
	case len(bases) > 0 && bases[0] == ours && !o.has("--no-ff") && isFF:
		r.fastForward(name, ours, theirs, o)
	case o.has("--ff-only"):
		warn("hint: Diverging branches can't be fast-forwarded, you need to either:\nhint:\nhint: \tgit merge --no-ff\nhint:\nhint: or:\nhint:\nhint: \tgit rebase\nhint:\nhint: Disable this message with \"git config advice.diverging false\"")
		fatal("Not possible to fast-forward, aborting.")
	default:
		base := plumbing.ZeroHash
		if len(bases) > 0 {
			base = bases[0]
		}
		r.threeWay(name, base, ours, theirs, o)
	}
}

func (r *repo) fastForward(name string, ours, theirs plumbing.Hash, o *options) {
	if !o.has("-q", "--quiet") {
		say("Updating %s..%s\n", short(ours), short(theirs))
	}
	changed, untracked := r.switchTree(r.treeOf(ours), r.treeOf(theirs))
	refuseOverwrite(changed, untracked, "merge", "merge")
	if o.has("--squash") {
		say("Fast-forward\nSquash commit -- not updating HEAD\n")
	} else {
		must(r.store.SetReference(plumbing.NewHashReference("ORIG_HEAD", ours)))
		r.updateHead(theirs, "merge "+name+": Fast-forward")
		if !o.has("-q", "--quiet") {
			say("Fast-forward\n")
		}
	}
	r.printMergeStat(ours, theirs, o)
}

func (r *repo) printMergeStat(from, to plumbing.Hash, o *options) {
	if o.has("-q", "--quiet", "-n", "--no-stat") {
		return
	}
	changes := r.findRenames(compareTrees(r.treeOf(from), r.treeOf(to), nil))
	r.printStat(changes, true)
	printSummary(changes)
}

// conflict is one path that the merge could not settle.
type conflict struct {
	name                string
	base, ours, theirs_ node
	text                []byte // what the file on disk gets
	note                string
}

func (r *repo) threeWay(name string, base, ours, theirs plumbing.Hash, o *options) {
	baseTree, ourTree, theirTree := r.treeOf(base), r.treeOf(ours), r.treeOf(theirs)
	result, conflicts, notes := r.mergeTrees(baseTree, ourTree, theirTree, name, o.value("-X", "--strategy-option"))
	changed, untracked := r.switchTreeForMerge(ourTree, result, conflicts)
	refuseOverwrite(changed, untracked, "merge", "merge")
	must(r.store.SetReference(plumbing.NewHashReference("ORIG_HEAD", ours)))
	for _, line := range notes {
		say("%s\n", line)
	}
	message := r.mergeMessage(name, o)
	if len(conflicts) > 0 {
		for _, c := range conflicts {
			say("%s\n", c.note)
		}
		r.leaveConflicts(conflicts, theirs, message)
		say("Automatic merge failed; fix conflicts and then commit the result.\n")
		exit(exitFailure)
	}
	if o.has("--squash") {
		say("Squash commit -- not updating HEAD\nAutomatic merge went well; stopped before committing as requested\n")
		return
	}
	if o.has("--no-commit") {
		r.writeMergeFiles(theirs, message, nil)
		say("Automatic merge went well; stopped before committing as requested\n")
		return
	}
	commit := &object.Commit{Author: r.ident("AUTHOR"), Committer: r.ident("COMMITTER"), Message: message, TreeHash: r.writeTree(result), ParentHashes: []plumbing.Hash{ours, theirs}}
	hash := r.writeObject(commit)
	r.updateHead(hash, "merge "+name+": Merge made by the 'ort' strategy.")
	if !o.has("-q", "--quiet") {
		say("Merge made by the 'ort' strategy.\n")
	}
	r.printMergeStat(ours, hash, o)
}

func (r *repo) mergeMessage(name string, o *options) string {
	if o.has("-m", "--message") {
		return cleanMessage(strings.Join(append(o.flags["-m"], o.flags["--message"]...), "\n\n"), false)
	}
	kind := "commit"
	switch {
	case r.hasBranch(name):
		kind = "branch"
	case !r.refHash(plumbing.NewTagReferenceName(name)).IsZero():
		kind = "tag"
	case !r.refHash(plumbing.ReferenceName("refs/remotes/" + name)).IsZero():
		kind = "remote-tracking branch"
	}
	message := fmt.Sprintf("Merge %s '%s'", kind, name)
	into := r.branch()
	if into == "" {
		into = "HEAD"
	}
	if into != "master" && into != "main" {
		message += " into " + into
	}
	return message + "\n"
}

func (r *repo) writeMergeFiles(theirs plumbing.Hash, message string, conflicts []conflict) {
	text := message
	if len(conflicts) > 0 {
		text += "\n# Conflicts:\n"
		for _, c := range conflicts {
			text += "#\t" + c.name + "\n"
		}
	}
	must(os.WriteFile(filepath.Join(r.gitDir, "MERGE_HEAD"), []byte(theirs.String()+"\n"), 0o644))
	must(os.WriteFile(filepath.Join(r.gitDir, "MERGE_MSG"), []byte(text), 0o644))
	must(os.WriteFile(filepath.Join(r.gitDir, "MERGE_MODE"), nil, 0o644))
}

func (r *repo) leaveConflicts(conflicts []conflict, theirs plumbing.Hash, message string) {
	idx := r.readIndex()
	for _, c := range conflicts {
		removeEntry(idx, c.name)
		for stage, n := range map[index.Stage]node{index.AncestorMode: c.base, index.OurMode: c.ours, index.TheirMode: c.theirs_} {
			if n.mode != 0 {
				idx.Entries = append(idx.Entries, &index.Entry{Name: c.name, Hash: n.hash, Mode: n.mode, Stage: stage})
			}
		}
		if c.text != nil {
			must(os.MkdirAll(filepath.Dir(r.file(c.name)), 0o755))
			must(os.WriteFile(r.file(c.name), c.text, 0o644))
		}
	}
	r.writeIndex(idx)
	r.writeMergeFiles(theirs, message, conflicts)
}

// switchTreeForMerge moves to the merged tree; conflicted paths keep our side for now.
func (r *repo) switchTreeForMerge(ours, result snapshot, conflicts []conflict) (changed, untracked []string) {
	idx := r.readIndex()
	disk := r.worktree(idx)
	for _, c := range compareTrees(ours, staged(idx), nil) { // an index that differs from HEAD stands in the way
		changed = append(changed, c.to)
	}
	for _, c := range conflicts {
		if n, found := disk[c.name]; found && n != ours[c.name] {
			changed = append(changed, c.name)
		}
	}
	if len(changed) > 0 {
		slices.Sort(changed)
		return slices.Compact(changed), nil
	}
	return r.switchTree(ours, result)
}

func (r *repo) mergeTrees(base, ours, theirs snapshot, label, option string) (snapshot, []conflict, []string) {
	result := snapshot{}
	var conflicts []conflict
	var notes []string
	names := union(base, ours)
	for name := range theirs {
		names[name] = true
	}
	renamed := r.followRenames(base, ours, theirs, names)
	for _, name := range sortedKeys(names) {
		b, o, t := base[name], ours[name], theirs[name]
		if from, isRenamed := renamed[name]; isRenamed {
			b = base[from]
			if o.mode == 0 {
				o = ours[from]
			}
			if t.mode == 0 {
				t = theirs[from]
			}
		}
		switch {
		case o == t || t == b:
			if o.mode != 0 {
				result[name] = o
			}
		case o == b:
			if t.mode != 0 {
				result[name] = t
			}
		case o.mode == 0 || t.mode == 0:
			c := conflict{name: name, base: b, ours: o, theirs_: t}
			gone, kept, keptNode := "HEAD", label, t
			if t.mode == 0 {
				gone, kept, keptNode = label, "HEAD", o
			}
			c.note = fmt.Sprintf("CONFLICT (modify/delete): %s deleted in %s and modified in %s.  Version %s of %s left in tree.", name, gone, kept, kept, name)
			c.text = r.readBlob(keptNode.hash)
			if o.mode != 0 {
				result[name] = o
			}
			conflicts = append(conflicts, c)
		default:
			merged, isClean := r.mergeFile(b, o, t, label, option)
			notes = append(notes, "Auto-merging "+name)
			mode := o.mode
			if o.mode == b.mode {
				mode = t.mode
			}
			if isClean {
				result[name] = node{r.writeBlob(merged), mode}
				continue
			}
			kind := "content"
			if b.mode == 0 {
				kind = "add/add"
			}
			result[name] = o
			conflicts = append(conflicts, conflict{name: name, base: b, ours: o, theirs_: t, text: merged, note: fmt.Sprintf("CONFLICT (%s): Merge conflict in %s", kind, name)})
		}
	}
	return result, conflicts, notes
}

// followRenames maps a new name to its old one when one side renamed and the other kept the file; the old name is done with.
func (r *repo) followRenames(base, ours, theirs snapshot, names map[string]bool) map[string]string {
	renamed := map[string]string{}
	for _, side := range []snapshot{ours, theirs} {
		for _, c := range r.findRenames(compareTrees(base, side, nil)) {
			if !c.isRename() {
				continue
			}
			_, inOurs := ours[c.from]
			_, inTheirs := theirs[c.from]
			if inOurs != inTheirs {
				renamed[c.to] = c.from
				delete(names, c.from)
			}
		}
	}
	return renamed
}

// mergeFile merges line by line; where both sides changed the same lines it leaves Git's markers.
func (r *repo) mergeFile(base, ours, theirs node, label, option string) ([]byte, bool) {
	var baseData []byte
	if base.mode != 0 {
		baseData = r.readBlob(base.hash)
	}
	ourData, theirData := r.readBlob(ours.hash), r.readBlob(theirs.hash)
	switch {
	case option == "ours" && (isBinary(ourData) || isBinary(theirData)):
		return ourData, true
	case option == "theirs" && (isBinary(ourData) || isBinary(theirData)):
		return theirData, true
	case isBinary(ourData) || isBinary(theirData) || ours.mode == filemode.Symlink || theirs.mode == filemode.Symlink:
		return ourData, false
	}
	return mergeText(splitLines(baseData), splitLines(ourData), splitLines(theirData), label, option)
}

type side struct {
	lines []string
	edits []edit
	next  int
}

func mergeText(base, ours, theirs []string, label, option string) ([]byte, bool) {
	a := side{lines: ours, edits: edits(lineDiff(base, ours))}
	b := side{lines: theirs, edits: edits(lineDiff(base, theirs))}
	var text strings.Builder
	isClean := true
	at := 0
	for a.next < len(a.edits) || b.next < len(b.edits) {
		start := len(base) + 1
		for _, s := range []*side{&a, &b} {
			if s.next < len(s.edits) {
				start = min(start, s.edits[s.next].a0)
			}
		}
		text.WriteString(strings.Join(base[at:start], ""))
		end := start
		firstA, firstB := a.next, b.next
		for isGrowing := true; isGrowing; { // take in every change that touches the region
			isGrowing = false
			for _, s := range []*side{&a, &b} {
				for s.next < len(s.edits) && s.edits[s.next].a0 <= end && (s.edits[s.next].a0 < end || s.edits[s.next].a0 == start || end > start) {
					end = max(end, s.edits[s.next].a1)
					s.next++
					isGrowing = true
				}
			}
		}
		ourPart, theirPart := a.region(firstA, start, end), b.region(firstB, start, end)
		switch {
		case firstB == b.next || slices.Equal(ourPart, theirPart) || option == "ours":
			text.WriteString(strings.Join(ourPart, ""))
		case firstA == a.next || option == "theirs":
			text.WriteString(strings.Join(theirPart, ""))
		default:
			isClean = false
			writeConflict(&text, ourPart, theirPart, label)
		}
		at = end
	}
	text.WriteString(strings.Join(base[min(at, len(base)):], ""))
	return []byte(text.String()), isClean
}

// region is what this side has in place of base[start:end], given its edits from first up to next.
func (s *side) region(first, start, end int) []string {
	shift := 0
	if first > 0 {
		shift = s.edits[first-1].b1 - s.edits[first-1].a1
	}
	from := start + shift
	if s.next > first {
		shift = s.edits[s.next-1].b1 - s.edits[s.next-1].a1
	}
	return s.lines[from : end+shift]
}

// writeConflict trims what both sides begin and end with, then writes the markers.
func writeConflict(text *strings.Builder, ours, theirs []string, label string) {
	head := 0
	for head < len(ours) && head < len(theirs) && ours[head] == theirs[head] {
		head++
	}
	tail := 0
	for tail < len(ours)-head && tail < len(theirs)-head && ours[len(ours)-1-tail] == theirs[len(theirs)-1-tail] {
		tail++
	}
	closed := func(lines []string) string {
		joined := strings.Join(lines, "")
		if joined != "" && !strings.HasSuffix(joined, "\n") {
			joined += "\n"
		}
		return joined
	}
	text.WriteString(strings.Join(ours[:head], ""))
	fmt.Fprintf(text, "<<<<<<< HEAD\n%s=======\n%s>>>>>>> %s\n", closed(ours[head:len(ours)-tail]), closed(theirs[head:len(theirs)-tail]), label)
	text.WriteString(strings.Join(ours[len(ours)-tail:], ""))
}

func cmdMergeBase(args []string) {
	o := parseOptions(args, "-a --all --is-ancestor --octopus --fork-point", "")
	r := openRepo()
	if len(o.rest) < 2 {
		usage("usage: git merge-base [-a | --all] <commit> <commit>...")
	}
	a, b := r.mustCommit(o.rest[0]), r.mustCommit(o.rest[1])
	if o.has("--is-ancestor") {
		if !r.isAncestor(a, b) {
			exit(exitFailure)
		}
		return
	}
	bases := r.mergeBases(a, b)
	if len(bases) == 0 {
		exit(exitFailure)
	}
	if !o.has("-a", "--all") {
		bases = bases[:1]
	}
	for _, hash := range bases {
		say("%s\n", hash)
	}
}
