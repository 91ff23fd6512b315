package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// node is the state of one path in a tree, the index and the work tree.
type node struct {
	hash plumbing.Hash
	mode filemode.FileMode
}

type snapshot map[string]node

// ---- trees ----

func (r *repo) treeOf(commit plumbing.Hash) snapshot {
	if commit.IsZero() {
		return snapshot{}
	}
	hash, found := r.peel(commit, "tree")
	if !found {
		fatal("bad object %s", commit)
	}
	found_ := snapshot{}
	r.readTree(hash, "", found_)
	return found_
}

func (r *repo) readTree(hash plumbing.Hash, prefix string, into snapshot) {
	tree, err := object.GetTree(r.store, hash)
	if err != nil {
		fatal("unable to read tree %s", hash)
	}
	for _, entry := range tree.Entries {
		if entry.Mode == filemode.Dir {
			r.readTree(entry.Hash, prefix+entry.Name+"/", into)
			continue
		}
		mode := entry.Mode
		if mode == filemode.Deprecated {
			mode = filemode.Regular
		}
		into[prefix+entry.Name] = node{entry.Hash, mode}
	}
}

func (r *repo) writeTree(files snapshot) plumbing.Hash {
	type child struct {
		node  node
		files snapshot
	}
	children := map[string]*child{}
	for name, n := range files {
		first, rest, isNested := strings.Cut(name, "/")
		c := children[first]
		if c == nil {
			c = &child{files: snapshot{}}
			children[first] = c
		}
		if isNested {
			c.files[rest] = n
		} else {
			c.node = n
		}
	}
	tree := &object.Tree{}
	for name, c := range children {
		entry := object.TreeEntry{Name: name, Hash: c.node.hash, Mode: c.node.mode}
		if len(c.files) > 0 {
			entry.Hash, entry.Mode = r.writeTree(c.files), filemode.Dir
		}
		tree.Entries = append(tree.Entries, entry)
	}
	sortBy(tree.Entries, func(e object.TreeEntry) string {
		if e.Mode == filemode.Dir {
			return e.Name + "/"
		}
		return e.Name
	})
	return r.writeObject(tree)
}

// ---- the index ----

// stageMerged: the library's own constant for it is 1, which is the ancestor's stage.
const stageMerged index.Stage = 0

func (r *repo) readIndex() *index.Index {
	idx, err := r.store.Index()
	if err != nil {
		fatal("index file corrupt: %v", err)
	}
	return idx
}

func (r *repo) writeIndex(idx *index.Index) {
	idx.Version = 2
	idx.Cache, idx.ResolveUndo, idx.EndOfIndexEntry = nil, nil, nil
	slices.SortStableFunc(idx.Entries, func(a, b *index.Entry) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return int(a.Stage) - int(b.Stage)
	})
	if err := r.store.SetIndex(idx); err != nil {
		fatal("Unable to write new index file: %v", err)
	}
}

func staged(idx *index.Index) snapshot {
	files := snapshot{}
	for _, e := range idx.Entries {
		if e.Stage == stageMerged && !e.IntentToAdd {
			files[e.Name] = node{e.Hash, e.Mode}
		}
	}
	return files
}

// unmerged maps each conflicted path to its stages (bit 0: base, 1: ours, 2: theirs).
func unmerged(idx *index.Index) map[string]int {
	found := map[string]int{}
	for _, e := range idx.Entries {
		if e.Stage != stageMerged {
			found[e.Name] |= 1 << (int(e.Stage) - 1)
		}
	}
	return found
}

func removeEntry(idx *index.Index, name string) {
	idx.Entries = slices.DeleteFunc(idx.Entries, func(e *index.Entry) bool { return e.Name == name })
}

// setEntry records a path, replacing it and everything that it shadows (a file where a directory was, and the reverse).
func (r *repo) setEntry(idx *index.Index, name string, n node) {
	idx.Entries = slices.DeleteFunc(idx.Entries, func(e *index.Entry) bool {
		return e.Name == name || strings.HasPrefix(e.Name, name+"/") || strings.HasPrefix(name, e.Name+"/")
	})
	entry := &index.Entry{Name: name, Hash: n.hash, Mode: n.mode}
	if info, err := os.Lstat(r.file(name)); err == nil {
		entry.ModifiedAt, entry.CreatedAt = info.ModTime(), info.ModTime()
		entry.Size = uint32(info.Size())
	}
	idx.Entries = append(idx.Entries, entry)
}

// indexFrom builds an index for a tree, keeping the stat data of entries that did not change.
func (r *repo) indexFrom(old *index.Index, files snapshot) *index.Index {
	kept := map[string]*index.Entry{}
	for _, e := range old.Entries {
		if e.Stage == stageMerged {
			kept[e.Name] = e
		}
	}
	idx := &index.Index{Version: 2}
	for name, n := range files {
		if e := kept[name]; e != nil && e.Hash == n.hash && e.Mode == n.mode {
			idx.Entries = append(idx.Entries, e)
			continue
		}
		idx.Entries = append(idx.Entries, &index.Entry{Name: name, Hash: n.hash, Mode: n.mode})
	}
	return idx
}

// refreshEntries takes over the stat data of the files as they are now.
func (r *repo) refreshEntries(idx *index.Index, names func(string) bool) {
	for _, e := range idx.Entries {
		if !names(e.Name) {
			continue
		}
		if info, err := os.Lstat(r.file(e.Name)); err == nil {
			e.ModifiedAt, e.CreatedAt, e.Size = info.ModTime(), info.ModTime(), uint32(info.Size())
		}
	}
}

// ---- files ----

func modeOf(info fs.FileInfo, known filemode.FileMode) filemode.FileMode {
	if info.Mode()&fs.ModeSymlink != 0 {
		return filemode.Symlink
	}
	if known == filemode.Executable { // WASI does not tell; what the index says stays
		return known
	}
	return filemode.Regular
}

// content is what Git stores for a path: the bytes, or the target of a link.
func (r *repo) content(name string, info fs.FileInfo) ([]byte, error) {
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(r.file(name))
		return []byte(target), err
	}
	return os.ReadFile(r.file(name))
}

func (r *repo) hashFile(name string, known filemode.FileMode) (node, bool) {
	info, err := os.Lstat(r.file(name))
	if err != nil || info.IsDir() {
		return node{}, false
	}
	data, err := r.content(name, info)
	if err != nil {
		return node{}, false
	}
	return node{plumbing.ComputeHash(plumbing.BlobObject, data), modeOf(info, known)}, true
}

// worktreeNode is the state of a tracked path on disk. A file that is older than the index, with the size and time
// recorded there, is taken as unchanged without reading it.
func (r *repo) worktreeNode(e *index.Entry, indexTime time.Time) (node, bool) {
	info, err := os.Lstat(r.file(e.Name))
	if err != nil || info.IsDir() {
		return node{}, false
	}
	mode := modeOf(info, e.Mode)
	if mode == e.Mode && uint32(info.Size()) == e.Size && info.ModTime().Equal(e.ModifiedAt) && info.ModTime().Before(indexTime) {
		return node{e.Hash, e.Mode}, true
	}
	n, found := r.hashFile(e.Name, e.Mode)
	return n, found
}

// worktree is the state of all tracked paths on disk; those that are gone are missing.
func (r *repo) worktree(idx *index.Index) snapshot {
	var indexTime time.Time
	if info, err := os.Stat(filepath.Join(r.gitDir, "index")); err == nil {
		indexTime = info.ModTime()
	}
	files := snapshot{}
	for _, e := range idx.Entries {
		if e.Mode == filemode.Submodule {
			files[e.Name] = node{e.Hash, e.Mode}
			continue
		}
		if n, found := r.worktreeNode(e, indexTime); found {
			files[e.Name] = n
		}
	}
	return files
}

func (r *repo) writeFile(name string, n node) {
	full := r.file(name)
	for _, dir := range parentDirs(name) {
		if info, err := os.Lstat(r.file(dir)); err == nil && !info.IsDir() {
			must(os.Remove(r.file(dir)))
		}
	}
	must(os.MkdirAll(filepath.Dir(full), 0o755))
	if info, err := os.Lstat(full); err == nil {
		if info.IsDir() {
			must(os.RemoveAll(full))
		} else {
			must(os.Remove(full))
		}
	}
	data := r.readBlob(n.hash)
	if n.mode == filemode.Symlink {
		if err := os.Symlink(string(data), full); err != nil {
			must(os.WriteFile(full, data, 0o644))
		}
		return
	}
	must(os.WriteFile(full, data, 0o644))
}

func (r *repo) removeFile(name string) {
	if err := os.Remove(r.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		warn("warning: unable to unlink '%s': %v", name, err)
	}
	for _, dir := range parentDirs(name) {
		if os.Remove(r.file(dir)) != nil {
			return
		}
	}
}

// ---- untracked and ignored files ----

type ignorer struct{ patterns []gitignore.Pattern }

func (ig *ignorer) load(file string, domain []string) int {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n := 0
	for _, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if !strings.HasSuffix(line, "\\ ") {
			line = strings.TrimRight(line, " ")
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		ig.patterns = append(ig.patterns, gitignore.ParsePattern(line, domain))
		n++
	}
	return n
}

func (ig *ignorer) isIgnored(name string, isDir bool) bool {
	parts := strings.Split(name, "/")
	for i := len(ig.patterns) - 1; i >= 0; i-- {
		switch ig.patterns[i].Match(parts, isDir) {
		case gitignore.Exclude:
			return true
		case gitignore.Include:
			return false
		}
	}
	return false
}

func (r *repo) newIgnorer() *ignorer {
	ig := &ignorer{}
	global, found := r.config.get("core.excludesfile")
	if !found {
		global = filepath.Join(os.Getenv("HOME"), ".config", "git", "ignore")
	}
	if strings.HasPrefix(global, "~/") {
		global = filepath.Join(os.Getenv("HOME"), global[2:])
	}
	ig.load(global, nil)
	ig.load(filepath.Join(r.gitDir, "info", "exclude"), nil)
	return ig
}

type scan struct {
	untracked, ignored []string // directories end in "/"
}

// scanUntracked walks the work tree. A directory without tracked files is one entry, unless every file is wanted.
func (r *repo) scanUntracked(idx *index.Index, wantsAll bool) scan {
	tracked, trackedDirs := map[string]bool{}, map[string]bool{}
	for _, e := range idx.Entries {
		tracked[e.Name] = true
		for _, dir := range parentDirs(e.Name) {
			trackedDirs[dir] = true
		}
	}
	var found scan
	ig := r.newIgnorer()
	var visit func(dir string, isTrackedDir bool) (hasFiles, hasIgnored bool)
	visit = func(dir string, isTrackedDir bool) (hasFiles, hasIgnored bool) {
		entries, err := os.ReadDir(r.file(dir))
		if err != nil {
			return false, false
		}
		var domain []string
		if dir != "" {
			domain = strings.Split(dir, "/")
		}
		added := ig.load(filepath.Join(r.file(dir), ".gitignore"), domain)
		defer func() { ig.patterns = ig.patterns[:len(ig.patterns)-added] }()
		for _, entry := range entries {
			name := path.Join(dir, entry.Name())
			if entry.Name() == ".git" || tracked[name] {
				continue
			}
			isDir := entry.IsDir()
			if ig.isIgnored(name, isDir) && !trackedDirs[name] {
				hasIgnored = true
				if isDir {
					name += "/"
				}
				found.ignored = append(found.ignored, name)
				continue
			}
			if !isDir {
				hasFiles = true
				found.untracked = append(found.untracked, name)
				continue
			}
			if isGitDir(r.file(path.Join(name, ".git"))) {
				hasFiles = true
				found.untracked = append(found.untracked, name+"/")
				continue
			}
			mark := len(found.untracked)
			markIgnored := len(found.ignored)
			hasInner, hasInnerIgnored := visit(name, trackedDirs[name])
			if hasInner && !trackedDirs[name] && !wantsAll {
				found.untracked = append(found.untracked[:mark], name+"/")
			}
			if !hasInner && hasInnerIgnored && !trackedDirs[name] && !wantsAll {
				found.ignored = append(found.ignored[:markIgnored], name+"/")
			}
			hasFiles = hasFiles || hasInner
			hasIgnored = hasIgnored || hasInnerIgnored
		}
		return hasFiles, hasIgnored
	}
	visit("", true)
	slices.Sort(found.untracked)
	slices.Sort(found.ignored)
	return found
}

// ---- moving the work tree from one tree to another ----

// switchTree makes index and files those of target. Local changes survive where the two trees agree; where they do not,
// nothing is touched and the paths that stand in the way are returned.
func (r *repo) switchTree(from, target snapshot) (changed, untracked []string) {
	idx := r.readIndex()
	inIndex, onDisk := staged(idx), r.worktree(idx)
	next := snapshot{}
	for name, n := range inIndex {
		next[name] = n
	}
	var write, remove []string
	for name := range union(from, target) {
		old, wasThere := from[name]
		wanted, isWanted := target[name]
		if wasThere && isWanted && old == wanted {
			continue
		}
		current, isStaged := inIndex[name]
		disk, isOnDisk := onDisk[name]
		switch {
		case isStaged == isWanted && current == wanted && (!isOnDisk || disk == wanted): // it is there already
		case isStaged != wasThere || current != old:
			changed = append(changed, name)
			continue
		case isStaged && isOnDisk && disk != current:
			changed = append(changed, name)
			continue
		case !isStaged && isWanted:
			if info, err := os.Lstat(r.file(name)); err == nil && !info.IsDir() {
				if n, ok := r.hashFile(name, wanted.mode); !ok || n.hash != wanted.hash {
					untracked = append(untracked, name)
					continue
				}
			}
		}
		if isWanted {
			next[name] = wanted
			if disk != wanted {
				write = append(write, name)
			}
		} else {
			delete(next, name)
			remove = append(remove, name)
		}
	}
	slices.Sort(changed)
	slices.Sort(untracked)
	if len(changed) > 0 || len(untracked) > 0 {
		return changed, untracked
	}
	r.apply(idx, next, write, remove)
	return nil, nil
}

// forceTree makes index and files those of target, whatever was there.
func (r *repo) forceTree(target snapshot) {
	idx := r.readIndex()
	onDisk := r.worktree(idx)
	var write, remove []string
	for name, wanted := range target {
		if onDisk[name] != wanted {
			write = append(write, name)
		}
	}
	for _, e := range idx.Entries {
		if _, isWanted := target[e.Name]; !isWanted {
			remove = append(remove, e.Name)
		}
	}
	r.apply(idx, target, write, remove)
}

func (r *repo) apply(idx *index.Index, next snapshot, write, remove []string) {
	for _, name := range remove {
		r.removeFile(name)
	}
	written := map[string]bool{}
	for _, name := range write {
		if next[name].mode == filemode.Submodule {
			must(os.MkdirAll(r.file(name), 0o755))
			continue
		}
		r.writeFile(name, next[name])
		written[name] = true
	}
	fresh := r.indexFrom(idx, next)
	r.refreshEntries(fresh, func(name string) bool { return written[name] })
	r.writeIndex(fresh)
}

func union(a, b snapshot) map[string]bool {
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	return names
}
