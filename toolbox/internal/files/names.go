package files

import (
	"io/fs"
	"os"
	"path"
	"strings"

	"warmcell/toolbox/internal/core"
)

func init() {
	core.Register(
		&core.Command{Name: "basename", Summary: "Strip directory and suffix from names.", Usage: "basename [-az] [-s SUFFIX] name...", Run: basename},
		&core.Command{Name: "dirname", Summary: "Strip the last component from names.", Usage: "dirname [-z] name...", Run: dirname},
		&core.Command{Name: "readlink", Summary: "Print the target of a link or a canonical name.", Usage: "readlink [-efmnqsvz] file...", Run: readlink},
		&core.Command{Name: "realpath", Summary: "Print the resolved absolute name.", Usage: "realpath [-emqsz] [--relative-to=DIR] file...", Run: realpath},
		&core.Command{Name: "mktemp", Summary: "Create a temporary file or directory.", Usage: "mktemp [-dqtu] [-p DIR] [--suffix=TEXT] [TEMPLATE]", Run: mktemp},
		&core.Command{Name: "pathchk", Summary: "Check whether names are valid.", Usage: "pathchk name...", Run: func(*core.Ctx) int { return 0 }},
	)
}

func baseOf(name string) string {
	trimmed := strings.TrimRight(name, "/")
	if trimmed == "" {
		if name == "" {
			return ""
		}
		return "/"
	}
	return trimmed[strings.LastIndexByte(trimmed, '/')+1:]
}

func basename(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "as:z", Long: "multiple/a suffix=/s zero/z", Stop: true}.Parse(c)
	if !ok {
		return 1
	}
	multiple, suffix, end := false, "", "\n"
	for _, option := range options {
		switch option.Name {
		case "a":
			multiple = true
		case "s":
			multiple, suffix = true, option.Value
		case "z":
			end = "\x00"
		}
	}
	if len(names) == 0 {
		return c.Usage(1, "missing operand")
	}
	if !multiple {
		if len(names) > 2 {
			return c.Usage(1, "extra operand ‘%s’", names[2])
		}
		if len(names) == 2 {
			suffix = names[1]
		}
		names = names[:1]
	}
	for _, name := range names {
		base := baseOf(name)
		if base != suffix {
			base = strings.TrimSuffix(base, suffix)
		}
		c.Out.WriteString(base + end)
	}
	return 0
}

func dirname(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "z", Long: "zero/z"}.Parse(c)
	if !ok {
		return 1
	}
	end := "\n"
	if len(options) > 0 {
		end = "\x00"
	}
	if len(names) == 0 {
		return c.Usage(1, "missing operand")
	}
	for _, name := range names {
		trimmed := strings.TrimRight(name, "/")
		at := strings.LastIndexByte(trimmed, '/')
		switch {
		case trimmed == "" && name != "":
			trimmed = "/"
		case at < 0:
			trimmed = "."
		default:
			if trimmed = strings.TrimRight(trimmed[:at], "/"); trimmed == "" {
				trimmed = "/"
			}
		}
		c.Out.WriteString(trimmed + end)
	}
	return 0
}

// canonical resolves links; missing names how much may be absent: "e" nothing, "f" the last part, "m" anything.
func canonical(full, missing string) (string, error) {
	resolved, err := core.RealPath(full)
	if err == nil {
		return resolved, nil
	}
	switch missing {
	case "m":
		return path.Clean(full), nil
	case "f":
		parent, parentErr := core.RealPath(path.Dir(path.Clean(full)))
		if parentErr == nil {
			return path.Join(parent, path.Base(full)), nil
		}
	}
	return "", err
}

func readlink(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "efmnqsvz", Long: "canonicalize/f canonicalize-existing/e canonicalize-missing/m no-newline/n quiet/q silent/s verbose/v zero/z"}.Parse(c)
	if !ok {
		return 1
	}
	mode, end, verbose := "", "\n", false
	for _, option := range options {
		switch option.Name {
		case "e", "f", "m":
			mode = option.Name
		case "n":
			end = ""
		case "z":
			end = "\x00"
		case "v":
			verbose = true
		}
	}
	if len(names) == 0 {
		return c.Usage(1, "missing operand")
	}
	status := 0
	for _, name := range names {
		target, err := os.Readlink(c.Path(name))
		if mode != "" {
			target, err = canonical(c.Path(name), mode)
		}
		if err != nil {
			if verbose {
				c.Errorf("%s: %s", name, core.Reason(err))
			}
			status = 1
			continue
		}
		c.Out.WriteString(target + end)
	}
	return status
}

func realpath(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "emqszLP", Long: "canonicalize-existing/e canonicalize-missing/m quiet/q strip/s no-symlinks/s zero/z relative-to= relative-base= logical/L physical/P"}.Parse(c)
	if !ok {
		return 1
	}
	mode, end, quiet, lexical, relative := "f", "\n", false, false, ""
	for _, option := range options {
		switch option.Name {
		case "e", "m":
			mode = option.Name
		case "q":
			quiet = true
		case "s":
			lexical = true
		case "z":
			end = "\x00"
		case "relative-to":
			relative = option.Value
		}
	}
	if len(names) == 0 {
		return c.Usage(1, "missing operand")
	}
	status := 0
	for _, name := range names {
		target, err := path.Clean(c.Path(name)), error(nil)
		if !lexical {
			target, err = canonical(c.Path(name), mode)
		}
		if err != nil {
			if !quiet {
				c.Errorf("%s: %s", name, core.Reason(err))
			}
			status = 1
			continue
		}
		if relative != "" {
			base, err := canonical(c.Path(relative), "m")
			if err == nil {
				target = Relative(base, target)
			}
		}
		c.Out.WriteString(target + end)
	}
	return status
}

func mktemp(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "dqtup:V", Long: "directory/d quiet/q dry-run/u tmpdir?/p suffix="}.Parse(c)
	if !ok {
		return 1
	}
	directory, quiet, dry, dir, suffix, inTemp := false, false, false, "", "", false
	for _, option := range options {
		switch option.Name {
		case "d":
			directory = true
		case "q":
			quiet = true
		case "u":
			dry = true
		case "t":
			inTemp = true
		case "p":
			dir, inTemp = option.Value, true
		case "suffix":
			suffix = option.Value
		}
	}
	template := "tmp.XXXXXXXXXX"
	if len(names) == 0 {
		inTemp = true
	} else {
		template = names[0]
	}
	template += suffix
	if inTemp && dir == "" {
		if dir = c.Getenv("TMPDIR"); dir == "" {
			dir = "/tmp"
		}
	}
	end := strings.LastIndex(template, "X")
	start := end
	for start > 0 && template[start-1] == 'X' {
		start--
	}
	if end < 0 || end-start+1 < 3 {
		return c.Fail(1, "too few X's in template ‘%s’", template)
	}
	for attempt := 0; attempt < 100; attempt++ {
		name := template[:start] + randomName(end-start+1) + template[end+1:]
		if inTemp {
			name = strings.TrimRight(dir, "/") + "/" + name
		}
		full := c.Path(name)
		if _, err := core.Lstat(full); err == nil {
			continue
		}
		var err error
		if !dry {
			err = create(c, full, directory)
		}
		if err != nil {
			if !quiet {
				what := "file"
				if directory {
					what = "directory"
				}
				c.Errorf("failed to create %s via template ‘%s’: %s", what, strings.Replace(name, name[len(name)-(len(template)-start):], template[start:], 1), core.Reason(err))
			}
			return 1
		}
		c.Out.WriteString(name + "\n")
		return 0
	}
	return 1
}

func create(c *core.Ctx, full string, directory bool) error {
	if directory {
		return core.Mkdir(full, 0o700)
	}
	file, err := c.OpenFile(full, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	core.SetMode(full, 0o600)
	return file.Close()
}

func randomName(n int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	raw := make([]byte, n)
	core.RandomBytes(raw)
	for i := range raw {
		raw[i] = alphabet[int(raw[i])%len(alphabet)]
	}
	return string(raw)
}

func letters(mode fs.FileMode) string {
	out := []byte("rwxrwxrwx")
	for i := range out {
		if mode&(1<<(8-i)) == 0 {
			out[i] = '-'
		}
	}
	return string(out)
}
