package main

import (
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/plumbing/object"
)

func itoa(n int) string { return strconv.Itoa(n) }

// ---- tag ----

func cmdTag(args []string) {
	o := parseOptions(args, "-a --annotate -d --delete -f --force -l --list -s --sign --no-sign -v --verify -i --no-column --merged -q -n -1 -2 -3 -4 -5 -6 -7 -8 -9 -0", "-m --message -F --file --sort --points-at --contains --format -u")
	r := openRepo()
	switch {
	case o.has("-d", "--delete"):
		isMissing := false
		for _, name := range o.rest {
			ref := plumbing.NewTagReferenceName(name)
			hash := r.refHash(ref)
			if hash.IsZero() {
				warn("error: tag '%s' not found.", name)
				isMissing = true
				continue
			}
			must(r.store.RemoveReference(ref))
			say("Deleted tag '%s' (was %s)\n", name, short(hash))
		}
		if isMissing {
			exit(exitFailure)
		}
	case len(o.rest) == 0 || o.has("-l", "--list", "-n", "--contains", "--points-at", "--merged"):
		r.listTags(o)
	default:
		r.createTag(o)
	}
}

func (r *repo) listTags(o *options) {
	for _, ref := range r.refsUnder("refs/tags/") {
		name := ref.Name().Short()
		commit, _ := r.peel(ref.Hash(), "commit")
		if len(o.rest) > 0 && !slices.ContainsFunc(o.rest, func(glob string) bool { return globRegexp(glob).MatchString(name) }) {
			continue
		}
		if text := o.value("--points-at"); text != "" && r.mustCommit(text) != commit {
			continue
		}
		if text := o.value("--contains"); text != "" && !r.isAncestor(r.mustCommit(text), commit) {
			continue
		}
		if o.has("-n") {
			message := ""
			if tag, err := object.GetTag(r.store, ref.Hash()); err == nil {
				message = subject(tag.Message)
			} else {
				message = subject(r.commit(commit).Message)
			}
			say("%-15s %s\n", name, message)
			continue
		}
		say("%s\n", name)
	}
}

func (r *repo) createTag(o *options) {
	name := o.rest[0]
	if badRefName.MatchString(name) {
		fatal("'%s' is not a valid tag name.", name)
	}
	ref := plumbing.NewTagReferenceName(name)
	old := r.refHash(ref)
	if !old.IsZero() && !o.has("-f", "--force") {
		fatal("tag '%s' already exists", name)
	}
	target := firstOr(o.rest[1:], "HEAD")
	hash, found := r.resolve(target)
	if !found {
		fatal("Failed to resolve '%s' as a valid ref.", target)
	}
	if o.has("-a", "--annotate", "-m", "--message", "-F", "--file", "-s", "--sign") {
		message := strings.Join(append(o.flags["-m"], o.flags["--message"]...), "\n\n")
		if file := o.value("-F", "--file"); file != "" {
			data, err := os.ReadFile(file)
			must(err)
			message = string(data)
		}
		if message == "" {
			fatal("no tag message?")
		}
		encoded, err := r.store.EncodedObject(plumbing.AnyObject, hash)
		must(err)
		tag := &object.Tag{Name: name, Tagger: r.ident("COMMITTER"), Message: cleanMessage(message, false), TargetType: encoded.Type(), Target: hash}
		hash = r.writeObject(tag)
	}
	must(r.store.SetReference(plumbing.NewHashReference(ref, hash)))
	if !old.IsZero() && old != hash {
		say("Updated tag '%s' (was %s)\n", name, short(old))
	}
}

// ---- clone ----

func cmdClone(args []string) {
	o := parseOptions(args, "-q --quiet --bare -l --local --no-local --no-hardlinks -n --no-checkout -s --shared --mirror -v --verbose --progress --single-branch --no-single-branch --no-tags --recurse-submodules --recursive", "-b --branch -o --origin --depth --template --filter -c --config -j --jobs")
	if len(o.rest) == 0 {
		fatal("You must specify a repository to clone.\n\nusage: git clone [<options>] [--] <repo> [<dir>]")
	}
	source := strings.TrimPrefix(o.rest[0], "file://")
	if isNetworkURL(o.rest[0]) {
		fatal("unable to access '%s': no network in this sandbox; only local paths can be cloned", o.rest[0])
	}
	dir := strings.TrimSuffix(path.Base(strings.TrimSuffix(strings.TrimSuffix(source, "/"), "/.git")), ".git")
	if o.has("--bare") {
		dir += ".git"
	}
	if len(o.rest) > 1 {
		dir = o.rest[1]
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		fatal("destination path '%s' already exists and is not an empty directory.", dir)
	}
	origin := openSource(source)
	if origin == nil {
		fatal("repository '%s' does not exist", o.rest[0])
	}
	if !o.has("-q", "--quiet") {
		if o.has("--bare") {
			warn("Cloning into bare repository '%s'...", dir)
		} else {
			warn("Cloning into '%s'...", dir)
		}
	}
	fullSource := source
	if !filepath.IsAbs(source) {
		current, err := os.Getwd()
		must(err)
		fullSource = current + "/" + source
	}
	cloneInto(origin, fullSource, dir, o)
	if !o.has("-q", "--quiet") {
		warn("done.")
	}
}

func openSource(source string) *repo {
	full, err := filepath.Abs(source)
	must(err)
	for _, dir := range []string{filepath.Join(full, ".git"), full, full + ".git"} {
		if isGitDir(dir) {
			return makeRepo(dir, full, full)
		}
	}
	return nil
}

func cloneInto(origin *repo, source, dir string, o *options) {
	full, err := filepath.Abs(dir)
	must(err)
	must(os.MkdirAll(full, 0o755))
	branch := o.value("-b", "--branch")
	if branch == "" {
		branch = origin.branch()
	}
	isBare := o.has("--bare", "--mirror")
	initRepo(full, isBare, firstOr([]string{branch}, ""))
	gitDir := filepath.Join(full, ".git")
	if isBare {
		gitDir = full
	}
	copyTree(filepath.Join(origin.gitDir, "objects"), filepath.Join(gitDir, "objects"))
	r := makeRepo(gitDir, full, full)
	remote := firstOr([]string{o.value("-o", "--origin")}, "")
	if remote == "" {
		remote = "origin"
	}
	r.config.local.set("remote."+remote+".url", source)
	for _, ref := range origin.refsUnder("refs/tags/") {
		must(r.store.SetReference(ref))
	}
	for _, ref := range origin.refsUnder("refs/heads/") {
		name := ref.Name()
		if !isBare {
			name = plumbing.NewRemoteReferenceName(remote, ref.Name().Short())
		}
		must(r.store.SetReference(plumbing.NewHashReference(name, ref.Hash())))
	}
	if isBare {
		r.config.local.write()
		return
	}
	r.config.local.set("remote."+remote+".fetch", "+refs/heads/*:refs/remotes/"+remote+"/*")
	hash := origin.head()
	if name := o.value("-b", "--branch"); name != "" {
		if hash = origin.refHash(branchRef(name)); hash.IsZero() {
			if hash = origin.refHash(plumbing.NewTagReferenceName(name)); hash.IsZero() {
				os.RemoveAll(full)
				fatal("Remote branch %s not found in upstream %s", name, remote)
			}
			hash, _ = r.peel(hash, "commit")
			branch = ""
		}
	}
	if !hash.IsZero() && branch != "" {
		must(r.store.SetReference(plumbing.NewSymbolicReference(plumbing.NewRemoteHEADReferenceName(remote), plumbing.NewRemoteReferenceName(remote, orElse(origin.branch(), branch)))))
		r.config.local.set("branch."+branch+".remote", remote)
		r.config.local.set("branch."+branch+".merge", "refs/heads/"+branch)
		must(r.store.SetReference(plumbing.NewHashReference(branchRef(branch), hash)))
	}
	r.config.local.write()
	if hash.IsZero() {
		warn("warning: You appear to have cloned an empty repository.")
		return
	}
	if branch == "" {
		r.detachHead(hash)
	}
	r.logRef(plumbing.HEAD, plumbing.ZeroHash, hash, "clone: from "+source)
	if !o.has("-n", "--no-checkout") {
		r.forceTree(r.treeOf(hash))
	}
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

func copyTree(from, to string) {
	must(filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, _ := filepath.Rel(from, name)
		target := filepath.Join(to, relative)
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o444)
	}))
}

// ---- remote ----

func cmdRemote(args []string) {
	r := openRepo()
	o := parseOptions(args, "-v --verbose", "")
	remotes := map[string]string{}
	for _, e := range r.config.local.entries() {
		if strings.HasPrefix(e.key, "remote.") && strings.HasSuffix(e.key, ".url") {
			remotes[strings.TrimSuffix(strings.TrimPrefix(e.key, "remote."), ".url")] = e.value
		}
	}
	need := func(n int) {
		if len(o.rest) < n {
			usage("usage: git remote [-v | --verbose]")
		}
	}
	known := func(name string) {
		if _, found := remotes[name]; !found {
			panic(stop{2, "error: No such remote '" + name + "'"})
		}
	}
	switch firstOr(o.rest, "") {
	case "":
		for _, name := range sortedKeys(remotes) {
			if o.has("-v", "--verbose") {
				say("%s\t%s (fetch)\n%s\t%s (push)\n", name, remotes[name], name, remotes[name])
			} else {
				say("%s\n", name)
			}
		}
		return
	case "add":
		need(3)
		if _, found := remotes[o.rest[1]]; found {
			panic(stop{3, "error: remote " + o.rest[1] + " already exists."})
		}
		r.config.local.set("remote."+o.rest[1]+".url", o.rest[2])
		r.config.local.set("remote."+o.rest[1]+".fetch", "+refs/heads/*:refs/remotes/"+o.rest[1]+"/*")
	case "remove", "rm":
		need(2)
		known(o.rest[1])
		r.config.local.removeSection("remote." + o.rest[1])
	case "set-url":
		need(3)
		known(o.rest[1])
		r.config.local.set("remote."+o.rest[1]+".url", o.rest[2])
	case "get-url":
		need(2)
		known(o.rest[1])
		say("%s\n", remotes[o.rest[1]])
		return
	default:
		usage("error: unknown subcommand: `%s'", o.rest[0])
	}
	r.config.local.write()
}

// ---- ls-files, ls-tree, rev-parse, cat-file ----

func cmdLsFiles(args []string) {
	o := parseOptions(args, "-c --cached -d --deleted -m --modified -o --others -i --ignored -s --stage -u --unmerged -z --exclude-standard --full-name --error-unmatch -t -k -v --directory", "-x --exclude --exclude-from")
	r := openWorkTree()
	idx := r.readIndex()
	args = o.all()
	spec := r.pathspec(args)
	if len(spec) == 0 && r.prefix != "" {
		spec = pathspec{strings.TrimSuffix(r.prefix, "/")}
	}
	if o.has("--error-unmatch") {
		for i, each := range spec {
			if !slices.ContainsFunc(idx.Entries, func(e *index.Entry) bool { return matchesOne(each, e.Name) }) {
				panic(stop{exitFailure, "error: pathspec '" + args[i] + "' did not match any file(s) known to git\nDid you forget to 'git add'?"})
			}
		}
	}
	end := "\n"
	if o.has("-z") {
		end = "\x00"
	}
	print := func(name string) {
		if !o.has("--full-name") {
			name = r.shown(name)
		}
		if !o.has("-z") {
			name = quoted(name)
		}
		say("%s%s", name, end)
	}
	if o.has("-o", "--others") {
		s := r.scanUntracked(idx, !o.has("--directory"))
		names := s.untracked
		if !o.has("--exclude-standard") {
			names = append(slices.Clone(names), r.expandIgnored(s.ignored)...)
		} else if o.has("-i", "--ignored") {
			names = r.expandIgnored(s.ignored)
		}
		slices.Sort(names)
		for _, name := range names {
			if spec.matches(name) {
				print(name)
			}
		}
	}
	disk := snapshot{}
	if o.has("-d", "--deleted", "-m", "--modified") {
		disk = r.worktree(idx)
	}
	sortBy(idx.Entries, func(e *index.Entry) string { return e.Name })
	for _, e := range idx.Entries {
		if !spec.matches(e.Name) {
			continue
		}
		n, isThere := disk[e.Name]
		switch {
		case o.has("-s", "--stage", "-u", "--unmerged"):
			if e.Stage != stageMerged || !o.has("-u", "--unmerged") {
				say("%06o %s %d\t%s%s", uint32(e.Mode), e.Hash, e.Stage, quoted(r.shown(e.Name)), end)
			}
		case o.has("-d", "--deleted", "-m", "--modified"):
			if !isThere && o.has("-d", "--deleted") || o.has("-m", "--modified") && (!isThere || n.hash != e.Hash) {
				print(e.Name)
			}
			if o.has("-c", "--cached") {
				print(e.Name)
			}
		case !o.has("-o", "--others") || o.has("-c", "--cached"):
			print(e.Name)
		}
	}
}

func cmdLsTree(args []string) {
	o := parseOptions(args, "-r -t -d -l --long -z --name-only --name-status --full-tree --full-name", "")
	r := openRepo()
	if len(o.rest) == 0 {
		usage("usage: git ls-tree [<options>] <tree-ish> [<path>...]")
	}
	hash, found := r.resolve(o.rest[0])
	if !found {
		fatal("Not a valid object name %s", o.rest[0])
	}
	root, found := r.peel(hash, "tree")
	if !found {
		fatal("not a tree object")
	}
	spec := pathspec(append(o.rest[1:], o.paths...))
	var visit func(hash plumbing.Hash, prefix string)
	visit = func(hash plumbing.Hash, prefix string) {
		tree, err := object.GetTree(r.store, hash)
		must(err)
		for _, entry := range tree.Entries {
			name := prefix + entry.Name
			isDir := entry.Mode == filemode.Dir
			isAbove := slices.ContainsFunc(spec, func(each string) bool { return strings.HasPrefix(each, name+"/") })
			if isDir && (o.has("-r") && spec.matches(name) || isAbove) {
				visit(entry.Hash, name+"/")
				continue
			}
			if !spec.matches(name) || o.has("-d") && !isDir {
				continue
			}
			if o.has("--name-only", "--name-status") {
				say("%s\n", quoted(name))
				continue
			}
			kind := "blob"
			if isDir {
				kind = "tree"
			} else if entry.Mode == filemode.Submodule {
				kind = "commit"
			}
			say("%06o %s %s\t%s\n", uint32(entry.Mode), kind, entry.Hash, quoted(name))
		}
	}
	visit(root, "")
}

func cmdRevParse(args []string) {
	r := findRepo()
	if r == nil {
		openRepo()
	}
	isShort, isAbbrevRef, isVerify, isQuiet, shortLength := false, false, false, false, 7
	for _, arg := range args {
		switch {
		case arg == "--show-toplevel":
			if r.workTree == "" {
				fatal("this operation must be run in a work tree")
			}
			say("%s\n", r.workTree)
		case arg == "--git-dir":
			if r.prefix == "" && strings.HasSuffix(r.gitDir, "/.git") {
				say(".git\n")
			} else {
				say("%s\n", r.gitDir)
			}
		case arg == "--absolute-git-dir" || arg == "--git-common-dir":
			say("%s\n", r.gitDir)
		case arg == "--is-inside-work-tree":
			say("%t\n", r.workTree != "")
		case arg == "--is-inside-git-dir":
			say("false\n")
		case arg == "--is-bare-repository":
			say("%t\n", r.workTree == "")
		case arg == "--show-prefix":
			say("%s\n", r.prefix)
		case arg == "--show-cdup":
			say("%s\n", strings.Repeat("../", strings.Count(r.prefix, "/")))
		case arg == "--short":
			isShort = true
		case strings.HasPrefix(arg, "--short="):
			isShort, shortLength = true, number(arg[len("--short="):], 7)
		case arg == "--abbrev-ref":
			isAbbrevRef = true
		case arg == "--verify":
			isVerify = true
		case arg == "-q" || arg == "--quiet":
			isQuiet = true
		case arg == "--symbolic-full-name" || arg == "--symbolic" || arg == "--revs-only" || arg == "--no-revs":
		case arg == "--":
			say("--\n")
		default:
			r.printRevision(arg, isShort, isAbbrevRef, isVerify, isQuiet, shortLength)
		}
	}
}

func (r *repo) printRevision(arg string, isShort, isAbbrevRef, isVerify, isQuiet bool, length int) {
	if left, right, isRange := strings.Cut(arg, ".."); isRange && !strings.HasPrefix(right, ".") && !isVerify {
		say("%s\n^%s\n", r.mustCommit(orHead(right)), r.mustCommit(orHead(left)))
		return
	}
	if isAbbrevRef {
		name := arg
		if arg == "HEAD" || arg == "@" {
			if name = r.branch(); name == "" {
				name = "HEAD"
			}
			if r.head().IsZero() {
				say("HEAD\n")
				r.mustCommit("HEAD")
			}
		} else if _, found := r.resolve(arg); !found {
			r.mustCommit(arg)
		}
		say("%s\n", name)
		return
	}
	hash, found := r.resolve(arg)
	if !found {
		if isVerify && isQuiet {
			exit(exitFailure)
		}
		if isVerify {
			fatal("Needed a single revision")
		}
		say("%s\n", arg)
		r.mustCommit(arg)
	}
	text := hash.String()
	if isShort {
		text = text[:length]
	}
	say("%s\n", text)
}

func cmdCatFile(args []string) {
	o := parseOptions(args, "-t -s -p -e", "")
	r := openRepo()
	if len(o.rest) == 0 {
		usage("usage: git cat-file (-t | -s | -e | -p | <type>) <object>")
	}
	name := o.rest[len(o.rest)-1]
	hash, found := r.resolve(name)
	if !found {
		fatal("Not a valid object name %s", name)
	}
	encoded, err := r.store.EncodedObject(plumbing.AnyObject, hash)
	if err != nil {
		if o.has("-e") {
			exit(exitFailure)
		}
		fatal("Not a valid object name %s", name)
	}
	switch {
	case o.has("-e"):
	case o.has("-t"):
		say("%s\n", encoded.Type())
	case o.has("-s"):
		say("%d\n", encoded.Size())
	case o.has("-p") && encoded.Type() == plumbing.TreeObject:
		cmdLsTree([]string{hash.String()})
	default:
		if !o.has("-p") && len(o.rest) == 2 && encoded.Type().String() != o.rest[0] {
			if hash, found = r.peel(hash, o.rest[0]); !found {
				fatal("git cat-file %s: bad file", name)
			}
			encoded, err = r.store.EncodedObject(plumbing.AnyObject, hash)
			must(err)
		}
		reader, err := encoded.Reader()
		must(err)
		_, err = io.Copy(out, reader)
		must(err)
	}
}

func cmdHashObject(args []string) {
	o := parseOptions(args, "-w --stdin", "-t --path")
	print := func(data []byte) {
		if o.has("-w") {
			say("%s\n", openRepo().writeBlob(data))
		} else {
			say("%s\n", plumbing.ComputeHash(plumbing.BlobObject, data))
		}
	}
	if o.has("--stdin") {
		data, err := io.ReadAll(os.Stdin)
		must(err)
		print(data)
	}
	for _, name := range o.all() {
		data, err := os.ReadFile(name)
		if err != nil {
			fatal("could not open '%s' for reading: No such file or directory", name)
		}
		print(data)
	}
}

func cmdSymbolicRef(args []string) {
	o := parseOptions(args, "--short -q --quiet -d --delete", "-m")
	r := openRepo()
	if len(o.rest) == 2 {
		must(r.store.SetReference(plumbing.NewSymbolicReference(plumbing.ReferenceName(o.rest[0]), plumbing.ReferenceName(o.rest[1]))))
		return
	}
	ref, err := r.store.Reference(plumbing.ReferenceName(firstOr(o.rest, "HEAD")))
	if err != nil || ref.Type() != plumbing.SymbolicReference {
		fatal("ref %s is not a symbolic ref", firstOr(o.rest, "HEAD"))
	}
	if o.has("--short") {
		say("%s\n", ref.Target().Short())
	} else {
		say("%s\n", ref.Target())
	}
}

// ---- stash: a stack of commits kept in the reflog of refs/stash, as in Git ----

func cmdStash(args []string) {
	r := openWorkTree()
	action := firstOr(args, "push")
	rest := args[min(1, len(args)):]
	if strings.HasPrefix(action, "-") {
		action, rest = "push", args
	}
	switch action {
	case "push", "save":
		r.stashPush(rest, action == "save")
	case "list":
		for i, entry := range r.stashes() {
			say("stash@{%d}: %s\n", i, entry.message)
		}
	case "pop", "apply":
		r.stashApply(rest, action == "pop")
	case "drop":
		r.stashDrop(stashNumber(rest), true)
	case "clear":
		r.writeStashes(nil)
	case "show":
		entry := r.stash(stashNumber(rest))
		changes := compareTrees(r.treeOf(r.commit(entry.hash).ParentHashes[0]), r.treeOf(entry.hash), nil)
		o := parseOptions(rest, diffFlags, diffValues)
		f := formatFrom(o)
		if !f.isAnything() {
			f.stat = true
		}
		r.printChanges(changes, f)
	default:
		fatal("subcommand wasn't specified; 'push' can't be assumed due to unexpected token '%s'", action)
	}
}

type stashEntry struct {
	hash    plumbing.Hash
	message string
	line    string
}

func (r *repo) stashLog() string { return filepath.Join(r.gitDir, "logs", "refs", "stash") }

// stashes are listed newest first; the log is written oldest first.
func (r *repo) stashes() []stashEntry {
	data, _ := os.ReadFile(r.stashLog())
	var found []stashEntry
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		_, message, _ := strings.Cut(line, "\t")
		found = append(found, stashEntry{plumbing.NewHash(fields[1]), message, line})
	}
	slices.Reverse(found)
	return found
}

func (r *repo) stash(n int) stashEntry {
	all := r.stashes()
	if len(all) == 0 {
		panic(stop{exitFailure, "No stash entries found."})
	}
	if n >= len(all) {
		fail("stash@{%d} is not a valid reference", n)
	}
	return all[n]
}

func stashNumber(args []string) int {
	for _, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			return number(strings.TrimSuffix(strings.TrimPrefix(arg, "stash@{"), "}"), 0)
		}
	}
	return 0
}

func (r *repo) writeStashes(entries []stashEntry) {
	ref := plumbing.ReferenceName("refs/stash")
	if len(entries) == 0 {
		must(r.store.RemoveReference(ref))
		os.Remove(r.stashLog())
		return
	}
	var lines []string
	for i := len(entries) - 1; i >= 0; i-- {
		lines = append(lines, entries[i].line)
	}
	must(os.WriteFile(r.stashLog(), []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	must(r.store.SetReference(plumbing.NewHashReference(ref, entries[0].hash)))
}

func (r *repo) stashPush(args []string, isSave bool) {
	o := parseOptions(args, "-u --include-untracked -k --keep-index -q --quiet -a --all -S --staged", "-m --message")
	head := r.head()
	if head.IsZero() {
		fatal("You do not have the initial commit yet")
	}
	idx := r.readIndex()
	inIndex, disk, tree := staged(idx), r.worktree(idx), r.treeOf(head)
	var untracked []string
	if o.has("-u", "--include-untracked") {
		untracked = r.scanUntracked(idx, true).untracked
	}
	if len(compareTrees(tree, inIndex, nil)) == 0 && len(compareTrees(inIndex, disk, nil)) == 0 && len(untracked) == 0 {
		say("No local changes to save\n")
		return
	}
	for name, n := range disk {
		if inIndex[name] != n {
			info, err := os.Lstat(r.file(name))
			must(err)
			data, err := r.content(name, info)
			must(err)
			r.writeBlob(data)
		}
	}
	where := orElse(r.branch(), "(no branch)")
	base := where + ": " + short(head) + " " + subject(r.commit(head).Message)
	message := "WIP on " + base
	text := o.value("-m", "--message")
	if isSave && len(o.rest) > 0 {
		text = strings.Join(o.rest, " ")
	}
	if text != "" {
		message = "On " + where + ": " + text
	}
	who := r.ident("COMMITTER")
	indexCommit := r.writeObject(&object.Commit{Author: who, Committer: who, Message: "index on " + base + "\n", TreeHash: r.writeTree(inIndex), ParentHashes: []plumbing.Hash{head}})
	parents := []plumbing.Hash{head, indexCommit}
	if len(untracked) > 0 {
		extra := snapshot{}
		for _, name := range untracked {
			if info, err := os.Lstat(r.file(name)); err == nil && !info.IsDir() {
				data, err := r.content(name, info)
				must(err)
				extra[name] = node{r.writeBlob(data), modeOf(info, 0)}
			}
		}
		parents = append(parents, r.writeObject(&object.Commit{Author: who, Committer: who, Message: "untracked files on " + base + "\n", TreeHash: r.writeTree(extra)}))
	}
	hash := r.writeObject(&object.Commit{Author: who, Committer: who, Message: message, TreeHash: r.writeTree(disk), ParentHashes: parents})
	old := r.refHash("refs/stash")
	must(r.store.SetReference(plumbing.NewHashReference("refs/stash", hash)))
	r.logRef("refs/stash", old, hash, message)
	for _, name := range untracked {
		r.removeFile(name)
	}
	if o.has("-k", "--keep-index") {
		r.forceTree(inIndex)
	} else {
		r.forceTree(tree)
	}
	r.restoreMissing()
	if !o.has("-q", "--quiet") {
		say("Saved working directory and index state %s\n", message)
	}
}

func (r *repo) stashApply(args []string, isPop bool) {
	n := stashNumber(args)
	entry := r.stash(n)
	commit := r.commit(entry.hash)
	base, head := r.treeOf(commit.ParentHashes[0]), r.treeOf(r.head())
	idx := r.readIndex()
	if len(compareTrees(head, staged(idx), nil)) > 0 || len(compareTrees(staged(idx), r.worktree(idx), nil)) > 0 {
		touched := pathspec{}
		for _, c := range compareTrees(base, r.treeOf(entry.hash), nil) {
			touched = append(touched, c.to)
		}
		var dirty []string
		for _, c := range compareTrees(head, r.worktree(idx), touched) {
			dirty = append(dirty, c.to)
		}
		if len(dirty) > 0 {
			refuseOverwrite(dirty, nil, "merge", "merge")
		}
	}
	result, conflicts, notes := r.mergeTrees(base, head, r.treeOf(entry.hash), "Stashed changes", "")
	for _, line := range notes {
		say("%s\n", line)
	}
	before := staged(idx)
	for name, wanted := range result {
		if head[name] != wanted {
			r.writeFile(name, wanted)
			if _, isTracked := before[name]; !isTracked {
				r.setEntry(idx, name, wanted)
			}
		}
	}
	for name := range head {
		if _, isKept := result[name]; !isKept {
			r.removeFile(name)
		}
	}
	r.writeIndex(idx)
	if len(commit.ParentHashes) > 2 {
		for name, n := range r.treeOf(commit.ParentHashes[2]) {
			r.writeFile(name, n)
		}
	}
	if len(conflicts) > 0 {
		for _, c := range conflicts {
			say("%s\n", c.note)
		}
		r.leaveConflicts(conflicts, r.head(), "")
		r.endMerge()
		if isPop {
			warn("The stash entry is kept in case you need it again.")
		}
		exit(exitFailure)
	}
	if !slices.Contains(args, "-q") && !slices.Contains(args, "--quiet") {
		r.printLongStatus(r.state(false, true, nil), false, false)
	}
	if isPop {
		r.stashDrop(n, !slices.Contains(args, "-q"))
	}
}

func (r *repo) stashDrop(n int, isLoud bool) {
	entry := r.stash(n)
	r.writeStashes(slices.Delete(r.stashes(), n, n+1))
	if isLoud {
		say("Dropped refs/stash@{%d} (%s)\n", n, entry.hash)
	}
}
