package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// gitDate renders a time in one of Git's --date formats; "" is the default one.
func gitDate(when time.Time, format string) string {
	switch {
	case format == "iso" || format == "iso8601":
		return when.Format("2006-01-02 15:04:05 -0700")
	case format == "iso-strict" || format == "iso8601-strict":
		if _, offset := when.Zone(); offset == 0 {
			return when.Format("2006-01-02T15:04:05+00:00")
		}
		return when.Format("2006-01-02T15:04:05-07:00")
	case format == "short":
		return when.Format("2006-01-02")
	case format == "unix":
		return strconv.FormatInt(when.Unix(), 10)
	case format == "raw":
		return fmt.Sprintf("%d %s", when.Unix(), when.Format("-0700"))
	case format == "rfc" || format == "rfc2822":
		return when.Format("Mon, 2 Jan 2006 15:04:05 -0700")
	case format == "relative":
		return relativeTime(time.Since(when))
	case format == "local":
		return when.Local().Format("Mon Jan 2 15:04:05 2006")
	case strings.HasPrefix(format, "format:"):
		return strftime(when, format[len("format:"):])
	}
	return when.Format("Mon Jan 2 15:04:05 2006 -0700")
}

func relativeTime(d time.Duration) string {
	ago := func(n int, unit string) string { return fmt.Sprintf("%d %s ago", n, plural(n, unit)) }
	seconds := int(d.Seconds())
	round := func(n, by int) int { return (n + by/2) / by }
	switch days := round(seconds, 86400); {
	case seconds < 90:
		return ago(max(seconds, 0), "second")
	case round(seconds, 60) < 90:
		return ago(round(seconds, 60), "minute")
	case round(seconds, 3600) < 36:
		return ago(round(seconds, 3600), "hour")
	case days < 14:
		return ago(days, "day")
	case days < 70:
		return ago((days+3)/7, "week")
	case days < 365:
		return ago((days+15)/30, "month")
	case days < 1825:
		months := (days*12*2 + 365) / (365 * 2)
		if months%12 == 0 {
			return ago(months/12, "year")
		}
		return fmt.Sprintf("%d %s, %s", months/12, plural(months/12, "year"), ago(months%12, "month"))
	default:
		return ago((days+183)/365, "year")
	}
}

func strftime(when time.Time, format string) string {
	layouts := map[byte]string{'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'y': "06", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'Z': "MST", 'z': "-0700", 'e': "_2", 'j': "002", 'I': "03", 'p': "PM", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04"}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch layout, found := layouts[format[i]]; {
		case found:
			b.WriteString(when.Format(layout))
		case format[i] == 's':
			b.WriteString(strconv.FormatInt(when.Unix(), 10))
		default:
			b.WriteByte(format[i])
		}
	}
	return b.String()
}

// ---- how one commit looks ----

type prettyFormat struct {
	name        string // medium, oneline, short, full, fuller, raw, or "" for a user format
	user        string
	isSeparator bool // "format:" puts line ends between commits, "tformat:" after each
	date        string
	isAbbrev    bool
	isDecorated bool
	isShow      bool // `git show` counts a merge's changes against its first parent; `git log` is silent
	decorations map[plumbing.Hash][]string
}

func (r *repo) prettyFrom(o *options) prettyFormat {
	p := prettyFormat{name: "medium", date: o.value("--date"), isAbbrev: o.has("--abbrev-commit")}
	if p.date == "" {
		p.date, _ = r.config.get("log.date")
	}
	text := o.value("--pretty")
	if value, found := o.flags["--format"]; found {
		text = value[len(value)-1]
		if !strings.Contains(text, "%") && !isNamedFormat(text) && !strings.HasPrefix(text, "format:") && !strings.HasPrefix(text, "tformat:") {
			fatal("invalid --pretty format: %s", text)
		}
	}
	if alias, found := r.config.get("pretty." + text); found && text != "" {
		text = alias
	}
	switch {
	case o.has("--oneline"):
		p.name, p.isAbbrev = "oneline", true
	case text == "":
	case isNamedFormat(text):
		p.name = text
	case strings.HasPrefix(text, "format:"):
		p.name, p.user, p.isSeparator = "", text[len("format:"):], true
	case strings.HasPrefix(text, "tformat:"):
		p.name, p.user = "", text[len("tformat:"):]
	case strings.Contains(text, "%"):
		p.name, p.user = "", text
	default:
		fatal("invalid --pretty format: %s", text)
	}
	p.isDecorated = o.has("--decorate") && o.value("--decorate") != "no"
	p.decorations = r.decorations()
	return p
}

func isNamedFormat(text string) bool {
	return slices.Contains([]string{"oneline", "short", "medium", "full", "fuller", "raw", "reference", "email"}, text)
}

// decorations maps commits to the names that point at them, HEAD first.
func (r *repo) decorations() map[plumbing.Hash][]string {
	found := map[plumbing.Hash][]string{}
	add := func(hash plumbing.Hash, name string) {
		if peeled, ok := r.peel(hash, "commit"); ok {
			found[peeled] = append(found[peeled], name)
		}
	}
	branch := r.branch()
	if head := r.head(); !head.IsZero() {
		if branch == "" {
			add(head, "HEAD")
		} else {
			add(head, "HEAD -> "+branch)
		}
	}
	for _, ref := range r.refsUnder("refs/tags/") {
		add(ref.Hash(), "tag: "+ref.Name().Short())
	}
	for _, prefix := range []string{"refs/remotes/", "refs/heads/"} {
		for _, ref := range r.refsUnder(prefix) {
			if hash := r.refHash(ref.Name()); !hash.IsZero() && ref.Name().Short() != branch {
				add(hash, ref.Name().Short())
			}
		}
	}
	return found
}

func (p prettyFormat) hash(h plumbing.Hash) string {
	if p.isAbbrev {
		return short(h)
	}
	return h.String()
}

func (p prettyFormat) decoration(hash plumbing.Hash) string {
	if names := p.decorations[hash]; p.isDecorated && len(names) > 0 {
		return " (" + strings.Join(names, ", ") + ")"
	}
	return ""
}

func (p prettyFormat) render(c *object.Commit) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	indented := func(text string) {
		for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
			if l == "" {
				line("    ")
			} else if p.name == "raw" {
				line("    %s", l)
			} else {
				line("    %s", expandTabs(l))
			}
		}
	}
	who := func(s object.Signature) string { return s.Name + " <" + s.Email + ">" }
	switch p.name {
	case "":
		return p.expand(c)
	case "oneline":
		return p.hash(c.Hash) + p.decoration(c.Hash) + " " + subject(c.Message) + "\n"
	case "reference":
		return fmt.Sprintf("%s (%s, %s)\n", short(c.Hash), subject(c.Message), gitDate(c.Author.When, "short"))
	case "raw":
		line("commit %s%s\ntree %s", c.Hash, p.decoration(c.Hash), c.TreeHash)
		for _, parent := range c.ParentHashes {
			line("parent %s", parent)
		}
		line("author %s\ncommitter %s\n", identText(c.Author), identText(c.Committer))
		indented(c.Message)
		return b.String()
	}
	line("commit %s%s", p.hash(c.Hash), p.decoration(c.Hash))
	if len(c.ParentHashes) > 1 {
		var parents []string
		for _, parent := range c.ParentHashes {
			parents = append(parents, short(parent))
		}
		line("Merge: %s", strings.Join(parents, " "))
	}
	switch p.name {
	case "short":
		line("Author: %s\n", who(c.Author))
		line("    %s", subject(c.Message))
		return b.String()
	case "full":
		line("Author: %s\nCommit: %s\n", who(c.Author), who(c.Committer))
	case "fuller":
		line("Author:     %s\nAuthorDate: %s\nCommit:     %s\nCommitDate: %s\n", who(c.Author), gitDate(c.Author.When, p.date), who(c.Committer), gitDate(c.Committer.When, p.date))
	default:
		line("Author: %s\nDate:   %s\n", who(c.Author), gitDate(c.Author.When, p.date))
	}
	indented(c.Message)
	return b.String()
}

// expandTabs: Git shows messages with tab stops at every eight columns of the message itself.
func expandTabs(text string) string {
	var b strings.Builder
	column := 0
	for _, c := range text {
		if c != '\t' {
			b.WriteRune(c)
			column++
			continue
		}
		width := 8 - column%8
		b.WriteString(strings.Repeat(" ", width))
		column += width
	}
	return b.String()
}

var placeholder = regexp.MustCompile(`%(?:C\([^)]*\)|C(?:red|green|blue|reset|yellow|bold|magenta|cyan)|[ac][neEDdrtiIsNlL]|x[0-9a-fA-F]{2}|[<>|]+\([^)]*\)|.)`)

func (p prettyFormat) expand(c *object.Commit) string {
	return placeholder.ReplaceAllStringFunc(p.user, func(text string) string {
		code := text[1:]
		if len(code) == 2 && (code[0] == 'a' || code[0] == 'c') {
			sig := c.Author
			if code[0] == 'c' {
				sig = c.Committer
			}
			switch code[1] {
			case 'n', 'N':
				return sig.Name
			case 'e', 'E':
				return sig.Email
			case 'l', 'L':
				local, _, _ := strings.Cut(sig.Email, "@")
				return local
			case 'd':
				return gitDate(sig.When, p.date)
			case 'D':
				return gitDate(sig.When, "rfc")
			case 'r':
				return gitDate(sig.When, "relative")
			case 't':
				return gitDate(sig.When, "unix")
			case 'i':
				return gitDate(sig.When, "iso")
			case 'I':
				return gitDate(sig.When, "iso-strict")
			case 's':
				return gitDate(sig.When, "short")
			}
		}
		hashes := func(render func(plumbing.Hash) string) string {
			var out []string
			for _, parent := range c.ParentHashes {
				out = append(out, render(parent))
			}
			return strings.Join(out, " ")
		}
		switch {
		case code == "H":
			return c.Hash.String()
		case code == "h":
			return short(c.Hash)
		case code == "T":
			return c.TreeHash.String()
		case code == "t":
			return short(c.TreeHash)
		case code == "P":
			return hashes(plumbing.Hash.String)
		case code == "p":
			return hashes(short)
		case code == "s":
			return subject(c.Message)
		case code == "f":
			return strings.Trim(regexp.MustCompile(`[^A-Za-z0-9_.]+`).ReplaceAllString(subject(c.Message), "-"), "-.")
		case code == "b":
			return body(c.Message)
		case code == "B":
			return c.Message
		case code == "d":
			p.isDecorated = true
			return p.decoration(c.Hash)
		case code == "D":
			return strings.Join(p.decorations[c.Hash], ", ")
		case code == "n":
			return "\n"
		case code == "%":
			return "%"
		case code[0] == 'C' || code[0] == '<' || code[0] == '>':
			return ""
		case code[0] == 'x' && len(code) == 3:
			value, _ := strconv.ParseUint(code[1:], 16, 8)
			return string([]byte{byte(value)})
		case code == "e" || code == "N" || code == "G":
			return ""
		}
		return text
	})
}

// ---- git log ----

const logFlags = diffFlags + " --oneline --graph --all --branches --tags --reverse --decorate --no-decorate --merges --no-merges --first-parent --follow --abbrev-commit --no-abbrev-commit --date-order --topo-order --author-date-order -i --regexp-ignore-case -E -F --no-walk --parents --cc -c -m --no-notes --left-right --no-pager --count --invert-grep --all-match --boundary --cherry-pick -g"
const logValues = "-n --max-count --skip --format --pretty --date --author --committer --grep --since --after --until --before -S -G -L --abbrev " + diffValues

func cmdLog(args []string) {
	r := openRepo()
	o := parseLogOptions(args)
	if r.head().IsZero() && len(o.rest) == 0 && !o.has("--all") {
		fatal("your current branch '%s' does not have any commits yet", r.branch())
	}
	commits, spec := r.selectCommits(o)
	p := r.prettyFrom(o)
	f := formatFrom(o)
	for i, c := range commits {
		if i > 0 && p.name != "oneline" && p.name != "" && p.name != "reference" {
			say("\n")
		}
		if i > 0 && p.isSeparator {
			say("\n")
		}
		r.printCommit(c, p, f, spec, o.has("--graph"), o)
	}
	if p.isSeparator && len(commits) > 0 && !f.isAnything() {
		out.flush()
	}
}

// parseLogOptions allows --pretty and --format without a value (the next word is not theirs).
func parseLogOptions(args []string) *options {
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if arg == "--pretty" {
			args[i] = "--pretty=medium"
		}
		if arg == "--abbrev" {
			args[i] = "--abbrev=7"
		}
	}
	return parseOptions(args, logFlags, logValues)
}

func (r *repo) printCommit(c *object.Commit, p prettyFormat, f diffFormat, spec pathspec, isGraph bool, o *options) {
	text := p.render(c)
	if p.name == "" && !p.isSeparator {
		text += "\n"
	}
	if isGraph {
		text = graphed(text)
	}
	say("%s", text)
	if len(c.ParentHashes) > 1 && !o.has("-m", "--first-parent") {
		if !p.isShow {
			return
		}
		f = diffFormat{stat: f.stat, shortStat: f.shortStat, numStat: f.numStat, summary: f.summary, context: f.context}
	}
	if !f.isAnything() {
		return
	}
	changes := r.commitChanges(c, spec)
	if !o.has("--no-renames") {
		changes = r.findRenames(changes)
	}
	if len(changes) == 0 {
		return
	}
	if p.isSeparator {
		say("\n")
	}
	if p.name != "oneline" && (p.name != "" || f.patch || f.stat || f.nameOnly || f.nameStatus || f.numStat || f.shortStat) && !(p.name == "" && p.user == "") {
		if f.stat && f.patch {
			say("---\n")
		} else {
			say("\n")
		}
	}
	r.printChanges(changes, f)
}

func graphed(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		mark := "| "
		if i == 0 {
			mark = "* "
		}
		lines[i] = mark + line
	}
	return strings.Join(lines, "\n") + "\n"
}

func (r *repo) commitChanges(c *object.Commit, spec pathspec) []*change {
	parent := plumbing.ZeroHash
	if len(c.ParentHashes) > 0 {
		parent = c.ParentHashes[0]
	}
	return compareTrees(r.treeOf(parent), r.treeOf(c.Hash), spec)
}

func (r *repo) selectCommits(o *options) ([]*object.Commit, pathspec) {
	revisions, paths := r.splitRevisions(o)
	var spec pathspec
	if r.workTree != "" && len(paths) > 0 {
		spec = r.pathspec(paths)
	}
	from, hide := r.revisionRange(revisions, o)
	limit := number(o.value("-n", "--max-count"), -1)
	skip := number(o.value("--skip"), 0)
	accept := r.commitFilter(o, spec)
	var found []*object.Commit
	visit := func(c *object.Commit) bool {
		if limit == 0 {
			return false
		}
		if !accept(c) {
			return true
		}
		if skip > 0 {
			skip--
			return true
		}
		found = append(found, c)
		return limit < 0 || len(found) < limit
	}
	switch {
	case o.has("--no-walk"):
		for _, hash := range from {
			visit(r.commit(hash))
		}
	case o.has("--first-parent"):
		r.walkFirstParents(from, hide, visit)
	default:
		r.walk(from, hide, visit)
	}
	if o.has("--reverse") {
		slices.Reverse(found)
	}
	return found, spec
}

func (r *repo) walkFirstParents(from, hide []plumbing.Hash, visit func(*object.Commit) bool) {
	hidden := map[plumbing.Hash]bool{}
	if len(hide) > 0 {
		r.walk(hide, nil, func(c *object.Commit) bool { hidden[c.Hash] = true; return true })
	}
	for _, hash := range from {
		for !hidden[hash] {
			c := r.commit(hash)
			if !visit(c) || len(c.ParentHashes) == 0 {
				return
			}
			hash = c.ParentHashes[0]
		}
	}
}

func number(text string, fallback int) int {
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		fatal("'%s': not an integer", text)
	}
	return n
}

func (r *repo) revisionRange(revisions []string, o *options) (from, hide []plumbing.Hash) {
	prefixes := map[string]string{"--all": "refs/", "--branches": "refs/heads/", "--tags": "refs/tags/"}
	for flag, prefix := range prefixes {
		if !o.has(flag) {
			continue
		}
		for _, ref := range r.refsUnder(prefix) {
			if hash, found := r.peel(r.refHash(ref.Name()), "commit"); found {
				from = append(from, hash)
			}
		}
		if head := r.head(); flag == "--all" && !head.IsZero() {
			from = append(from, head)
		}
	}
	for _, rev := range revisions {
		if left, right, isRange := strings.Cut(rev, "..."); isRange {
			a, b := r.mustCommit(orHead(left)), r.mustCommit(orHead(right))
			from = append(from, a, b)
			hide = append(hide, r.mergeBases(a, b)...)
		} else if left, right, isRange := strings.Cut(rev, ".."); isRange {
			hide = append(hide, r.mustCommit(orHead(left)))
			from = append(from, r.mustCommit(orHead(right)))
		} else if strings.HasPrefix(rev, "^") {
			hide = append(hide, r.mustCommit(rev[1:]))
		} else {
			from = append(from, r.mustCommit(rev))
		}
	}
	if len(from) == 0 && !o.has("--all", "--branches", "--tags") {
		from = append(from, r.mustCommit("HEAD"))
	}
	return from, hide
}

func (r *repo) commitFilter(o *options, spec pathspec) func(*object.Commit) bool {
	ignoreCase := ""
	if o.has("-i", "--regexp-ignore-case") {
		ignoreCase = "(?i)"
	}
	compile := func(names ...string) []*regexp.Regexp {
		var found []*regexp.Regexp
		for _, name := range names {
			for _, pattern := range o.flags[name] {
				if o.has("-F") {
					pattern = regexp.QuoteMeta(pattern)
				}
				compiled, err := regexp.Compile("(?m)" + ignoreCase + pattern)
				if err != nil {
					fatal("command line, '%s': invalid regexp", pattern)
				}
				found = append(found, compiled)
			}
		}
		return found
	}
	bound := func(names ...string) (time.Time, bool) {
		text := o.value(names...)
		if text == "" {
			return time.Time{}, false
		}
		when, err := parseDate(text)
		must(err)
		return when, true
	}
	authors, committers, greps := compile("--author"), compile("--committer"), compile("--grep")
	since, hasSince := bound("--since", "--after")
	until, hasUntil := bound("--until", "--before")
	matchesAny := func(list []*regexp.Regexp, text string) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(re *regexp.Regexp) bool { return re.MatchString(text) })
	}
	return func(c *object.Commit) bool {
		switch {
		case o.has("--merges") && len(c.ParentHashes) < 2, o.has("--no-merges") && len(c.ParentHashes) > 1:
			return false
		case hasSince && c.Committer.When.Before(since), hasUntil && c.Committer.When.After(until):
			return false
		case !matchesAny(authors, c.Author.Name+" <"+c.Author.Email+">"), !matchesAny(committers, c.Committer.Name+" <"+c.Committer.Email+">"), !matchesAny(greps, c.Message):
			return false
		case len(spec) > 0 && !r.touches(c, spec):
			return false
		}
		if text := o.value("-S"); text != "" && !r.changesCount(c, text) {
			return false
		}
		return true
	}
}

// touches: a merge counts only when it differs from all of its parents.
func (r *repo) touches(c *object.Commit, spec pathspec) bool {
	own := r.treeOf(c.Hash)
	if len(c.ParentHashes) == 0 {
		return len(compareTrees(snapshot{}, own, spec)) > 0
	}
	for _, parent := range c.ParentHashes {
		if len(compareTrees(r.treeOf(parent), own, spec)) == 0 {
			return false
		}
	}
	return true
}

func (r *repo) changesCount(c *object.Commit, text string) bool {
	for _, ch := range r.commitChanges(c, nil) {
		r.load(ch)
		if strings.Count(string(ch.oldData), text) != strings.Count(string(ch.newData), text) {
			return true
		}
	}
	return false
}

func cmdRevList(args []string) {
	r := openRepo()
	o := parseLogOptions(args)
	commits, _ := r.selectCommits(o)
	if o.has("--count") {
		say("%d\n", len(commits))
		return
	}
	for _, c := range commits {
		say("%s\n", c.Hash)
	}
}

// ---- git show ----

func cmdShow(args []string) {
	r := openRepo()
	o := parseLogOptions(args)
	revisions, paths := o.rest, o.paths
	if !o.hasDashes {
		revisions, paths = r.splitRevisions(o)
	}
	if len(revisions) == 0 {
		if r.head().IsZero() {
			fatal("your current branch '%s' does not have any commits yet", r.branch())
		}
		revisions = []string{"HEAD"}
	}
	for i, rev := range revisions {
		if i > 0 {
			say("\n")
		}
		hash, found := r.resolve(rev)
		if !found {
			r.mustCommit(rev)
		}
		r.showObject(rev, hash, o, r.pathspecOrNone(paths))
	}
}

func (r *repo) pathspecOrNone(paths []string) pathspec {
	if len(paths) == 0 || r.workTree == "" {
		return nil
	}
	return r.pathspec(paths)
}

func (r *repo) showObject(rev string, hash plumbing.Hash, o *options, spec pathspec) {
	encoded, err := r.store.EncodedObject(plumbing.AnyObject, hash)
	if err != nil {
		fatal("bad object %s", rev)
	}
	switch encoded.Type() {
	case plumbing.BlobObject:
		say("%s", r.readBlob(hash))
	case plumbing.TreeObject:
		say("tree %s\n\n", rev)
		tree, err := object.GetTree(r.store, hash)
		must(err)
		for _, entry := range tree.Entries {
			say("%s%s\n", entry.Name, map[bool]string{true: "/", false: ""}[!entry.Mode.IsFile()])
		}
	case plumbing.TagObject:
		tag, err := object.GetTag(r.store, hash)
		must(err)
		say("tag %s\nTagger: %s <%s>\nDate:   %s\n\n%s\n", tag.Name, tag.Tagger.Name, tag.Tagger.Email, gitDate(tag.Tagger.When, o.value("--date")), tag.Message)
		r.showObject(rev, tag.Target, o, spec)
	default:
		f := formatFrom(o)
		if !f.isAnything() && !o.has("--no-patch", "-s") {
			f.patch = true
		}
		c := r.commit(hash)
		p := r.prettyFrom(o)
		p.isShow = true
		r.printCommit(c, p, f, spec, false, o)
		if p.isSeparator && len(r.commitChanges(c, spec)) == 0 {
			say("\n")
		}
	}
}
