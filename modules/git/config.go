package main

import (
	"os"
	"path/filepath"
	"strings"
)

// configFile is one file, kept line by line so that an edit leaves everything else as it was.
type configFile struct {
	path  string
	lines []string
}

type configEntry struct {
	key, value string // key: section.sub.name, section and name in lower case
	line       int
}

// config is the configuration of a command: no system-wide file, then global, local and -c.
type config struct {
	global, local *configFile
}

var overrides []configEntry

func setOverride(text string) {
	key, value, found := strings.Cut(text, "=")
	if !found {
		value = "true"
	}
	overrides = append(overrides, configEntry{key: normalizeKey(key), value: value})
}

func globalConfigPath() string {
	if p, found := os.LookupEnv("GIT_CONFIG_GLOBAL"); found {
		return p
	}
	return filepath.Join(os.Getenv("HOME"), ".gitconfig")
}

func readConfigFile(path string) *configFile {
	file := &configFile{path: path}
	data, err := os.ReadFile(path)
	if err != nil || len(data) == 0 {
		return file
	}
	file.lines = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	return file
}

func (f *configFile) write() {
	text := strings.Join(f.lines, "\n")
	if text != "" {
		text += "\n"
	}
	if err := os.WriteFile(f.path, []byte(text), 0o644); err != nil {
		fail("could not lock config file %s: %v", f.path, err)
	}
}

func normalizeKey(key string) string {
	first, last := strings.Index(key, "."), strings.LastIndex(key, ".")
	if first == -1 {
		return strings.ToLower(key)
	}
	return strings.ToLower(key[:first]) + key[first:last] + strings.ToLower(key[last:])
}

// sectionHeader parses `[section "sub"]` into "section.sub"; ok is false for other lines.
func sectionHeader(line string) (string, bool) {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "[") {
		return "", false
	}
	end := strings.LastIndex(line, "]")
	if end == -1 {
		return "", false
	}
	inner := line[1:end]
	name, sub, hasSub := strings.Cut(inner, "\"")
	if !hasSub {
		return strings.ToLower(strings.TrimSpace(inner)), true
	}
	sub = strings.TrimSuffix(sub, "\"")
	sub = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(sub)
	return strings.ToLower(strings.TrimSpace(name)) + "." + sub, true
}

func (f *configFile) entries() []configEntry {
	var found []configEntry
	section := ""
	for i := 0; i < len(f.lines); i++ {
		line := strings.TrimSpace(f.lines[i])
		if header, isHeader := sectionHeader(line); isHeader {
			section = header
			continue
		}
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		start := i
		for strings.HasSuffix(line, "\\") && i+1 < len(f.lines) {
			i++
			line = line[:len(line)-1] + strings.TrimSpace(f.lines[i])
		}
		name, raw, hasValue := strings.Cut(line, "=")
		value := "true"
		if hasValue {
			value = parseValue(raw)
		}
		found = append(found, configEntry{section + "." + strings.ToLower(strings.TrimSpace(name)), value, start})
	}
	return found
}

func parseValue(raw string) string {
	var value, space strings.Builder
	isQuoted := false
	raw = strings.TrimLeft(raw, " \t")
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			isQuoted = !isQuoted
		case c == '\\' && i+1 < len(raw):
			i++
			value.WriteString(space.String())
			space.Reset()
			switch raw[i] {
			case 'n':
				value.WriteByte('\n')
			case 't':
				value.WriteByte('\t')
			default:
				value.WriteByte(raw[i])
			}
		case (c == '#' || c == ';') && !isQuoted:
			return value.String()
		case (c == ' ' || c == '\t') && !isQuoted:
			space.WriteByte(c)
		default:
			value.WriteString(space.String())
			space.Reset()
			value.WriteByte(c)
		}
	}
	return value.String()
}

func encodeValue(value string) string {
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(value)
	if value != strings.TrimSpace(value) || strings.ContainsAny(value, "#;") {
		return `"` + escaped + `"`
	}
	return escaped
}

func (f *configFile) set(key, value string) {
	key = normalizeKey(key)
	name := key[strings.LastIndex(key, ".")+1:]
	line := "\t" + name + " = " + encodeValue(value)
	entries := f.entries()
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].key == key {
			f.lines[entries[i].line] = line
			return
		}
	}
	f.insert(key, line)
}

// insert puts the line at the end of its section, which it adds when there is none.
func (f *configFile) insert(key, line string) {
	section := key[:strings.LastIndex(key, ".")]
	at, current := -1, ""
	for i, text := range f.lines {
		if header, isHeader := sectionHeader(text); isHeader {
			current = header
		}
		if current == section {
			at = i + 1
		}
	}
	if at == -1 {
		main, sub, hasSub := strings.Cut(section, ".")
		header := "[" + main + "]"
		if hasSub {
			header = "[" + main + " \"" + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(sub) + "\"]"
		}
		f.lines = append(f.lines, header, line)
		return
	}
	f.lines = append(f.lines[:at], append([]string{line}, f.lines[at:]...)...)
}

func (f *configFile) unset(key string) bool {
	key = normalizeKey(key)
	isFound := false
	entries := f.entries()
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].key == key {
			f.lines = append(f.lines[:entries[i].line], f.lines[entries[i].line+1:]...)
			isFound = true
		}
	}
	f.dropEmptySections()
	return isFound
}

func (f *configFile) dropEmptySections() {
	var kept []string
	for i, line := range f.lines {
		_, isHeader := sectionHeader(line)
		if isHeader {
			isLast := i+1 == len(f.lines)
			if !isLast {
				_, isLast = sectionHeader(f.lines[i+1])
			}
			if isLast {
				continue
			}
		}
		kept = append(kept, line)
	}
	f.lines = kept
}

func (f *configFile) removeSection(section string) bool {
	var kept []string
	isInside, isFound := false, false
	for _, line := range f.lines {
		if header, isHeader := sectionHeader(line); isHeader {
			isInside = header == section
			isFound = isFound || isInside
		}
		if !isInside {
			kept = append(kept, line)
		}
	}
	f.lines = kept
	return isFound
}

func (c *config) all() []configEntry {
	var found []configEntry
	if c.global != nil {
		found = append(found, c.global.entries()...)
	}
	if c.local != nil {
		found = append(found, c.local.entries()...)
	}
	return append(found, overrides...)
}

func (c *config) get(key string) (string, bool) {
	key = normalizeKey(key)
	entries := c.all()
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].key == key {
			return entries[i].value, true
		}
	}
	return "", false
}

func (c *config) isTrue(key string, fallback bool) bool {
	value, found := c.get(key)
	if !found {
		return fallback
	}
	switch strings.ToLower(value) {
	case "true", "yes", "on", "1":
		return true
	}
	return false
}

func cmdConfig(args []string) {
	var scope, action, kind string
	var rest []string
	for _, arg := range args {
		switch arg {
		case "--global", "--local", "--system", "--worktree":
			scope = arg
		case "--get", "--get-all", "--unset", "--unset-all", "--list", "-l", "--add", "--remove-section", "--get-regexp", "--replace-all":
			action = arg
		case "--bool", "--int", "--path", "--type=bool", "--type=int", "-z", "--null", "--show-origin", "--name-only", "--includes", "--type=path":
			kind = arg
		default:
			if strings.HasPrefix(arg, "-") && len(rest) == 0 {
				usage("error: unknown option `%s'", strings.TrimLeft(arg, "-"))
			}
			rest = append(rest, arg)
		}
	}
	if len(rest) > 0 && action == "" {
		switch rest[0] { // the newer spelling: git config list | get | set | unset
		case "list", "get", "set", "unset":
			if rest[0] != "set" {
				action = "--" + rest[0]
			}
			rest = rest[1:]
		}
	}
	c := &config{global: readConfigFile(globalConfigPath())}
	var local *configFile
	if r := findRepo(); r != nil {
		local = r.config.local
	}
	switch {
	case scope == "--local" && local == nil:
		fatal("--local can only be used inside a git repository")
	case scope == "--global":
	case scope == "--local":
		c = &config{local: local}
	case scope == "--system":
		c = &config{}
	default:
		c.local = local
	}
	target := local
	if scope == "--global" {
		target = c.global
	}
	editConfig(c, target, action, kind, rest)
}

func editConfig(c *config, target *configFile, action, kind string, rest []string) {
	needTarget := func() {
		if target == nil {
			fatal("not in a git directory")
		}
	}
	checkKey := func() string {
		if len(rest) == 0 {
			usage("error: wrong number of arguments")
		}
		if !strings.Contains(rest[0], ".") {
			fail("key does not contain a section: %s", rest[0])
		}
		return normalizeKey(rest[0])
	}
	switch {
	case action == "--list" || action == "-l":
		for _, e := range c.all() {
			if kind == "--name-only" {
				say("%s\n", e.key)
			} else {
				say("%s=%s\n", e.key, e.value)
			}
		}
	case action == "--get-regexp":
		isFound := false
		for _, e := range c.all() {
			if matchRegexp(rest[0], e.key) {
				say("%s %s\n", e.key, e.value)
				isFound = true
			}
		}
		if !isFound {
			exit(exitFailure)
		}
	case action == "--get-all":
		key, isFound := checkKey(), false
		for _, e := range c.all() {
			if e.key == key {
				say("%s\n", e.value)
				isFound = true
			}
		}
		if !isFound {
			exit(exitFailure)
		}
	case action == "--unset" || action == "--unset-all":
		needTarget()
		if !target.unset(checkKey()) {
			exit(5)
		}
		target.write()
	case action == "--remove-section":
		needTarget()
		if !target.removeSection(rest[0]) {
			fatal("no such section: %s", rest[0])
		}
		target.write()
	case action == "--add":
		needTarget()
		key := checkKey()
		target.insert(key, "\t"+key[strings.LastIndex(key, ".")+1:]+" = "+encodeValue(rest[1]))
		target.write()
	case action == "--get" || len(rest) == 1:
		value, found := c.get(checkKey())
		if !found {
			exit(exitFailure)
		}
		if strings.HasSuffix(kind, "bool") {
			value = map[bool]string{true: "true", false: "false"}[c.isTrue(rest[0], false)]
		}
		say("%s\n", value)
	case len(rest) >= 2:
		needTarget()
		checkKey()
		target.set(rest[0], rest[1])
		target.write()
	default:
		usage("usage: git config [<options>]")
	}
}
