package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/plumbing/object"
)

var badRefName = regexp.MustCompile(`(^[-/.]|\.\.|[\x00-\x20~^:?*\[\\\x7f]|//|/\.|\.lock(/|$)|@\{|[/.]$|^@$|^$)`)

func checkBranchName(name string) {
	if badRefName.MatchString(name) || name == "HEAD" {
		fatal("'%s' is not a valid branch name", name)
	}
}

func branchRef(name string) plumbing.ReferenceName { return plumbing.NewBranchReferenceName(name) }

func (r *repo) hasBranch(name string) bool { return !r.refHash(branchRef(name)).IsZero() }

// tracking returns the upstream of a branch and how far the two are apart.
func (r *repo) tracking(branch string) (upstream string, ahead, behind int) {
	remote, hasRemote := r.config.get("branch." + branch + ".remote")
	merge, hasMerge := r.config.get("branch." + branch + ".merge")
	if !hasRemote || !hasMerge {
		return "", 0, 0
	}
	name := plumbing.ReferenceName("refs/remotes/" + remote + "/" + strings.TrimPrefix(merge, "refs/heads/"))
	if remote == "." {
		name = plumbing.ReferenceName(merge)
	}
	theirs, ours := r.refHash(name), r.refHash(branchRef(branch))
	if theirs.IsZero() {
		return "", 0, 0
	}
	count := func(from, hide plumbing.Hash) int {
		n := 0
		r.walk([]plumbing.Hash{from}, []plumbing.Hash{hide}, func(*object.Commit) bool { n++; return true })
		return n
	}
	return name.Short(), count(ours, theirs), count(theirs, ours)
}

func (r *repo) printTracking(branch string) {
	upstream, ahead, behind := r.tracking(branch)
	if upstream == "" {
		return
	}
	commits := func(n int) string { return plural(n, "commit") }
	switch {
	case ahead == 0 && behind == 0:
		say("Your branch is up to date with '%s'.\n\n", upstream)
	case behind == 0:
		say("Your branch is ahead of '%s' by %d %s.\n  (use \"git push\" to publish your local commits)\n\n", upstream, ahead, commits(ahead))
	case ahead == 0:
		say("Your branch is behind '%s' by %d %s, and can be fast-forwarded.\n  (use \"git pull\" to update your local branch)\n\n", upstream, behind, commits(behind))
	default:
		say("Your branch and '%s' have diverged,\nand have %d and %d different commits each, respectively.\n  (use \"git pull\" to merge the remote branch into yours)\n\n", upstream, ahead, behind)
	}
}

// ---- git branch ----

func cmdBranch(args []string) {
	o := parseOptions(args, "-a --all -r --remotes -v -vv --verbose -l --list -d --delete -D -m --move -M -c --copy -C -f --force -q --quiet --show-current --no-color --color -t --track --no-track --merged --no-merged --unset-upstream --no-column -i --ignore-case", "-u --set-upstream-to --contains --format --sort --points-at")
	r := openRepo()
	switch {
	case o.has("--show-current"):
		if name := r.branch(); name != "" {
			say("%s\n", name)
		}
	case o.has("-d", "-D", "--delete"):
		for _, name := range o.rest {
			r.deleteBranch(name, o.has("-D", "-f", "--force"), o.has("-r", "--remotes"), o.has("-q", "--quiet"))
		}
	case o.has("-m", "-M", "--move"):
		r.renameBranch(o.rest, o.has("-M", "-f", "--force"))
	case o.has("-c", "-C", "--copy"):
		from := r.branch()
		if len(o.rest) > 1 {
			from = o.rest[0]
		}
		r.createBranch(o.rest[len(o.rest)-1], r.mustCommit(from), o.has("-C", "-f"))
	case o.has("-u", "--set-upstream-to"):
		r.setUpstream(r.branch(), o.value("-u", "--set-upstream-to"))
	case o.has("--unset-upstream"):
		r.config.local.unset("branch." + r.branch() + ".remote")
		r.config.local.unset("branch." + r.branch() + ".merge")
		r.config.local.write()
	case len(o.rest) > 0 && !o.has("-l", "--list", "-a", "--all", "-r", "--remotes", "--contains", "--merged", "--no-merged"):
		start := "HEAD"
		if len(o.rest) > 1 {
			start = o.rest[1]
		}
		hash, found := r.resolveCommit(start)
		if !found {
			fatal("not a valid object name: '%s'", r.startName(start))
		}
		r.createBranch(o.rest[0], hash, o.has("-f", "--force"))
		if !o.has("--no-track") && strings.HasPrefix(start, "origin/") {
			r.setUpstream(o.rest[0], start)
		}
	default:
		r.listBranches(o)
	}
}

// startName: before the first commit Git names the branch instead of HEAD.
func (r *repo) startName(start string) string {
	if start == "HEAD" && r.branch() != "" {
		return r.branch()
	}
	return start
}

func (r *repo) createBranch(name string, hash plumbing.Hash, isForced bool) {
	checkBranchName(name)
	old := r.refHash(branchRef(name))
	if !old.IsZero() && !isForced {
		fatal("a branch named '%s' already exists", name)
	}
	if isForced && name == r.branch() && !old.IsZero() {
		fatal("cannot force update the branch '%s' checked out at '%s'", name, r.workTree)
	}
	must(r.store.SetReference(plumbing.NewHashReference(branchRef(name), hash)))
	r.logRef(branchRef(name), old, hash, "branch: Created from HEAD")
}

func (r *repo) deleteBranch(name string, isForced, isRemote, isQuiet bool) {
	ref := branchRef(name)
	if isRemote {
		ref = plumbing.ReferenceName("refs/remotes/" + name)
	}
	hash := r.refHash(ref)
	if hash.IsZero() {
		fail("branch '%s' not found.", name)
	}
	if name == r.branch() && !isRemote {
		fail("Cannot delete branch '%s' checked out at '%s'", name, r.workTree)
	}
	if !isForced && !isRemote && !r.isAncestor(hash, r.head()) {
		fail("The branch '%s' is not fully merged.\nIf you are sure you want to delete it, run 'git branch -D %s'.", name, name)
	}
	must(r.store.RemoveReference(ref))
	os.Remove(r.gitDir + "/logs/" + string(ref))
	if r.config.local.removeSection("branch." + name) {
		r.config.local.write()
	}
	if !isQuiet {
		kind := "branch"
		if isRemote {
			kind = "remote-tracking branch"
		}
		say("Deleted %s %s (was %s).\n", kind, name, short(hash))
	}
}

func (r *repo) renameBranch(names []string, isForced bool) {
	from := r.branch()
	if len(names) == 0 {
		fatal("branch name required")
	}
	to := names[len(names)-1]
	if len(names) > 1 {
		from = names[0]
	}
	checkBranchName(to)
	hash := r.refHash(branchRef(from))
	if hash.IsZero() && from == r.branch() {
		r.attachHead(to)
		return
	}
	if hash.IsZero() {
		fatal("no branch named '%s'", from)
	}
	if from == to {
		return
	}
	if r.hasBranch(to) && !isForced {
		fatal("a branch named '%s' already exists", to)
	}
	must(r.store.SetReference(plumbing.NewHashReference(branchRef(to), hash)))
	isCurrent := r.branch() == from
	must(r.store.RemoveReference(branchRef(from)))
	os.MkdirAll(r.gitDir+"/logs/refs/heads", 0o755)
	os.Rename(r.gitDir+"/logs/refs/heads/"+from, r.gitDir+"/logs/refs/heads/"+to)
	if isCurrent {
		r.attachHead(to)
	}
}

func (r *repo) setUpstream(branch, upstream string) {
	remote, name, isRemote := strings.Cut(upstream, "/")
	if !isRemote || r.refHash(plumbing.ReferenceName("refs/remotes/"+upstream)).IsZero() {
		if !r.hasBranch(upstream) {
			fatal("the requested upstream branch '%s' does not exist", upstream)
		}
		remote, name = ".", upstream
	}
	r.config.local.set("branch."+branch+".remote", remote)
	r.config.local.set("branch."+branch+".merge", "refs/heads/"+name)
	r.config.local.write()
	say("branch '%s' set up to track '%s'.\n", branch, upstream)
}

func (r *repo) listBranches(o *options) {
	type row struct {
		name, shown string
		hash        plumbing.Hash
		isCurrent   bool
		target      string
	}
	var rows []row
	current := r.branch()
	if current == "" && !o.has("-r", "--remotes") {
		rows = append(rows, row{shown: "(HEAD detached at " + r.detachedName() + ")", hash: r.head(), isCurrent: true})
	}
	if !o.has("-r", "--remotes") {
		for _, ref := range r.refsUnder("refs/heads/") {
			rows = append(rows, row{ref.Name().Short(), ref.Name().Short(), ref.Hash(), ref.Name().Short() == current, ""})
		}
	}
	if o.has("-a", "--all", "-r", "--remotes") {
		for _, ref := range r.refsUnder("refs/remotes/") {
			shown := ref.Name().Short()
			if !o.has("-r", "--remotes") {
				shown = "remotes/" + shown
			}
			rw := row{ref.Name().Short(), shown, r.refHash(ref.Name()), false, ""}
			if ref.Type() == plumbing.SymbolicReference {
				rw.target = ref.Target().Short()
			}
			rows = append(rows, rw)
		}
	}
	rows = slices.DeleteFunc(rows, func(rw row) bool {
		if len(o.rest) > 0 && !o.has("--merged", "--no-merged", "--contains") && !slices.ContainsFunc(o.rest, func(glob string) bool { return globRegexp(glob).MatchString(rw.name) }) {
			return true
		}
		if o.has("--merged") && !r.isAncestor(rw.hash, r.mustCommit(firstOr(o.rest, "HEAD"))) {
			return true
		}
		if o.has("--no-merged") && r.isAncestor(rw.hash, r.mustCommit(firstOr(o.rest, "HEAD"))) {
			return true
		}
		return o.has("--contains") && !r.isAncestor(r.mustCommit(o.value("--contains")), rw.hash)
	})
	width := 0
	for _, rw := range rows {
		width = max(width, len(rw.shown))
	}
	for _, rw := range rows {
		mark := "  "
		if rw.isCurrent {
			mark = "* "
		}
		switch {
		case o.has("--format"):
			say("%s\n", strings.NewReplacer("%(refname:short)", rw.shown, "%(refname)", "refs/heads/"+rw.name, "%(objectname:short)", short(rw.hash), "%(objectname)", rw.hash.String(), "%(HEAD)", strings.TrimSuffix(mark, " ")).Replace(o.value("--format")))
		case rw.target != "":
			say("%s%s -> %s\n", mark, rw.shown, rw.target)
		case o.has("-v", "-vv", "--verbose"):
			upstream := ""
			if name, ahead, behind := r.tracking(rw.name); name != "" {
				upstream = trackingNote(name, ahead, behind, len(o.flags["-v"]) > 1)
			}
			say("%s%-*s %s %s%s\n", mark, width, rw.shown, short(rw.hash), upstream, subject(r.commit(rw.hash).Message))
		default:
			say("%s%s\n", mark, rw.shown)
		}
	}
}

func trackingNote(name string, ahead, behind int, withName bool) string {
	var parts []string
	if ahead > 0 {
		parts = append(parts, "ahead "+itoa(ahead))
	}
	if behind > 0 {
		parts = append(parts, "behind "+itoa(behind))
	}
	note := strings.Join(parts, ", ")
	switch {
	case withName && note != "":
		return "[" + name + ": " + note + "] "
	case withName:
		return "[" + name + "] "
	case note != "":
		return "[" + note + "] "
	}
	return ""
}

func firstOr(list []string, fallback string) string {
	if len(list) > 0 {
		return list[0]
	}
	return fallback
}

// ---- checkout, switch, restore ----

const switchFlags = "-q --quiet -f --force --detach -t --track --no-track --guess --no-guess --progress --no-progress --ignore-other-worktrees -m --merge --overwrite-ignore"

func cmdCheckout(args []string) {
	r := openWorkTree()
	if len(args) == 1 && args[0] == "-" {
		r.switchTo(r.previousBranch(), &options{})
		return
	}
	o := parseOptions(args, switchFlags+" -p --patch --ours --theirs -l", "-b -B --orphan --conflict")
	if name := o.value("--orphan"); name != "" {
		checkBranchName(name)
		r.attachHead(name)
		say("")
		warn("Switched to a new branch '%s'", name)
		return
	}
	if name := o.value("-b", "-B"); name != "" {
		r.switchToNew(name, firstOr(o.rest, "HEAD"), o.has("-B"), o)
		return
	}
	switch {
	case o.hasDashes && len(o.paths) > 0:
		r.checkoutPaths(firstOr(o.rest, ""), o.paths, o)
	case len(o.rest) == 0:
		if r.head().IsZero() {
			fatal("You are on a branch yet to be born")
		}
		r.listLocalChanges()
	case len(o.rest) == 1 && (r.isCommitish(o.rest[0]) || r.hasRemoteBranch(o.rest[0]) && !r.isTrackedPath(o.rest[0])):
		r.switchTo(o.rest[0], o)
	case r.isCommitish(o.rest[0]) && len(o.rest) > 1:
		r.checkoutPaths(o.rest[0], o.rest[1:], o)
	default:
		r.checkoutPaths("", o.rest, o)
	}
}

func (r *repo) isCommitish(text string) bool {
	_, found := r.resolveCommit(text)
	return found
}

func (r *repo) isTrackedPath(arg string) bool {
	name := r.repoPath(arg)
	return slices.ContainsFunc(r.readIndex().Entries, func(e *index.Entry) bool { return matchesOne(name, e.Name) })
}

func (r *repo) hasRemoteBranch(name string) bool {
	return !r.refHash(plumbing.ReferenceName("refs/remotes/origin/" + name)).IsZero()
}

func cmdSwitch(args []string) {
	r := openWorkTree()
	if len(args) == 1 && args[0] == "-" {
		r.switchTo(r.previousBranch(), &options{})
		return
	}
	o := parseOptions(args, switchFlags+" --discard-changes -d", "-c -C --create --force-create --orphan")
	if name := o.value("-c", "-C", "--create", "--force-create"); name != "" {
		r.switchToNew(name, firstOr(o.rest, "HEAD"), o.has("-C", "--force-create"), o)
		return
	}
	if len(o.rest) == 0 {
		fatal("missing branch or commit argument")
	}
	name := o.rest[0]
	if !r.hasBranch(name) && !r.hasRemoteBranch(name) && !o.has("--detach", "-d") {
		if hash, found := r.resolveCommit(name); found {
			kind := "commit"
			if !r.refHash(plumbing.NewTagReferenceName(name)).IsZero() {
				kind = "tag"
			}
			_ = hash
			fatal("a branch is expected, got %s '%s'\nhint: If you want to detach HEAD at the commit, try again with the --detach option.", kind, name)
		}
		fatal("invalid reference: %s", name)
	}
	r.switchTo(name, o)
}

func (r *repo) switchToNew(name, start string, mayReset bool, o *options) {
	checkBranchName(name)
	exists := r.hasBranch(name)
	if exists && !mayReset {
		fatal("a branch named '%s' already exists", name)
	}
	from := r.whereIAm()
	head := r.head()
	if head.IsZero() && start == "HEAD" {
		r.attachHead(name)
		warn("Switched to a new branch '%s'", name)
		return
	}
	hash, found := r.resolveCommit(start)
	if !found {
		fatal("'%s' is not a commit and a branch '%s' cannot be created from it", start, name)
	}
	r.moveTree(head, hash, o.has("-f", "--force", "--discard-changes"))
	must(r.store.SetReference(plumbing.NewHashReference(branchRef(name), hash)))
	r.logRef(branchRef(name), plumbing.ZeroHash, hash, "branch: Created from "+start)
	r.attachHead(name)
	r.logRef(plumbing.HEAD, head, hash, "checkout: moving from "+from+" to "+name)
	if strings.HasPrefix(start, "origin/") && !o.has("--no-track") {
		r.setUpstream(name, start)
	}
	if o.has("-q", "--quiet") {
		return
	}
	r.listLocalChanges()
	switch {
	case exists && from == name:
		warn("Reset branch '%s'", name)
	case exists:
		warn("Switched to and reset branch '%s'", name)
	default:
		warn("Switched to a new branch '%s'", name)
	}
}

func (r *repo) whereIAm() string {
	if branch := r.branch(); branch != "" {
		return branch
	}
	return r.head().String()
}

func (r *repo) switchTo(name string, o *options) {
	if o.flags == nil {
		o.flags = map[string][]string{}
	}
	if name == "" {
		fatal("invalid reference: -")
	}
	from, head := r.whereIAm(), r.head()
	isBranch := r.hasBranch(name) && !o.has("--detach", "-d")
	if !isBranch && !r.isCommitish(name) && r.hasRemoteBranch(name) {
		r.switchToNew(name, "origin/"+name, false, o)
		return
	}
	if name == r.branch() && isBranch {
		if o.has("-f", "--force", "--discard-changes") {
			r.forceTree(r.treeOf(head))
		}
		if !o.has("-q", "--quiet") {
			r.listLocalChanges()
			warn("Already on '%s'", name)
			r.printTrackingShort(name)
		}
		return
	}
	hash := r.mustCommit(name)
	r.moveTree(head, hash, o.has("-f", "--force", "--discard-changes"))
	wasDetached := r.branch() == ""
	if isBranch {
		r.attachHead(name)
	} else {
		r.detachHead(hash)
	}
	r.logRef(plumbing.HEAD, head, hash, "checkout: moving from "+from+" to "+name)
	if o.has("-q", "--quiet") {
		return
	}
	r.listLocalChanges()
	if wasDetached && head != hash {
		warn("Previous HEAD position was %s %s", short(head), subject(r.commit(head).Message))
	}
	if isBranch {
		warn("Switched to branch '%s'", name)
		r.printTrackingShort(name)
		return
	}
	if !wasDetached && !o.has("--detach", "-d") {
		warn("Note: switching to '%s'.\n\nYou are in 'detached HEAD' state. You can look around, make experimental\nchanges and commit them, and you can discard any commits you make in this\nstate without impacting any branches by switching back to a branch.\n\nIf you want to create a new branch to retain commits you create, you may\ndo so (now or later) by using -c with the switch command. Example:\n\n  git switch -c <new-branch-name>\n\nOr undo this operation with:\n\n  git switch -\n\nTurn off this advice by setting config variable advice.detachedHead to false\n", name)
	}
	warn("HEAD is now at %s %s", short(hash), subject(r.commit(hash).Message))
}

func (r *repo) printTrackingShort(branch string) {
	mark := len(out.buf)
	r.printTracking(branch)
	if text := string(out.buf[mark:]); strings.HasSuffix(text, "\n\n") {
		out.buf = out.buf[:len(out.buf)-1]
	}
}

// moveTree switches the files, or explains why it cannot.
func (r *repo) moveTree(from, to plumbing.Hash, isForced bool) {
	if isForced {
		r.forceTree(r.treeOf(to))
		return
	}
	if len(unmerged(r.readIndex())) > 0 {
		for _, name := range sortedKeys(unmerged(r.readIndex())) {
			say("%s: needs merge\n", name)
		}
		fail("you need to resolve your current index first")
	}
	changed, untracked := r.switchTree(r.treeOf(from), r.treeOf(to))
	refuseOverwrite(changed, untracked, "checkout", "switch branches")
}

func refuseOverwrite(changed, untracked []string, operation, action string) {
	if len(changed) > 0 {
		warn("error: Your local changes to the following files would be overwritten by %s:\n\t%s\nPlease commit your changes or stash them before you %s.", operation, strings.Join(changed, "\n\t"), action)
	}
	if len(untracked) > 0 {
		warn("error: The following untracked working tree files would be overwritten by %s:\n\t%s\nPlease move or remove them before you %s.", operation, strings.Join(untracked, "\n\t"), action)
	}
	if len(changed)+len(untracked) > 0 {
		if operation == "merge" {
			warn("Aborting")
			exit(exitFailure)
		}
		panic(stop{exitFailure, "Aborting"})
	}
}

// listLocalChanges prints "M\tname" for what the switch carried over.
func (r *repo) listLocalChanges() {
	idx := r.readIndex()
	for _, c := range compareTrees(r.treeOf(r.head()), r.worktree(idx), nil) {
		if _, isStaged := staged(idx)[c.to]; isStaged || c.status == 'D' {
			say("%c\t%s\n", c.status, quoted(r.shown(c.to)))
		}
	}
}

// checkoutPaths restores files from the index (rev "") or a commit, which then goes into the index as well.
func (r *repo) checkoutPaths(rev string, args []string, o *options) {
	idx := r.readIndex()
	source := staged(idx)
	if rev != "" {
		hash, found := r.resolve(rev)
		if !found {
			fatal("invalid reference: %s", rev)
		}
		source = r.treeOf(hash)
	}
	if o.has("--ours", "--theirs") {
		wanted := index.OurMode
		if o.has("--theirs") {
			wanted = index.TheirMode
		}
		for _, e := range idx.Entries {
			if e.Stage == wanted {
				source[e.Name] = node{e.Hash, e.Mode}
			}
		}
	}
	n := r.restoreFrom(source, r.pathspec(args), args, idx, rev != "", true, false)
	if !o.has("-q", "--quiet") {
		origin := "the index"
		if rev != "" {
			tree, _ := r.peel(r.mustCommit(rev), "tree")
			origin = short(tree)
		}
		warn("Updated %d %s from %s", n, plural(n, "path"), origin)
	}
}

// restoreFrom copies matching paths from source into index and/or files; mayDelete removes tracked paths that source lacks.
func (r *repo) restoreFrom(source snapshot, spec pathspec, args []string, idx *index.Index, toIndex, toFiles, mayDelete bool) int {
	tracked := staged(idx)
	for i, each := range spec {
		isMatched := false
		for name := range source {
			isMatched = isMatched || matchesOne(each, name)
		}
		for name := range tracked {
			isMatched = isMatched || mayDelete && matchesOne(each, name)
		}
		if !isMatched {
			if _, isConflict := unmerged(idx)[each]; isConflict {
				fail("path '%s' is unmerged", args[i])
			}
			fail("pathspec '%s' did not match any file(s) known to git", args[i])
		}
	}
	n := 0
	disk := r.worktree(idx)
	for name, wanted := range source {
		if !spec.matches(name) {
			continue
		}
		isChanged := toFiles && disk[name] != wanted || toIndex && tracked[name] != wanted
		if toFiles && disk[name] != wanted {
			r.writeFile(name, wanted)
		}
		if toIndex {
			r.setEntry(idx, name, wanted)
			if !toFiles && disk[name] != wanted { // the file's size and time belong to other content
				entry := idx.Entries[len(idx.Entries)-1]
				entry.ModifiedAt, entry.CreatedAt, entry.Size = time.Time{}, time.Time{}, 0
			}
		} else if toFiles && tracked[name] == wanted {
			r.refreshEntries(idx, func(each string) bool { return each == name })
		}
		if isChanged {
			n++
		}
	}
	if mayDelete {
		for name := range tracked {
			if _, isWanted := source[name]; isWanted || !spec.matches(name) {
				continue
			}
			n++
			if toIndex {
				removeEntry(idx, name)
			}
			if toFiles {
				r.removeFile(name)
			}
		}
	}
	r.writeIndex(idx)
	return n
}

func cmdRestore(args []string) {
	o := parseOptions(args, "-S --staged -W --worktree -q --quiet --ours --theirs -p --patch --overlay --no-overlay --progress --ignore-unmerged -m --merge", "-s --source")
	r := openWorkTree()
	names := o.all()
	if len(names) == 0 {
		fatal("you must specify path(s) to restore")
	}
	isStaged := o.has("-S", "--staged")
	idx := r.readIndex()
	source := staged(idx)
	rev := o.value("-s", "--source")
	if rev == "" && isStaged {
		rev = "HEAD"
	}
	if rev != "" {
		if rev == "HEAD" && r.head().IsZero() {
			source = snapshot{}
		} else {
			hash, found := r.resolve(rev)
			if !found {
				fatal("could not resolve %s", rev)
			}
			source = r.treeOf(hash)
		}
	} else if o.has("--ours", "--theirs") {
		r.checkoutPaths("", names, o)
		return
	}
	r.restoreFrom(source, r.pathspec(names), names, idx, isStaged, !isStaged || o.has("-W", "--worktree"), rev != "")
}

// ---- reset ----

func cmdReset(args []string) {
	o := parseOptions(args, "--soft --mixed --hard --merge --keep -q --quiet -p -N", "")
	r := openRepo()
	revisions, paths := o.rest, o.paths
	if !o.hasDashes && len(o.rest) > 0 && !r.isCommitish(o.rest[0]) {
		revisions, paths = nil, o.rest
	} else if len(o.rest) > 1 {
		revisions, paths = o.rest[:1], o.rest[1:]
	}
	if len(paths) > 0 {
		if _, err := os.Lstat(r.file(r.repoPath(paths[0]))); err != nil && !o.hasDashes && !r.isTrackedPath(paths[0]) {
			r.mustCommit(paths[0])
		}
		if o.has("--hard", "--soft") {
			fatal("Cannot do %s reset with paths.", strings.TrimLeft(firstOr(sortedKeys(o.flags), ""), "-"))
		}
		r.resetPaths(firstOr(revisions, "HEAD"), paths, o)
		return
	}
	head := r.head()
	target := head
	if !head.IsZero() || len(revisions) > 0 {
		target = r.mustCommit(firstOr(revisions, "HEAD"))
	}
	if r.isMerging() && o.has("--soft") {
		fatal("Cannot do a soft reset in the middle of a merge.")
	}
	switch {
	case o.has("--hard"):
		r.forceTree(r.treeOf(target))
		r.restoreMissing()
	case o.has("--keep", "--merge"):
		changed, untracked := r.switchTree(r.treeOf(head), r.treeOf(target))
		refuseOverwrite(changed, untracked, "reset", "reset")
	case !o.has("--soft"):
		idx := r.indexFrom(r.readIndex(), r.treeOf(target))
		r.writeIndex(idx)
	}
	if !target.IsZero() {
		if !head.IsZero() {
			must(r.store.SetReference(plumbing.NewHashReference("ORIG_HEAD", head)))
		}
		r.updateHead(target, "reset: moving to "+firstOr(revisions, "HEAD"))
	}
	if !o.has("--soft") {
		r.endMerge()
	}
	if o.has("-q", "--quiet") {
		return
	}
	if o.has("--hard") && !target.IsZero() {
		say("HEAD is now at %s %s\n", short(target), subject(r.commit(target).Message))
	} else if !o.has("--soft", "--hard") {
		r.printUnstaged()
	}
}

// restoreMissing brings back tracked files that were deleted.
func (r *repo) restoreMissing() {
	idx := r.readIndex()
	for name, n := range staged(idx) {
		if _, err := os.Lstat(r.file(name)); err != nil {
			r.writeFile(name, n)
		}
	}
}

func (r *repo) resetPaths(rev string, paths []string, o *options) {
	tree := snapshot{}
	if rev != "HEAD" || !r.head().IsZero() {
		tree = r.treeOf(r.mustCommit(rev))
	}
	spec := r.pathspec(paths)
	idx := r.readIndex()
	for i, each := range spec {
		isMatched := slices.ContainsFunc(idx.Entries, func(e *index.Entry) bool { return matchesOne(each, e.Name) })
		for name := range tree {
			isMatched = isMatched || matchesOne(each, name)
		}
		if !isMatched {
			if _, err := os.Lstat(r.file(each)); err != nil {
				fatal("ambiguous argument '%s': unknown revision or path not in the working tree.\nUse '--' to separate paths from revisions, like this:\n'git <command> [<revision>...] -- [<file>...]'", paths[i])
			}
		}
	}
	next := staged(idx)
	for name := range union(next, tree) {
		if !spec.matches(name) {
			continue
		}
		if n, found := tree[name]; found {
			next[name] = n
		} else {
			delete(next, name)
		}
	}
	r.writeIndex(r.indexFrom(idx, next))
	if !o.has("-q", "--quiet") {
		r.printUnstaged()
	}
}

func (r *repo) printUnstaged() {
	if r.workTree == "" {
		return
	}
	idx := r.readIndex()
	changes := compareTrees(staged(idx), r.worktree(idx), nil)
	if len(changes) > 0 {
		say("Unstaged changes after reset:\n")
	}
	for _, c := range changes {
		say("%c\t%s\n", c.status, quoted(c.to))
	}
}
