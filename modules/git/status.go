package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// state is everything that `git status` talks about.
type state struct {
	staged, unstaged []*change
	conflicts        map[string]int
	scan
}

func (r *repo) state(wantsAll, withUntracked bool, spec pathspec) state {
	idx := r.readIndex()
	conflicts := unmerged(idx)
	var s state
	s.conflicts = map[string]int{}
	for name, stages := range conflicts {
		if spec.matches(name) {
			s.conflicts[name] = stages
		}
	}
	isClean := func(c *change) bool { _, isConflict := conflicts[c.to]; return isConflict }
	head, inIndex, disk := r.treeOf(r.head()), staged(idx), r.worktree(idx)
	s.staged = r.findRenames(slices.DeleteFunc(compareTrees(head, inIndex, spec), isClean))
	s.unstaged = slices.DeleteFunc(compareTrees(inIndex, disk, spec), isClean)
	for _, c := range s.unstaged {
		c.hasNewOnDisk = c.new.mode != 0
	}
	for _, e := range idx.Entries {
		if e.IntentToAdd && e.Stage == stageMerged {
			s.unstaged = slices.DeleteFunc(s.unstaged, func(c *change) bool { return c.to == e.Name })
			if n, found := disk[e.Name]; found {
				s.unstaged = append(s.unstaged, &change{from: e.Name, to: e.Name, new: n, status: 'A', hasNewOnDisk: true})
			}
		}
	}
	if withUntracked {
		s.scan = r.scanUntracked(idx, wantsAll)
		keep := func(name string) bool { return !spec.matches(strings.TrimSuffix(name, "/")) && !spec.isBelow(name) }
		s.untracked = slices.DeleteFunc(s.untracked, keep)
		s.ignored = slices.DeleteFunc(s.ignored, keep)
	}
	return s
}

// isBelow: a pathspec that names something inside the directory.
func (spec pathspec) isBelow(dir string) bool {
	return slices.ContainsFunc(spec, func(each string) bool { return strings.HasSuffix(dir, "/") && strings.HasPrefix(each, dir) })
}

var conflictCodes = map[int]string{1: "DD", 2: "AU", 4: "UA", 3: "UD", 5: "DU", 6: "AA", 7: "UU"}
var conflictWords = map[string]string{"DD": "both deleted:", "AU": "added by us:", "UA": "added by them:", "UD": "deleted by them:", "DU": "deleted by us:", "AA": "both added:", "UU": "both modified:"}

func cmdStatus(args []string) {
	var rest []string
	untracked := "normal"
	for _, arg := range args {
		switch {
		case arg == "-uno" || arg == "--untracked-files=no":
			untracked = "no"
		case arg == "-u" || arg == "-uall" || arg == "--untracked-files=all" || arg == "--untracked-files":
			untracked = "all"
		case arg == "-unormal" || arg == "--untracked-files=normal":
		default:
			rest = append(rest, arg)
		}
	}
	o := parseOptions(rest, "-s --short -b --branch --porcelain --long --ignored -z --show-stash --no-renames -v --verbose --ahead-behind --no-ahead-behind --no-column", "")
	r := openWorkTree()
	if value, found := r.config.get("status.showUntrackedFiles"); found && untracked == "normal" {
		untracked = value
	}
	s := r.state(untracked == "all", untracked != "no", r.pathspec(o.all()))
	if o.has("--porcelain") && o.value("--porcelain") == "v2" {
		fatal("unsupported porcelain version 'v2'")
	}
	if o.has("-s", "--short", "--porcelain", "-z") {
		r.printShortStatus(s, o)
		return
	}
	r.printLongStatus(s, o.has("--ignored"), untracked == "no")
}

func (r *repo) printShortStatus(s state, o *options) {
	isPorcelain := o.has("--porcelain", "-z")
	shown := r.shown
	end := "\n"
	if isPorcelain {
		shown = func(name string) string { return name }
	}
	if o.has("-z") {
		end = "\x00"
	}
	print := func(name string) string {
		if o.has("-z") {
			return name
		}
		q := quoted(shown(name))
		if strings.Contains(q, " ") && q[0] != '"' {
			return `"` + q + `"`
		}
		return q
	}
	if o.has("-b", "--branch") {
		r.printBranchLine()
	}
	type row struct{ code, from string }
	rows := map[string]*row{}
	at := func(name string) *row {
		if rows[name] == nil {
			rows[name] = &row{code: "  "}
		}
		return rows[name]
	}
	for _, c := range s.staged {
		rw := at(c.to)
		rw.code = string(c.status) + rw.code[1:]
		if c.isRename() {
			rw.from = c.from
		}
	}
	for _, c := range s.unstaged {
		rw := at(c.to)
		rw.code = rw.code[:1] + string(c.status)
	}
	for name, stages := range s.conflicts {
		at(name).code = conflictCodes[stages]
	}
	for _, name := range sortedKeys(rows) {
		rw := rows[name]
		switch {
		case rw.from != "" && o.has("-z"):
			say("%s %s\x00%s\x00", rw.code, name, rw.from)
		case rw.from != "":
			say("%s %s -> %s\n", rw.code, print(rw.from), print(name))
		default:
			say("%s %s%s", rw.code, print(name), end)
		}
	}
	for _, name := range s.untracked {
		say("?? %s%s", print(name), end)
	}
	if o.has("--ignored") {
		for _, name := range s.ignored {
			say("!! %s%s", print(name), end)
		}
	}
}

func (r *repo) printBranchLine() {
	branch := r.branch()
	switch {
	case branch == "":
		say("## HEAD (no branch)\n")
	case r.head().IsZero():
		say("## No commits yet on %s\n", branch)
	default:
		say("## %s", branch)
		if upstream, ahead, behind := r.tracking(branch); upstream != "" {
			say("...%s", upstream)
			switch {
			case ahead > 0 && behind > 0:
				say(" [ahead %d, behind %d]", ahead, behind)
			case ahead > 0:
				say(" [ahead %d]", ahead)
			case behind > 0:
				say(" [behind %d]", behind)
			}
		}
		say("\n")
	}
}

func (r *repo) printLongStatus(s state, withIgnored, isUntrackedHidden bool) {
	branch := r.branch()
	if branch == "" {
		say("HEAD detached at %s\n", r.detachedName())
	} else {
		say("On branch %s\n", branch)
		r.printTracking(branch)
	}
	isInitial := r.head().IsZero()
	isMerging := r.isMerging()
	if isInitial {
		say("\nNo commits yet\n")
	}
	if isMerging {
		if len(s.conflicts) > 0 {
			say("You have unmerged paths.\n  (fix conflicts and run \"git commit\")\n  (use \"git merge --abort\" to abort the merge)\n")
		} else {
			say("All conflicts fixed but you are still merging.\n  (use \"git commit\" to conclude merge)\n")
		}
	}
	if isInitial || isMerging {
		say("\n")
	}
	section := func(title string) { say("%s\n", title) }
	unstageHint := "  (use \"git restore --staged <file>...\" to unstage)\n"
	if isInitial {
		unstageHint = "  (use \"git rm --cached <file>...\" to unstage)\n"
	}
	if len(s.staged) > 0 {
		section("Changes to be committed:")
		if !isMerging {
			say("%s", unstageHint)
		}
		for _, c := range s.staged {
			r.printStatusLine(c)
		}
		say("\n")
	}
	if len(s.conflicts) > 0 {
		section("Unmerged paths:")
		hasDeletion := false
		for _, stages := range s.conflicts {
			hasDeletion = hasDeletion || stages == 3 || stages == 5 || stages == 1
		}
		if hasDeletion {
			say("  (use \"git add/rm <file>...\" as appropriate to mark resolution)\n")
		} else {
			say("  (use \"git add <file>...\" to mark resolution)\n")
		}
		for _, name := range sortedKeys(s.conflicts) {
			say("\t%-17s%s\n", conflictWords[conflictCodes[s.conflicts[name]]], quoted(r.shown(name)))
		}
		say("\n")
	}
	if len(s.unstaged) > 0 {
		section("Changes not staged for commit:")
		hasDeletion := slices.ContainsFunc(s.unstaged, func(c *change) bool { return c.status == 'D' })
		if hasDeletion {
			say("  (use \"git add/rm <file>...\" to update what will be committed)\n")
		} else {
			say("  (use \"git add <file>...\" to update what will be committed)\n")
		}
		say("  (use \"git restore <file>...\" to discard changes in working directory)\n")
		for _, c := range s.unstaged {
			r.printStatusLine(c)
		}
		say("\n")
	}
	if len(s.untracked) > 0 {
		section("Untracked files:")
		say("  (use \"git add <file>...\" to include in what will be committed)\n")
		for _, name := range s.untracked {
			say("\t%s\n", quoted(r.shown(name)))
		}
		say("\n")
	}
	if withIgnored && len(s.ignored) > 0 {
		section("Ignored files:")
		say("  (use \"git add -f <file>...\" to include in what will be committed)\n")
		for _, name := range s.ignored {
			say("\t%s\n", quoted(r.shown(name)))
		}
		say("\n")
	}
	if isUntrackedHidden && len(s.staged)+len(s.unstaged) > 0 {
		say("Untracked files not listed (use -u option to show untracked files)\n")
	}
	r.printStatusEnd(s, isInitial, isUntrackedHidden, isMerging)
}

func (r *repo) printStatusEnd(s state, isInitial, isUntrackedHidden, isMerging bool) {
	switch {
	case len(s.staged) > 0 || isMerging && len(s.conflicts) == 0:
	case len(s.unstaged) > 0 || len(s.conflicts) > 0:
		say("no changes added to commit (use \"git add\" and/or \"git commit -a\")\n")
	case len(s.untracked) > 0:
		say("nothing added to commit but untracked files present (use \"git add\" to track)\n")
	case isInitial:
		say("nothing to commit (create/copy files and use \"git add\" to track)\n")
	case isUntrackedHidden:
		say("nothing to commit (use -u to show untracked files)\n")
	default:
		say("nothing to commit, working tree clean\n")
	}
}

var statusWords = map[byte]string{'A': "new file:", 'M': "modified:", 'D': "deleted:", 'R': "renamed:", 'T': "typechange:"}

func (r *repo) printStatusLine(c *change) {
	name := quoted(r.shown(c.to))
	if c.isRename() {
		name = quoted(r.shown(c.from)) + " -> " + name
	}
	say("\t%-12s%s\n", statusWords[c.status], name)
}

func (r *repo) isMerging() bool {
	_, err := os.Stat(filepath.Join(r.gitDir, "MERGE_HEAD"))
	return err == nil
}

// detachedName is the tag that HEAD was set to, or else the short hash.
func (r *repo) detachedName() string {
	head := r.head()
	for _, ref := range r.refsUnder("refs/tags/") {
		if hash, found := r.peel(ref.Hash(), "commit"); found && hash == head && strings.HasSuffix(r.lastCheckout(), " to "+ref.Name().Short()) {
			return ref.Name().Short()
		}
	}
	return short(head)
}

// lastCheckout is the newest "checkout: moving from A to B" in HEAD's log.
func (r *repo) lastCheckout() string {
	data, _ := os.ReadFile(filepath.Join(r.gitDir, "logs", "HEAD"))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if _, message, _ := strings.Cut(lines[i], "\t"); strings.HasPrefix(message, "checkout: moving from ") {
			return message
		}
	}
	return ""
}

func (r *repo) previousBranch() string {
	from, _, found := strings.Cut(strings.TrimPrefix(r.lastCheckout(), "checkout: moving from "), " to ")
	if !found {
		return ""
	}
	return from
}
