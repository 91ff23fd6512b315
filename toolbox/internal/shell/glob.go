package shell

import (
	"path"
	"sort"
	"strings"

	"warmcell/toolbox/internal/core"
)

// globField turns one expanded field into file names, or into its own text when nothing matches.
func (s *Shell) globField(out []string, one field) []string {
	if s.opts.noglob || !hasUnquotedGlob(one) {
		return append(out, one.String())
	}
	source := one.pattern()
	if !hasGlob(source) {
		return append(out, one.String())
	}
	names := s.globFiles(source)
	if len(names) > 0 {
		return append(out, names...)
	}
	if s.shopt["failglob"] {
		s.fail(false, "no match: %s", one.String())
	}
	if s.shopt["nullglob"] {
		return out
	}
	return append(out, one.String())
}

func hasUnquotedGlob(one field) bool {
	for _, piece := range one {
		if !piece.quoted && strings.ContainsAny(piece.text, "*?[(") {
			return true
		}
	}
	return false
}

// globFiles lists the names that match, in byte order.
func (s *Shell) globFiles(source string) []string {
	base, prefix := s.dir, ""
	if strings.HasPrefix(source, "/") {
		base, prefix = "/", "/"
		source = strings.TrimLeft(source, "/")
	}
	names := s.globComponents(base, prefix, strings.Split(source, "/"))
	sort.Strings(names)
	return names
}

func (s *Shell) globComponents(dir, prefix string, components []string) []string {
	for len(components) > 1 && components[0] == "" {
		components = components[1:]
	}
	head, rest := components[0], components[1:]
	if head == "**" && s.shopt["globstar"] {
		return s.globStar(dir, prefix, rest)
	}
	if !hasGlob(head) {
		name, _ := plainGlob(head)
		return s.globFixed(dir, prefix, name, rest)
	}
	entries, err := core.ReadDir(dir)
	if err != nil {
		return nil
	}
	matcher := compilePattern(head, true, s.shopt["nocaseglob"])
	var out []string
	names := make([]string, 0, len(entries)+2)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if strings.HasPrefix(head, ".") && !s.shopt["globskipdots"] {
		names = append(names, ".", "..")
	}
	for _, name := range names {
		if !s.visible(name, head) || !matcher.matches(name) {
			continue
		}
		if len(rest) == 0 {
			out = append(out, prefix+name)
			continue
		}
		full := path.Join(dir, name)
		if info, err := core.Stat(full); err == nil && info.IsDir() {
			if len(rest) == 1 && rest[0] == "" {
				out = append(out, prefix+name+"/")
			} else {
				out = append(out, s.globComponents(full, prefix+name+"/", rest)...)
			}
		}
	}
	return out
}

// visible hides dot files unless the pattern names the dot or dotglob is on.
func (s *Shell) visible(name, head string) bool {
	if !strings.HasPrefix(name, ".") || strings.HasPrefix(head, ".") || strings.HasPrefix(head, `\.`) {
		return true
	}
	return s.shopt["dotglob"] && name != "." && name != ".."
}

func (s *Shell) globFixed(dir, prefix, name string, rest []string) []string {
	full := path.Join(dir, name)
	info, err := core.Lstat(full)
	if err != nil {
		return nil
	}
	if len(rest) == 0 {
		return []string{prefix + name}
	}
	if !info.IsDir() {
		if info, err = core.Stat(full); err != nil || !info.IsDir() {
			return nil
		}
	}
	if len(rest) == 1 && rest[0] == "" {
		return []string{prefix + name + "/"}
	}
	return s.globComponents(full, prefix+name+"/", rest)
}

func (s *Shell) globStar(dir, prefix string, rest []string) []string {
	for len(rest) > 0 && rest[0] == "**" {
		rest = rest[1:]
	}
	var out []string
	if len(rest) == 0 {
		if prefix != "" {
			out = append(out, prefix)
		}
	} else if len(rest) == 1 && rest[0] == "" {
		if prefix != "" {
			out = append(out, prefix)
		}
	} else {
		out = append(out, s.globComponents(dir, prefix, rest)...)
	}
	return s.globTree(out, dir, prefix, rest)
}

func (s *Shell) globTree(out []string, dir, prefix string, rest []string) []string {
	entries, err := core.ReadDir(dir)
	if err != nil {
		return out
	}
	for _, entry := range entries {
		name := entry.Name()
		if !s.visible(name, "*") {
			continue
		}
		full := path.Join(dir, name)
		switch {
		case len(rest) == 0:
			out = append(out, prefix+name)
		case entry.IsDir() && len(rest) == 1 && rest[0] == "":
			out = append(out, prefix+name+"/")
		case entry.IsDir():
			out = append(out, s.globComponents(full, prefix+name+"/", rest)...)
		}
		if entry.IsDir() {
			out = s.globTree(out, full, prefix+name+"/", rest)
		}
	}
	return out
}
