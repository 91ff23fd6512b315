package search

import (
	"path"
	"strings"
	"unicode"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

func init() {
	core.Register(&core.Command{Name: "rg", Summary: "Search files recursively for a pattern.",
		Usage: "rg [-FivwxcnNlopqsSHIaU0] [-e PATTERN]... [-f FILE] [-g GLOB] [-t TYPE] [-T TYPE] [-m N] [-A N] [-B N] [-C N] [-r TEXT] [--files] [--hidden] [--json] PATTERN [path...]", Run: ripgrep})
}

var fileTypes = map[string][]string{
	"py": {"*.py", "*.pyi"}, "python": {"*.py", "*.pyi"}, "js": {"*.js", "*.jsx", "*.mjs", "*.cjs"}, "ts": {"*.ts", "*.tsx", "*.mts", "*.cts"}, "go": {"*.go"}, "rust": {"*.rs"},
	"c": {"*.c", "*.h"}, "cpp": {"*.cpp", "*.cc", "*.cxx", "*.hpp", "*.hh", "*.h"}, "java": {"*.java"}, "md": {"*.md", "*.markdown"}, "markdown": {"*.md", "*.markdown"},
	"json": {"*.json", "*.jsonl"}, "yaml": {"*.yml", "*.yaml"}, "toml": {"*.toml"}, "html": {"*.html", "*.htm"}, "css": {"*.css", "*.scss"}, "sh": {"*.sh", "*.bash"},
	"txt": {"*.txt"}, "xml": {"*.xml"}, "sql": {"*.sql"}, "ruby": {"*.rb"}, "php": {"*.php"}, "csv": {"*.csv"},
}

type walker struct {
	*grepper
	globs      []string
	hidden     bool
	noIgnore   bool
	listFiles  bool
	types      []string
	notTypes   []string
	maxDepth   int
	sorted     bool
	ignoreFile map[string][]string
}

func ripgrep(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: "FivwxcnNlopqsSHIa0e:f:g:t:T:m:A:B:C:r:uUPjd:M:zL.", Long: "fixed-strings/F ignore-case/i case-sensitive/s invert-match/v word-regexp/w line-regexp/x count/c count-matches line-number/n no-line-number/N files-with-matches/l files-without-match only-matching/o pretty/p quiet/q smart-case/S with-filename/H no-filename/I text/a null/0 regexp=/e file=/f glob=/g iglob=/g type=/t type-not=/T max-count=/m after-context=/A before-context=/B context=/C replace=/r files hidden/. no-ignore no-ignore-vcs/no-ignore unrestricted/u multiline/U pcre2/P color= colour=/color heading no-heading column vimgrep trim max-depth=/d sort= sortr=/sort passthru follow/L json stats max-columns=/M threads=/j no-messages/nomsg byte-offset/b context-separator= type-list line-buffered"}.Parse(c)
	if !ok {
		return 2
	}
	w := &walker{grepper: newGrepper(c), maxDepth: -1, ignoreFile: map[string][]string{}}
	w.label, w.isRipgrep = "<stdin>", true
	dialect := posix.Options{Perl: true}
	var patterns []string
	smart, havePatterns, showNames := false, false, 0
	for _, option := range options {
		switch option.Name {
		case "F":
			dialect.Fixed, dialect.Perl = true, false
		case "i":
			dialect.IgnoreCase = true
		case "s":
			dialect.IgnoreCase, smart = false, false
		case "S":
			smart = true
		case "w":
			dialect.WholeWord = true
		case "x":
			dialect.WholeLine = true
		case "U":
			dialect.Multiline = true
		case "e":
			havePatterns = true
			patterns = append(patterns, option.Value)
		case "f":
			lines, err := patternFile(c, option.Value)
			if err != nil {
				return c.Fail(2, "%s: %s", option.Value, core.Reason(err))
			}
			havePatterns = true
			patterns = append(patterns, lines...)
		case "N":
			w.lineNumbers = false
		case "H":
			showNames = 1
		case "I":
			showNames = -1
		case "0":
			w.nulNames = true
		case "count-matches":
			w.count, w.countMatches = true, true
		case "files-without-match":
			w.listOther = true
		case "g":
			w.globs = append(w.globs, option.Value)
		case "t":
			w.types = append(w.types, option.Value)
		case "T":
			w.notTypes = append(w.notTypes, option.Value)
		case "r":
			w.replace, w.replaceSet = option.Value, true
		case "files":
			w.listFiles = true
		case ".":
			w.hidden = true
		case "no-ignore":
			w.noIgnore = true
		case "u":
			if w.noIgnore {
				w.hidden = true
			}
			w.noIgnore = true
		case "color":
			w.color = option.Value == "always"
		case "heading":
			w.heading = true
		case "no-heading":
			w.heading = false
		case "p":
			w.heading, w.lineNumbers = true, true
		case "column":
			w.column, w.lineNumbers = true, true
		case "vimgrep":
			w.column, w.lineNumbers, showNames = true, true, 1
		case "trim":
			w.trim = true
		case "d":
			w.maxDepth = int(atoi(option.Value))
		case "L":
			w.followLinks = true
		case "nomsg":
			w.noMessages = true
		case "context-separator":
			w.groupSeparator = option.Value
		case "passthru":
			w.passesAll = true
		case "json":
			w.json = newJSONReport(w.grepper)
		case "P", "j", "M", "sort", "stats", "z", "line-buffered":
		case "type-list":
			for _, name := range sortedTypes() {
				c.Out.WriteString(name + ": " + strings.Join(fileTypes[name], ", ") + "\n")
			}
			return 0
		default:
			if problem := w.set(option); problem != "" {
				return c.Fail(2, "%s", problem)
			}
		}
	}
	if rival := w.rivalOfJSON(); rival != "" {
		return c.Fail(2, "error: The argument '%s' cannot be used with '--json'", rival)
	}
	if !havePatterns && !w.listFiles {
		if len(operands) == 0 {
			return c.Fail(2, "the following required arguments were not provided:\n  <PATTERN>")
		}
		patterns, operands = operands[:1], operands[1:]
	}
	if smart && !strings.ContainsFunc(strings.Join(patterns, ""), unicode.IsUpper) {
		dialect.IgnoreCase = true
	}
	if problem := w.compile(patterns, dialect); problem != "" {
		return c.Fail(2, "regex parse error:\n    %s", problem)
	}
	w.recursive = true
	w.lineNumbers = w.lineNumbers || w.json != nil
	return w.start(operands, showNames)
}

// rivalOfJSON names an option that asks for another kind of output than --json, which was given too.
func (w *walker) rivalOfJSON() string {
	switch {
	case w.json == nil:
		return ""
	case w.countMatches:
		return "--count-matches"
	case w.count:
		return "--count"
	case w.list:
		return "--files-with-matches"
	case w.listOther:
		return "--files-without-match"
	case w.listFiles:
		return "--files"
	}
	return ""
}

func atoi(text string) int64 {
	number := int64(0)
	for i := 0; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
		number = number*10 + int64(text[i]-'0')
	}
	return number
}

func sortedTypes() []string {
	var names []string
	for name := range fileTypes {
		names = append(names, name)
	}
	for i := range names {
		for j := i + 1; j < len(names); j++ {
			if names[j] < names[i] {
				names[i], names[j] = names[j], names[i]
			}
		}
	}
	return names
}

// start decides between standard input and a walk: rg without paths reads a pipe when there is one, the tree otherwise.
func (w *walker) start(operands []string, showNames int) int {
	if len(operands) == 0 && !w.listFiles && w.c.HasInput() {
		operands = []string{"-"}
	}
	w.names = len(operands) != 1
	if len(operands) == 0 {
		operands = []string{""}
	}
	for _, name := range operands {
		if info, err := core.Stat(w.c.Path(orDot(name))); err == nil && info.IsDir() && name != "-" {
			w.names = true
		}
	}
	if showNames != 0 {
		w.names = showNames > 0
	}
	for _, name := range operands {
		if name == "-" {
			w.stream(w.label, w.c.Stdin)
			continue
		}
		info, err := core.Stat(w.c.Path(orDot(name)))
		if err != nil {
			w.failed = true
			if !w.noMessages {
				w.c.Errorf("%s: %s (os error 2)", name, core.Reason(err))
			}
			continue
		}
		if info.IsDir() {
			w.noBinary = !w.text // in a tree a binary file is in the way, named by the caller it is wanted
			w.walk(name, 0)
		} else {
			w.noBinary = false
			w.visit(name)
		}
	}
	if w.json != nil && !w.quiet {
		w.json.summary()
	}
	isFound := w.matchedAny
	if w.listOther {
		isFound = w.listedAny
	}
	switch {
	case isFound && (w.quiet || !w.failed):
		return 0
	case w.failed:
		return 2
	}
	return 1
}

func orDot(name string) string {
	if name == "" {
		return "."
	}
	return name
}

func (w *walker) visit(name string) {
	if w.listFiles {
		w.matchedAny = true
		w.c.Out.WriteString(name + "\n")
		return
	}
	w.file(name)
}

func (w *walker) walk(dir string, depth int) {
	if w.maxDepth >= 0 && depth >= w.maxDepth {
		return
	}
	entries, err := core.ReadDir(w.c.Path(orDot(dir)))
	if err != nil {
		w.problem(dir, err)
		return
	}
	ignored := w.ignores(dir)
	for _, entry := range entries {
		base := entry.Name()
		name := base
		if dir != "" {
			name = strings.TrimSuffix(dir, "/") + "/" + base
		}
		w.c.Check()
		kind := w.kind(entry, name)
		if !w.hidden && strings.HasPrefix(base, ".") || base == ".git" || matchesIgnore(ignored, base, kind.IsDir()) {
			continue
		}
		if kind.IsDir() {
			if !w.excludedByGlob(name, base, true) {
				w.walk(name, depth+1)
			}
			continue
		}
		if kind.IsRegular() && w.typeWanted(base) && !w.excludedByGlob(name, base, false) {
			w.visit(name)
		}
		if w.quiet && w.matchedAny {
			return
		}
	}
}

func (w *walker) ignores(dir string) []string {
	if w.noIgnore {
		return nil
	}
	var all []string
	for _, file := range []string{".gitignore", ".ignore", ".rgignore"} {
		if lines, err := patternFile(w.c, path.Join(orDot(dir), file)); err == nil {
			for _, line := range lines {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					all = append(all, line)
				}
			}
		}
	}
	if parent := w.ignoreFile[path.Dir(orDot(dir))]; parent != nil {
		all = append(append([]string(nil), parent...), all...)
	}
	w.ignoreFile[orDot(dir)] = all
	return all
}

func matchesIgnore(patterns []string, base string, isDir bool) bool {
	ignored := false
	for _, pattern := range patterns {
		negated := strings.HasPrefix(pattern, "!")
		pattern = strings.TrimPrefix(pattern, "!")
		if strings.HasSuffix(pattern, "/") && !isDir {
			continue
		}
		pattern = strings.Trim(pattern, "/")
		pattern = strings.TrimPrefix(pattern, "**/")
		if matched, _ := path.Match(pattern, base); matched {
			ignored = !negated
		}
	}
	return ignored
}

func (w *walker) typeWanted(base string) bool {
	matches := func(types []string) bool {
		for _, name := range types {
			for _, pattern := range fileTypes[name] {
				if matched, _ := path.Match(pattern, base); matched {
					return true
				}
			}
		}
		return false
	}
	return (len(w.types) == 0 || matches(w.types)) && !matches(w.notTypes)
}

func (w *walker) excludedByGlob(name, base string, isDir bool) bool {
	excluded, positive := false, false
	for _, glob := range w.globs {
		negated := strings.HasPrefix(glob, "!")
		pattern := strings.TrimSuffix(strings.TrimPrefix(glob, "!"), "/")
		positive = positive || !negated
		matched := globPath(pattern, name, base)
		if matched {
			excluded = negated
			if !negated {
				return false
			}
		}
	}
	return excluded || positive && !isDir
}

func globPath(pattern, name, base string) bool {
	for _, one := range braceGlobs(pattern) {
		one = strings.TrimPrefix(one, "**/")
		if matched, _ := path.Match(one, base); matched {
			return true
		}
		if matched, _ := path.Match(one, name); matched {
			return true
		}
		if prefix, ok := strings.CutSuffix(one, "/**"); ok && (strings.HasPrefix(name, prefix+"/") || base == prefix) {
			return true
		}
	}
	return false
}

// braceGlobs expands one level of {a,b}.
func braceGlobs(pattern string) []string {
	open := strings.IndexByte(pattern, '{')
	end := strings.IndexByte(pattern, '}')
	if open < 0 || end < open {
		return []string{pattern}
	}
	var out []string
	for _, choice := range strings.Split(pattern[open+1:end], ",") {
		out = append(out, pattern[:open]+choice+pattern[end+1:])
	}
	return out
}
