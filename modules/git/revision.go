package main

import (
	"regexp"
	"sort"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

var hexName = regexp.MustCompile(`^[0-9a-f]{4,40}$`)

// resolve finds the object that a revision names: refs, hashes, ^, ~, ^{type}, @{n} of HEAD's past branch, rev:path.
func (r *repo) resolve(text string) (plumbing.Hash, bool) {
	if rev, name, isPath := strings.Cut(text, ":"); isPath {
		return r.resolvePath(rev, name)
	}
	base, suffix := text, ""
	for i := 0; i < len(text); i++ {
		if text[i] == '^' || text[i] == '~' {
			base, suffix = text[:i], text[i:]
			break
		}
	}
	hash, found := r.resolveName(base)
	if !found {
		return hash, false
	}
	return r.walkSuffix(hash, suffix)
}

func (r *repo) walkSuffix(hash plumbing.Hash, suffix string) (plumbing.Hash, bool) {
	for suffix != "" {
		op := suffix[0]
		suffix = suffix[1:]
		if op == '^' && strings.HasPrefix(suffix, "{") {
			kind, rest, _ := strings.Cut(suffix[1:], "}")
			suffix = rest
			peeled, found := r.peel(hash, kind)
			if !found {
				return hash, false
			}
			hash = peeled
			continue
		}
		digits := 0
		for digits < len(suffix) && suffix[digits] >= '0' && suffix[digits] <= '9' {
			digits++
		}
		n := 1
		if digits > 0 {
			n, _ = strconv.Atoi(suffix[:digits])
			suffix = suffix[digits:]
		}
		commitHash, found := r.peel(hash, "commit")
		if !found {
			return hash, false
		}
		hash = commitHash
		if op == '^' && n == 0 {
			continue
		}
		steps, parent := 1, n
		if op == '~' {
			steps, parent = n, 1
		}
		for range steps {
			parents := r.commit(hash).ParentHashes
			if len(parents) < parent {
				return hash, false
			}
			hash = parents[parent-1]
		}
	}
	return hash, true
}

func (r *repo) resolveName(name string) (plumbing.Hash, bool) {
	if name == "@" || name == "" {
		name = "HEAD"
	}
	if name == "HEAD" {
		hash := r.head()
		return hash, !hash.IsZero()
	}
	if name == "-" || name == "@{-1}" {
		if previous := r.previousBranch(); previous != "" {
			return r.resolveName(previous)
		}
		return plumbing.ZeroHash, false
	}
	if strings.HasSuffix(name, "@{u}") || strings.HasSuffix(name, "@{upstream}") {
		return plumbing.ZeroHash, false
	}
	for _, pattern := range []string{"%s", "refs/%s", "refs/tags/%s", "refs/heads/%s", "refs/remotes/%s", "refs/remotes/%s/HEAD"} {
		full := strings.Replace(pattern, "%s", name, 1)
		if pattern == "%s" && !strings.HasPrefix(full, "refs/") && full != "ORIG_HEAD" && full != "MERGE_HEAD" && full != "FETCH_HEAD" {
			continue
		}
		if hash := r.refHash(plumbing.ReferenceName(full)); !hash.IsZero() {
			return hash, true
		}
	}
	if !hexName.MatchString(name) {
		return plumbing.ZeroHash, false
	}
	if len(name) == 40 {
		hash := plumbing.NewHash(name)
		return hash, true
	}
	return r.expandHash(name)
}

func (r *repo) expandHash(prefix string) (plumbing.Hash, bool) {
	raw := prefix
	if len(raw)%2 == 1 {
		raw = raw[:len(raw)-1]
	}
	full := plumbing.NewHash(raw + strings.Repeat("0", 40-len(raw)))
	candidates, err := r.store.HashesWithPrefix(full[:len(raw)/2])
	must(err)
	var found []plumbing.Hash
	seen := map[plumbing.Hash]bool{}
	for _, hash := range candidates {
		if strings.HasPrefix(hash.String(), prefix) && !seen[hash] {
			seen[hash] = true
			found = append(found, hash)
		}
	}
	if len(found) > 1 { // a commit wins over trees and blobs, as in Git
		var commits []plumbing.Hash
		for _, hash := range found {
			if _, err := object.GetCommit(r.store, hash); err == nil {
				commits = append(commits, hash)
			}
		}
		found = commits
	}
	if len(found) != 1 {
		return plumbing.ZeroHash, false
	}
	return found[0], true
}

// peel follows tags to a commit or tree.
func (r *repo) peel(hash plumbing.Hash, kind string) (plumbing.Hash, bool) {
	for {
		encoded, err := r.store.EncodedObject(plumbing.AnyObject, hash)
		if err != nil {
			return hash, false
		}
		switch {
		case encoded.Type() == plumbing.TagObject:
			tag, err := object.GetTag(r.store, hash)
			must(err)
			hash = tag.Target
		case kind == "" || kind == "object" || encoded.Type().String() == kind:
			return hash, true
		case encoded.Type() == plumbing.CommitObject && kind == "tree":
			return r.commit(hash).TreeHash, true
		default:
			return hash, false
		}
	}
}

func (r *repo) resolvePath(rev, name string) (plumbing.Hash, bool) {
	name = strings.TrimPrefix(name, "./")
	if rev == "" {
		for _, entry := range r.readIndex().Entries {
			if entry.Name == name {
				return entry.Hash, true
			}
		}
		return plumbing.ZeroHash, false
	}
	hash, found := r.resolve(rev)
	if !found {
		return hash, false
	}
	treeHash, found := r.peel(hash, "tree")
	if !found {
		return hash, false
	}
	tree, err := object.GetTree(r.store, treeHash)
	must(err)
	if name == "" {
		return treeHash, true
	}
	entry, err := tree.FindEntry(strings.TrimSuffix(name, "/"))
	if err != nil {
		return plumbing.ZeroHash, false
	}
	return entry.Hash, true
}

func (r *repo) resolveCommit(text string) (plumbing.Hash, bool) {
	hash, found := r.resolve(text)
	if !found {
		return hash, false
	}
	return r.peel(hash, "commit")
}

func (r *repo) mustCommit(text string) plumbing.Hash {
	hash, found := r.resolveCommit(text)
	if !found {
		fatal("ambiguous argument '%s': unknown revision or path not in the working tree.\nUse '--' to separate paths from revisions, like this:\n'git <command> [<revision>...] -- [<file>...]'", text)
	}
	return hash
}

func (r *repo) isAncestor(ancestor, hash plumbing.Hash) bool {
	isFound := false
	r.walk([]plumbing.Hash{hash}, nil, func(c *object.Commit) bool {
		isFound = c.Hash == ancestor
		return !isFound
	})
	return isFound
}

// walk visits commits newest first; visit returns false to end it. Commits reachable from hide are left out.
func (r *repo) walk(from, hide []plumbing.Hash, visit func(*object.Commit) bool) {
	hidden := map[plumbing.Hash]bool{}
	if len(hide) > 0 {
		r.walk(hide, nil, func(c *object.Commit) bool { hidden[c.Hash] = true; return true })
	}
	seen := map[plumbing.Hash]bool{}
	var queue []*object.Commit
	push := func(hash plumbing.Hash) {
		if seen[hash] || hidden[hash] {
			return
		}
		seen[hash] = true
		c, err := object.GetCommit(r.store, hash)
		if err != nil {
			if r.isShallow(hash) {
				return
			}
			fatal("bad object %s", hash)
		}
		at := sort.Search(len(queue), func(i int) bool { return queue[i].Committer.When.Before(c.Committer.When) })
		queue = append(queue, nil)
		copy(queue[at+1:], queue[at:])
		queue[at] = c
	}
	for _, hash := range from {
		push(hash)
	}
	for len(queue) > 0 {
		c := queue[0]
		queue = queue[1:]
		if !visit(c) {
			return
		}
		for _, parent := range c.ParentHashes {
			push(parent)
		}
	}
}

// isShallow is true for a parent that a shallow clone left out.
func (r *repo) isShallow(plumbing.Hash) bool {
	shallow, err := r.store.Shallow()
	return err == nil && len(shallow) > 0
}

// mergeBases are the best common ancestors: those that no other common ancestor descends from.
func (r *repo) mergeBases(a, b plumbing.Hash) []plumbing.Hash {
	ofA := map[plumbing.Hash]bool{}
	r.walk([]plumbing.Hash{a}, nil, func(c *object.Commit) bool { ofA[c.Hash] = true; return true })
	var common []plumbing.Hash
	covered := map[plumbing.Hash]bool{}
	r.walk([]plumbing.Hash{b}, nil, func(c *object.Commit) bool {
		if ofA[c.Hash] {
			common = append(common, c.Hash)
		}
		return true
	})
	for _, hash := range common {
		if covered[hash] {
			continue
		}
		r.walk(r.commit(hash).ParentHashes, nil, func(c *object.Commit) bool { covered[c.Hash] = true; return true })
	}
	var best []plumbing.Hash
	for _, hash := range common {
		if !covered[hash] {
			best = append(best, hash)
		}
	}
	return best
}
