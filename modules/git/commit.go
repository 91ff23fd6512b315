package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// ---- init ----

func cmdInit(args []string) {
	o := parseOptions(args, "-q --quiet --bare --shared", "-b --initial-branch --template --object-format --separate-git-dir")
	dir := "."
	if len(o.rest) > 0 {
		dir = o.rest[0]
	}
	must(os.MkdirAll(dir, 0o755))
	full, err := filepath.Abs(dir)
	must(err)
	branch := o.value("-b", "--initial-branch")
	isNew := initRepo(full, o.has("--bare"), branch)
	gitDir := full
	if !o.has("--bare") {
		gitDir = filepath.Join(full, ".git")
	}
	if o.has("-q", "--quiet") {
		return
	}
	if isNew {
		say("Initialized empty Git repository in %s/\n", gitDir)
	} else {
		say("Reinitialized existing Git repository in %s/\n", gitDir)
	}
}

// initRepo creates what is missing and reports whether there was no repository before.
func initRepo(dir string, isBare bool, branch string) bool {
	gitDir := dir
	if !isBare {
		gitDir = filepath.Join(dir, ".git")
	}
	if isGitDir(gitDir) {
		return false
	}
	if branch == "" {
		c := &config{global: readConfigFile(globalConfigPath())}
		branch, _ = c.get("init.defaultBranch")
	}
	if branch == "" {
		branch = "master"
	}
	for _, name := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks", "branches"} {
		must(os.MkdirAll(filepath.Join(gitDir, name), 0o755))
	}
	write := func(name, text string) { must(os.WriteFile(filepath.Join(gitDir, name), []byte(text), 0o644)) }
	write("HEAD", "ref: refs/heads/"+branch+"\n")
	write("description", "Unnamed repository; edit this file 'description' to name the repository.\n")
	write("info/exclude", "# git ls-files --others --exclude-from=.git/info/exclude\n")
	settings := "[core]\n\trepositoryformatversion = 0\n\tfilemode = false\n"
	if isBare {
		settings += "\tbare = true\n"
	} else {
		settings += "\tbare = false\n\tlogallrefupdates = true\n"
	}
	write("config", settings)
	return true
}

// ---- add, rm, mv ----

func cmdAdd(args []string) {
	o := parseOptions(args, "-A --all -u --update -f --force -n --dry-run -v --verbose -N --intent-to-add --ignore-errors --no-all -p --patch -i", "--chmod")
	r := openWorkTree()
	if o.has("-p", "--patch", "-i") {
		fatal("interactive adding is not available in this sandbox")
	}
	names := o.all()
	if len(names) == 0 && !o.has("-A", "--all", "-u", "--update") {
		warn("Nothing specified, nothing added.\nhint: Maybe you wanted to say 'git add .'?\nhint: Turn this message off by running\nhint: \"git config advice.addEmptyPathspec false\"")
		return
	}
	if len(names) == 0 {
		names = nil
	}
	spec := r.pathspec(names)
	if len(names) == 0 {
		spec = nil
	}
	idx := r.readIndex()
	disk := r.worktree(idx)
	conflicts := unmerged(idx)
	s := r.scanUntracked(idx, true)
	r.checkAddable(names, idx, disk, s, o.has("-f", "--force"))
	isSilent := o.has("-n", "--dry-run")
	isVerbose := o.has("-v", "--verbose") || isSilent
	var entries []*index.Entry
	entries = append(entries, idx.Entries...)
	handled := map[string]bool{}
	for _, e := range entries {
		if !spec.matches(e.Name) || handled[e.Name] {
			continue
		}
		handled[e.Name] = true
		_, isConflict := conflicts[e.Name]
		n, isThere := disk[e.Name]
		switch {
		case !isThere:
			if isVerbose {
				say("remove '%s'\n", e.Name)
			}
			if !isSilent {
				removeEntry(idx, e.Name)
			}
		case isConflict || n.hash != e.Hash || n.mode != e.Mode || e.IntentToAdd:
			if isVerbose {
				say("add '%s'\n", e.Name)
			}
			if !isSilent {
				r.stage(idx, e.Name, e.Mode)
			}
		}
	}
	if !o.has("-u", "--update") {
		found := slices.Clone(s.untracked)
		if o.has("-f", "--force") {
			found = append(found, r.expandIgnored(s.ignored)...)
		}
		for _, name := range found {
			if !spec.matches(name) || strings.HasSuffix(name, "/") {
				continue
			}
			if isVerbose {
				say("add '%s'\n", name)
			}
			if isSilent {
				continue
			}
			if o.has("-N", "--intent-to-add") {
				r.setEntry(idx, name, node{r.writeBlob(nil), filemode.Regular})
				idx.Entries[len(idx.Entries)-1].IntentToAdd = true
				idx.Version = 3
				continue
			}
			r.stage(idx, name, 0)
		}
	}
	if mode := o.value("--chmod"); mode != "" {
		for _, e := range idx.Entries {
			if spec.matches(e.Name) && e.Mode != filemode.Symlink {
				e.Mode = map[string]filemode.FileMode{"+x": filemode.Executable, "-x": filemode.Regular}[mode]
			}
		}
	}
	if !isSilent {
		r.writeIndex(idx)
	}
}

func (r *repo) checkAddable(names []string, idx *index.Index, disk snapshot, s scan, isForced bool) {
	for _, arg := range names {
		name := r.repoPath(arg)
		each := pathspec{name}
		isKnown := slices.ContainsFunc(idx.Entries, func(e *index.Entry) bool { return each.matches(e.Name) }) ||
			slices.ContainsFunc(s.untracked, each.matches)
		if isKnown {
			continue
		}
		info, err := os.Lstat(r.file(name))
		for _, ignored := range s.ignored {
			plain := strings.TrimSuffix(ignored, "/")
			if !isForced && (name == plain || strings.HasPrefix(name, ignored) && strings.HasSuffix(ignored, "/")) {
				warn("The following paths are ignored by one of your .gitignore files:\n%s\nhint: Use -f if you really want to add them.\nhint: Turn this message off by running\nhint: \"git config advice.addIgnoredFile false\"", arg)
				exit(exitFailure)
			}
		}
		if err != nil || strings.ContainsAny(arg, "*?[") && info == nil {
			fatal("pathspec '%s' did not match any files", arg)
		}
	}
}

// expandIgnored lists the files below ignored directories.
func (r *repo) expandIgnored(names []string) []string {
	var found []string
	for _, name := range names {
		if !strings.HasSuffix(name, "/") {
			found = append(found, name)
			continue
		}
		filepath.WalkDir(r.file(name), func(full string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				relative, _ := filepath.Rel(r.workTree, full)
				found = append(found, filepath.ToSlash(relative))
			}
			return nil
		})
	}
	return found
}

func (r *repo) stage(idx *index.Index, name string, known filemode.FileMode) {
	info, err := os.Lstat(r.file(name))
	if err != nil {
		fatal("unable to stat '%s': No such file or directory", name)
	}
	data, err := r.content(name, info)
	if err != nil {
		fatal("open(\"%s\"): %v", name, errors.Unwrap(err))
	}
	r.setEntry(idx, name, node{r.writeBlob(data), modeOf(info, known)})
}

func cmdRm(args []string) {
	o := parseOptions(args, "-r -f --force --cached -q --quiet -n --dry-run --ignore-unmatch", "")
	r := openWorkTree()
	idx := r.readIndex()
	disk, head := r.worktree(idx), r.treeOf(r.head())
	names := o.all()
	if len(names) == 0 {
		fatal("No pathspec was given. Which files should I remove?")
	}
	var doomed []*index.Entry
	for _, arg := range names {
		name := r.repoPath(arg)
		isMatched := false
		for _, e := range idx.Entries {
			if !matchesOne(name, e.Name) {
				continue
			}
			isMatched = true
			if e.Name != name && !o.has("-r") && !strings.ContainsAny(arg, "*?[") {
				fatal("not removing '%s' recursively without -r", arg)
			}
			doomed = append(doomed, e)
		}
		if !isMatched && !o.has("--ignore-unmatch") {
			fatal("pathspec '%s' did not match any files", arg)
		}
	}
	if !o.has("-f", "--force") {
		r.checkRemovable(doomed, disk, head, o.has("--cached"))
	}
	for _, e := range doomed {
		if !o.has("-q", "--quiet") {
			say("rm '%s'\n", e.Name)
		}
		if o.has("-n", "--dry-run") {
			continue
		}
		removeEntry(idx, e.Name)
		if !o.has("--cached") {
			r.removeFile(e.Name)
		}
	}
	if !o.has("-n", "--dry-run") {
		r.writeIndex(idx)
	}
}

// checkRemovable refuses to lose content that is nowhere else.
func (r *repo) checkRemovable(doomed []*index.Entry, disk, head snapshot, isCached bool) {
	var local, stagedOnly, both []string
	for _, e := range doomed {
		n, isThere := disk[e.Name]
		isLocal := isThere && n.hash != e.Hash
		isStaged := head[e.Name].hash != e.Hash
		switch {
		case isLocal && isStaged:
			both = append(both, e.Name)
		case isCached:
		case isStaged:
			stagedOnly = append(stagedOnly, e.Name)
		case isLocal:
			local = append(local, e.Name)
		}
	}
	report := func(names []string, one, many, hint string) {
		if len(names) == 0 {
			return
		}
		text := one
		if len(names) > 1 {
			text = many
		}
		fail("%s\n    %s\n%s", text, strings.Join(names, "\n    "), hint)
	}
	report(both, "the following file has staged content different from both the\nfile and the HEAD:", "the following files have staged content different from both the\nfile and the HEAD:", "(use -f to force removal)")
	report(stagedOnly, "the following file has changes staged in the index:", "the following files have changes staged in the index:", "(use --cached to keep the file, or -f to force removal)")
	report(local, "the following file has local modifications:", "the following files have local modifications:", "(use --cached to keep the file, or -f to force removal)")
}

func cmdMv(args []string) {
	o := parseOptions(args, "-f --force -n --dry-run -k -v --verbose", "")
	r := openWorkTree()
	names := o.all()
	if len(names) < 2 {
		usage("usage: git mv [<options>] <source>... <destination>")
	}
	idx := r.readIndex()
	target := r.repoPath(names[len(names)-1])
	info, err := os.Stat(r.file(target))
	isDir := err == nil && info.IsDir()
	if len(names) > 2 && !isDir {
		fatal("destination '%s' is not a directory", names[len(names)-1])
	}
	for _, arg := range names[:len(names)-1] {
		source := r.repoPath(arg)
		to := target
		if isDir {
			to = path.Join(target, path.Base(source))
		}
		r.moveEntry(idx, source, to, arg, o)
	}
	r.writeIndex(idx)
}

func (r *repo) moveEntry(idx *index.Index, source, to, arg string, o *options) {
	refuse := func(reason string) { fatal("%s, source=%s, destination=%s", reason, arg, to) }
	if _, err := os.Lstat(r.file(source)); err != nil {
		refuse("bad source")
	}
	if _, err := os.Lstat(r.file(to)); err == nil && !o.has("-f", "--force") {
		refuse("destination exists")
	}
	if _, err := os.Stat(filepath.Dir(r.file(to))); err != nil {
		fatal("renaming '%s' failed: No such file or directory", arg)
	}
	isTracked := false
	for _, e := range idx.Entries {
		if e.Name == source || strings.HasPrefix(e.Name, source+"/") {
			isTracked = true
		}
	}
	if !isTracked {
		refuse("not under version control")
	}
	if o.has("-v", "--verbose", "-n", "--dry-run") {
		say("Renaming %s to %s\n", source, to)
	}
	if o.has("-n", "--dry-run") {
		return
	}
	removeEntry(idx, to)
	for _, e := range idx.Entries {
		if e.Name == source || strings.HasPrefix(e.Name, source+"/") {
			e.Name = to + strings.TrimPrefix(e.Name, source)
		}
	}
	must(os.Rename(r.file(source), r.file(to)))
}

// ---- commit ----

func cmdCommit(args []string) {
	o := parseOptions(args, "-a --all --amend --no-edit --allow-empty --allow-empty-message -q --quiet -s --signoff -n --no-verify -v --verbose --no-gpg-sign --dry-run -o --only -i --include --reset-author --no-post-rewrite --no-status -e --edit --verify",
		"-m --message -F --file --author --date -C -c --reuse-message --cleanup --trailer --fixup")
	r := openWorkTree()
	isAmend := o.has("--amend")
	head := r.head()
	if isAmend && head.IsZero() {
		fatal("You have nothing to amend.")
	}
	idx := r.readIndex()
	if len(unmerged(idx)) > 0 && !o.has("-a", "--all") {
		warn("error: Committing is not possible because you have unmerged files.\nhint: Fix them up in the work tree, and then use 'git add/rm <file>'\nhint: as appropriate to mark resolution and make a commit.")
		for _, name := range sortedKeys(unmerged(idx)) {
			say("U\t%s\n", name)
		}
		fatal("Exiting because of an unresolved conflict.")
	}
	files := r.filesToCommit(o, idx, head)
	parents, base := r.commitParents(isAmend, head)
	author := r.commitAuthor(o, isAmend, head)
	committer := r.ident("COMMITTER")
	message := r.commitMessage(o, isAmend, head)
	isMerge := len(parents) > 1
	hasChanges := len(compareTrees(r.treeOf(base), files, nil)) > 0
	if !hasChanges && !o.has("--allow-empty") && !isMerge && !isAmend {
		r.printLongStatus(r.state(false, true, nil), false, false)
		exit(exitFailure)
	}
	if message == "" && !o.has("--allow-empty-message") {
		warn("Aborting commit due to empty commit message.")
		exit(exitFailure)
	}
	commit := &object.Commit{Author: author, Committer: committer, Message: message, TreeHash: r.writeTree(files), ParentHashes: parents}
	hash := r.writeObject(commit)
	reason := "commit: "
	switch {
	case isAmend:
		reason = "commit (amend): "
	case head.IsZero():
		reason = "commit (initial): "
	case isMerge:
		reason = "commit (merge): "
	}
	r.updateHead(hash, reason+message)
	r.endMerge()
	if !o.has("-q", "--quiet") {
		r.printCommitSummary(hash, base, isAmend, author, committer)
	}
}

// filesToCommit stages what the options ask for and returns the tree's files.
func (r *repo) filesToCommit(o *options, idx *index.Index, head plumbing.Hash) snapshot {
	paths := o.all()
	if len(paths) > 0 { // only these, whatever else is staged
		spec := r.pathspec(paths)
		for i, arg := range paths {
			if !slices.ContainsFunc(idx.Entries, func(e *index.Entry) bool { return matchesOne(spec[i], e.Name) }) {
				panic(stop{exitFailure, "error: pathspec '" + arg + "' did not match any file(s) known to git"})
			}
		}
		r.stageTracked(idx, spec)
		r.writeIndex(idx)
		if o.has("-i", "--include") {
			return staged(idx)
		}
		files := r.treeOf(head)
		now := staged(idx)
		for name := range union(files, now) {
			if !spec.matches(name) {
				continue
			}
			if n, found := now[name]; found {
				files[name] = n
			} else {
				delete(files, name)
			}
		}
		return files
	}
	if o.has("-a", "--all") {
		r.stageTracked(idx, nil)
		r.writeIndex(idx)
	}
	return staged(idx)
}

func (r *repo) stageTracked(idx *index.Index, spec pathspec) {
	disk := r.worktree(idx)
	for _, e := range slices.Clone(idx.Entries) {
		if !spec.matches(e.Name) {
			continue
		}
		n, isThere := disk[e.Name]
		if !isThere {
			removeEntry(idx, e.Name)
		} else if n.hash != e.Hash || n.mode != e.Mode || e.Stage != stageMerged {
			r.stage(idx, e.Name, e.Mode)
		}
	}
}

// commitParents returns the parents and the commit that the summary compares with.
func (r *repo) commitParents(isAmend bool, head plumbing.Hash) ([]plumbing.Hash, plumbing.Hash) {
	if isAmend {
		parents := r.commit(head).ParentHashes
		if len(parents) == 0 {
			return nil, plumbing.ZeroHash
		}
		return parents, parents[0]
	}
	if head.IsZero() {
		return nil, head
	}
	parents := []plumbing.Hash{head}
	if r.isMerging() {
		data, err := os.ReadFile(filepath.Join(r.gitDir, "MERGE_HEAD"))
		must(err)
		for _, line := range strings.Fields(string(data)) {
			parents = append(parents, plumbing.NewHash(line))
		}
	}
	return parents, head
}

func (r *repo) commitAuthor(o *options, isAmend bool, head plumbing.Hash) object.Signature {
	var author object.Signature
	if isAmend && !o.has("--reset-author") {
		author = r.commit(head).Author
	} else if text := o.value("--author"); text != "" {
		author = r.identOr("AUTHOR")
	} else {
		author = r.ident("AUTHOR")
	}
	if text := o.value("--author"); text != "" {
		name, rest, hasEmail := strings.Cut(text, "<")
		if !hasEmail {
			fatal("--author '%s' is not 'Name <email>' and matches no existing author", text)
		}
		author.Name, author.Email = strings.TrimSpace(name), strings.TrimSuffix(strings.TrimSpace(rest), ">")
	}
	if text := o.value("--date"); text != "" {
		when, err := parseDate(text)
		if err != nil {
			fatal("invalid date format: %s", text)
		}
		author.When = when
	}
	return author
}

func (r *repo) commitMessage(o *options, isAmend bool, head plumbing.Hash) string {
	var message string
	switch {
	case o.has("-m", "--message"):
		message = strings.Join(append(o.flags["-m"], o.flags["--message"]...), "\n\n")
	case o.has("-F", "--file"):
		name := o.value("-F", "--file")
		var data []byte
		var err error
		if name == "-" {
			data, err = io.ReadAll(os.Stdin)
		} else {
			data, err = os.ReadFile(name)
		}
		if err != nil {
			fatal("could not read log file '%s': No such file or directory", name)
		}
		message = string(data)
	case o.has("-C", "-c", "--reuse-message"):
		message = r.commit(r.mustCommit(o.value("-C", "-c", "--reuse-message"))).Message
	case isAmend:
		message = r.commit(head).Message
	case r.isMerging():
		data, _ := os.ReadFile(filepath.Join(r.gitDir, "MERGE_MSG"))
		message = string(data)
	default:
		warn("error: Terminal is dumb, but EDITOR unset\nPlease supply the message using either -m or -F option.")
		exit(exitFailure)
	}
	message = cleanMessage(message, r.isMerging() && !o.has("-m", "--message", "--no-edit"))
	if o.has("-s", "--signoff") {
		who := r.ident("COMMITTER")
		message = strings.TrimRight(message, "\n") + "\n\nSigned-off-by: " + who.Name + " <" + who.Email + ">\n"
	}
	for _, trailer := range o.flags["--trailer"] {
		message = strings.TrimRight(message, "\n") + "\n\n" + strings.Replace(trailer, "=", ": ", 1) + "\n"
	}
	return message
}

// cleanMessage strips trailing blanks, folds empty lines, and (from a template) comments.
func cleanMessage(text string, withoutComments bool) string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, " \t\r")
		if withoutComments && strings.HasPrefix(line, "#") {
			continue
		}
		if line == "" && (len(lines) == 0 || lines[len(lines)-1] == "") {
			continue
		}
		lines = append(lines, line)
	}
	text = strings.TrimRight(strings.Join(lines, "\n"), "\n")
	if text == "" {
		return ""
	}
	return text + "\n"
}

func subject(message string) string {
	paragraph, _, _ := strings.Cut(strings.TrimLeft(message, "\n"), "\n\n")
	return strings.Join(strings.Split(strings.TrimSpace(paragraph), "\n"), " ")
}

func body(message string) string {
	_, rest, _ := strings.Cut(strings.TrimLeft(message, "\n"), "\n\n")
	return strings.TrimLeft(rest, "\n")
}

func (r *repo) printCommitSummary(hash, base plumbing.Hash, isAmend bool, author, committer object.Signature) {
	c := r.commit(hash)
	where := r.branch()
	if where == "" {
		where = "detached HEAD"
	}
	if len(c.ParentHashes) == 0 {
		where += " (root-commit)"
	}
	say("[%s %s] %s\n", where, short(hash), subject(c.Message))
	if author.Name != committer.Name || author.Email != committer.Email {
		say(" Author: %s <%s>\n", author.Name, author.Email)
	}
	if isAmend || author.When.Unix() != committer.When.Unix() && os.Getenv("GIT_AUTHOR_DATE") != "" && os.Getenv("GIT_AUTHOR_DATE") != os.Getenv("GIT_COMMITTER_DATE") {
		say(" Date: %s\n", gitDate(author.When, ""))
	}
	if len(c.ParentHashes) > 1 {
		return
	}
	changes := r.findRenames(compareTrees(r.treeOf(base), r.treeOf(hash), nil))
	r.printStat(changes, false)
	printSummary(changes)
}

func (r *repo) endMerge() {
	for _, name := range []string{"MERGE_HEAD", "MERGE_MSG", "MERGE_MODE"} {
		os.Remove(filepath.Join(r.gitDir, name))
	}
}
