package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

var gitDirOption, workTreeOption string

type repo struct {
	gitDir, workTree string // absolute; workTree is "" in a bare repository
	prefix           string // the current directory below workTree, "" or "a/b/"
	store            *filesystem.Storage
	config           *config
}

// findRepo looks for a repository from the current directory upwards; nil when there is none.
func findRepo() *repo {
	current, err := os.Getwd()
	must(err)
	current = filepath.ToSlash(current)
	gitDir := gitDirOption
	if gitDir == "" {
		gitDir = os.Getenv("GIT_DIR")
	}
	if gitDir != "" {
		if !filepath.IsAbs(gitDir) {
			gitDir = filepath.Join(current, gitDir)
		}
		if !isGitDir(gitDir) {
			fatal("not a git repository: '%s'", gitDirOption)
		}
		tree := workTreeOption
		if tree == "" {
			tree = current
		}
		return makeRepo(gitDir, tree, current)
	}
	for at := current; ; at = filepath.Dir(at) {
		if dir := filepath.Join(at, ".git"); isGitDir(dir) {
			return makeRepo(dir, at, current)
		} else if target := gitFile(dir); target != "" {
			return makeRepo(target, at, current)
		}
		if isGitDir(at) {
			return makeRepo(at, "", current)
		}
		if at == "/" || at == "." {
			return nil
		}
	}
}

func isGitDir(dir string) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// gitFile follows a ".git" file ("gitdir: elsewhere").
func gitFile(name string) string {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	data, _ := os.ReadFile(name)
	target := strings.TrimSpace(strings.TrimPrefix(string(data), "gitdir:"))
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(name), target)
	}
	if isGitDir(target) {
		return target
	}
	return ""
}

func makeRepo(gitDir, workTree, current string) *repo {
	r := &repo{gitDir: gitDir, workTree: workTree}
	r.store = filesystem.NewStorage(osfs.New(gitDir), cache.NewObjectLRUDefault())
	r.config = &config{global: readConfigFile(globalConfigPath()), local: readConfigFile(filepath.Join(gitDir, "config"))}
	if r.config.isTrue("core.bare", false) && workTreeOption == "" {
		r.workTree = ""
	}
	if r.workTree != "" && current != r.workTree {
		if relative, err := filepath.Rel(r.workTree, current); err == nil && !strings.HasPrefix(relative, "..") {
			r.prefix = filepath.ToSlash(relative) + "/"
		}
	}
	return r
}

func openRepo() *repo {
	r := findRepo()
	if r == nil {
		fatal("not a git repository (or any of the parent directories): .git")
	}
	return r
}

func openWorkTree() *repo {
	r := openRepo()
	if r.workTree == "" {
		fatal("this operation must be run in a work tree")
	}
	return r
}

func (r *repo) file(name string) string { return filepath.Join(r.workTree, name) }

// repoPath turns an argument into a path below the top of the work tree.
func (r *repo) repoPath(arg string) string {
	full := arg
	if !filepath.IsAbs(arg) {
		full = filepath.Join(r.workTree, r.prefix, arg)
	}
	relative, err := filepath.Rel(r.workTree, filepath.Clean(full))
	if err != nil || relative == ".." || strings.HasPrefix(relative, "../") {
		fatal("%s: '%s' is outside repository at '%s'", arg, arg, r.workTree)
	}
	if relative == "." {
		return ""
	}
	return filepath.ToSlash(relative)
}

// shown is a path of the repository as seen from the current directory.
func (r *repo) shown(name string) string {
	if r.prefix == "" {
		return name
	}
	relative, err := filepath.Rel(strings.TrimSuffix(r.prefix, "/"), name)
	if err != nil {
		return name
	}
	if strings.HasSuffix(name, "/") {
		relative += "/"
	}
	return relative
}

// ---- references ----

func (r *repo) headRef() *plumbing.Reference {
	head, err := r.store.Reference(plumbing.HEAD)
	if err != nil {
		fatal("not a git repository (or any of the parent directories): .git")
	}
	return head
}

// branch is the short name of the current branch, "" when HEAD is detached.
func (r *repo) branch() string {
	head := r.headRef()
	if head.Type() == plumbing.SymbolicReference {
		return head.Target().Short()
	}
	return ""
}

// head is the current commit; the zero hash before the first one.
func (r *repo) head() plumbing.Hash {
	head := r.headRef()
	if head.Type() == plumbing.HashReference {
		return head.Hash()
	}
	return r.refHash(head.Target())
}

func (r *repo) refHash(name plumbing.ReferenceName) plumbing.Hash {
	for range 5 {
		ref, err := r.store.Reference(name)
		if err != nil {
			return plumbing.ZeroHash
		}
		if ref.Type() == plumbing.HashReference {
			return ref.Hash()
		}
		name = ref.Target()
	}
	return plumbing.ZeroHash
}

// updateHead moves the current branch, or HEAD itself when it is detached.
func (r *repo) updateHead(hash plumbing.Hash, reason string) {
	old := r.head()
	name := plumbing.HEAD
	if head := r.headRef(); head.Type() == plumbing.SymbolicReference {
		name = head.Target()
		r.logRef(name, old, hash, reason)
	}
	must(r.store.SetReference(plumbing.NewHashReference(name, hash)))
	r.logRef(plumbing.HEAD, old, hash, reason)
}

func (r *repo) attachHead(branch string) {
	must(r.store.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, plumbing.NewBranchReferenceName(branch))))
}

func (r *repo) detachHead(hash plumbing.Hash) {
	must(r.store.SetReference(plumbing.NewHashReference(plumbing.HEAD, hash)))
}

// logRef writes a reflog line, so that real Git's `git reflog` tells the same story.
func (r *repo) logRef(name plumbing.ReferenceName, old, hash plumbing.Hash, reason string) {
	who := identText(r.identOr("COMMITTER"))
	file := filepath.Join(r.gitDir, "logs", string(name))
	if os.MkdirAll(filepath.Dir(file), 0o755) != nil {
		return
	}
	log, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer log.Close()
	fmt.Fprintf(log, "%s %s %s\t%s\n", old, hash, who, strings.SplitN(reason, "\n", 2)[0])
}

func (r *repo) refsUnder(prefix string) []*plumbing.Reference {
	iter, err := r.store.IterReferences()
	must(err)
	var found []*plumbing.Reference
	must(iter.ForEach(func(ref *plumbing.Reference) error {
		if strings.HasPrefix(string(ref.Name()), prefix) {
			found = append(found, ref)
		}
		return nil
	}))
	sortBy(found, func(ref *plumbing.Reference) string { return string(ref.Name()) })
	return found
}

// ---- objects ----

func (r *repo) commit(hash plumbing.Hash) *object.Commit {
	c, err := object.GetCommit(r.store, hash)
	if err != nil {
		fatal("bad object %s", hash)
	}
	return c
}

func (r *repo) writeObject(o interface {
	Encode(plumbing.EncodedObject) error
}) plumbing.Hash {
	encoded := r.store.NewEncodedObject()
	must(o.Encode(encoded))
	hash, err := r.store.SetEncodedObject(encoded)
	must(err)
	return hash
}

func (r *repo) writeBlob(data []byte) plumbing.Hash {
	hash := plumbing.ComputeHash(plumbing.BlobObject, data)
	if r.store.HasEncodedObject(hash) == nil {
		return hash
	}
	encoded := r.store.NewEncodedObject()
	encoded.SetType(plumbing.BlobObject)
	w, err := encoded.Writer()
	must(err)
	_, err = w.Write(data)
	must(err)
	must(w.Close())
	_, err = r.store.SetEncodedObject(encoded)
	must(err)
	return hash
}

func (r *repo) readBlob(hash plumbing.Hash) []byte {
	blob, err := object.GetBlob(r.store, hash)
	if err != nil {
		fatal("unable to read %s", hash)
	}
	return readAll(blob)
}

func short(hash plumbing.Hash) string { return hash.String()[:7] }

// ---- identity ----

// ident is the author or committer; Git's advice and 128 for one that cannot be used.
func (r *repo) ident(role string) object.Signature {
	sig, problem := r.lookupIdent(role)
	if problem != "" {
		title := map[string]string{"AUTHOR": "Author", "COMMITTER": "Committer"}[role]
		warn("%s identity unknown\n\n*** Please tell me who you are.\n\nRun\n\n  git config --global user.email \"you@example.com\"\n  git config --global user.name \"Your Name\"\n\nto set your account's default identity.\nOmit --global to set the identity only in this repository.\n", title)
		fatal("%s", problem)
	}
	return sig
}

// The committer if none is configured: the same as in the /etc/gitconfig of the process cage, so that an agent's first
// commit works in both.
const defaultName, defaultEmail = "sandbox", "sandbox@localhost"

// identOr never fails: reflogs may carry a made-up name.
func (r *repo) identOr(role string) object.Signature {
	sig, problem := r.lookupIdent(role)
	if problem != "" {
		sig.Name, sig.Email = defaultName, defaultEmail
	}
	return sig
}

func (r *repo) lookupIdent(role string) (object.Signature, string) {
	pick := func(env, key string) (string, bool) {
		if value, found := os.LookupEnv("GIT_" + role + "_" + env); found {
			return cleanIdent(value), true
		}
		if value, found := r.config.get(strings.ToLower(role) + "." + key); found {
			return cleanIdent(value), true
		}
		value, found := r.config.get("user." + key)
		return cleanIdent(value), found
	}
	name, hasName := pick("NAME", "name")
	email, hasEmail := pick("EMAIL", "email")
	isStrict := r.config.isTrue("user.useconfigonly", false)
	switch {
	case !hasEmail && isStrict:
		return object.Signature{}, "no email was given and auto-detection is disabled"
	case !hasName && isStrict:
		return object.Signature{}, "no name was given and auto-detection is disabled"
	case !hasEmail:
		email = cmp.Or(cleanIdent(os.Getenv("EMAIL")), defaultEmail)
	}
	if !hasName {
		name = defaultName
	}
	sig := object.Signature{Name: name, Email: email, When: time.Now()}
	if date := os.Getenv("GIT_" + role + "_DATE"); date != "" {
		when, err := parseDate(date)
		if err != nil {
			return sig, fmt.Sprintf("invalid date format: %s", date)
		}
		sig.When = when
	}
	if sig.Name == "" {
		return sig, fmt.Sprintf("empty ident name (for <%s>) not allowed", sig.Email)
	}
	return sig, ""
}

func cleanIdent(text string) string {
	text = strings.NewReplacer("<", "", ">", "", "\n", "").Replace(text)
	return strings.Trim(text, " .,:;\"\\'")
}

func identText(sig object.Signature) string {
	return fmt.Sprintf("%s <%s> %d %s", sig.Name, sig.Email, sig.When.Unix(), sig.When.Format("-0700"))
}

var rawDate = regexp.MustCompile(`^@?(\d+)(?:\s+([+-]\d{4}))?$`)

func parseDate(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	if m := rawDate.FindStringSubmatch(text); m != nil {
		seconds, _ := strconv.ParseInt(m[1], 10, 64)
		when := time.Unix(seconds, 0).UTC()
		if m[2] != "" {
			hours, _ := strconv.Atoi(m[2][1:3])
			minutes, _ := strconv.Atoi(m[2][3:])
			offset := hours*3600 + minutes*60
			if m[2][0] == '-' {
				offset = -offset
			}
			when = when.In(time.FixedZone("", offset))
		}
		return when, nil
	}
	layouts := []string{time.RFC3339, "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05", "2006-01-02 15:04:05 -0700", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02",
		"Mon Jan 2 15:04:05 2006 -0700", "Mon, 2 Jan 2006 15:04:05 -0700", "Mon Jan 2 15:04:05 2006"}
	for _, layout := range layouts {
		if when, err := time.Parse(layout, text); err == nil {
			if when.Location().String() == "" {
				_, offset := when.Zone()
				when = when.In(time.FixedZone("", offset))
			}
			return when, nil
		}
	}
	return parseRelativeDate(text)
}

var relativeDate = regexp.MustCompile(`^(\d+)[ .](second|minute|hour|day|week|month|year)s?(?:[ .]ago)?$`)

func parseRelativeDate(text string) (time.Time, error) {
	now := time.Now()
	switch text {
	case "now":
		return now, nil
	case "yesterday":
		return now.AddDate(0, 0, -1), nil
	case "today", "midnight":
		return now.Truncate(24 * time.Hour), nil
	}
	m := relativeDate.FindStringSubmatch(text)
	if m == nil {
		return now, fmt.Errorf("invalid date format: %s", text)
	}
	n, _ := strconv.Atoi(m[1])
	switch m[2] {
	case "week":
		return now.AddDate(0, 0, -7*n), nil
	case "month":
		return now.AddDate(0, -n, 0), nil
	case "year":
		return now.AddDate(-n, 0, 0), nil
	case "day":
		return now.AddDate(0, 0, -n), nil
	}
	unit := map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour}[m[2]]
	return now.Add(-time.Duration(n) * unit), nil
}
