package files

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"warmcell/toolbox/internal/clock"
	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/strftime"
)

func init() {
	core.Register(
		&core.Command{Name: "touch", Summary: "Change file timestamps or create files.", Usage: "touch [-acmh] [-d DATE] [-t STAMP] [-r FILE] file...", Run: touch},
		&core.Command{Name: "truncate", Summary: "Shrink or extend files to a size.", Usage: "truncate [-c] [-s SIZE] [-r FILE] file...", Run: truncate},
		&core.Command{Name: "chmod", Summary: "Change file mode bits (kept for the current run only).", Usage: "chmod [-Rvcf] MODE file...", Run: chmod},
		&core.Command{Name: "chown", Summary: "Change file owner (accepted, without effect).", Usage: "chown [-R] OWNER[:GROUP] file...", Run: chown},
		&core.Command{Name: "chgrp", Summary: "Change file group (accepted, without effect).", Usage: "chgrp [-R] GROUP file...", Run: chown},
	)
}

func touch(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "acmhfd:t:r:", Long: "no-create/c date=/d reference=/r time= no-dereference/h"}.Parse(c)
	if !ok {
		return 1
	}
	when := time.Now()
	zone := strftime.Zone(c.Getenv("TZ"))
	noCreate, accessOnly, modifyOnly := false, false, false
	for _, option := range options {
		switch option.Name {
		case "a":
			accessOnly = true
		case "m":
			modifyOnly = true
		case "c":
			noCreate = true
		case "d":
			if when, ok = clock.Parse(option.Value, time.Now().In(zone)); !ok {
				return c.Fail(1, "invalid date format ‘%s’", option.Value)
			}
		case "t":
			if when, ok = stamp(option.Value, zone); !ok {
				return c.Fail(1, "invalid date format ‘%s’", option.Value)
			}
		case "r":
			info, err := core.Stat(c.Path(option.Value))
			if err != nil {
				return c.Fail(1, "failed to get attributes of '%s': %s", option.Value, core.Reason(err))
			}
			when = info.ModTime()
		}
	}
	if len(names) == 0 {
		return c.Usage(1, "missing file operand")
	}
	status := 0
	for _, name := range names {
		full := c.Path(name)
		info, err := core.Stat(full)
		if err != nil {
			if noCreate {
				continue
			}
			file, err := c.OpenFile(name, os.O_WRONLY|os.O_CREATE)
			if err != nil {
				c.Errorf("cannot touch '%s': %s", name, core.Reason(err))
				status = 1
				continue
			}
			file.Close()
		}
		access, modified := when, when
		if info != nil && accessOnly && !modifyOnly {
			modified = info.ModTime()
		}
		if err := setTimes(full, access, modified); err != nil {
			c.Errorf("setting times of '%s': %s", name, core.Reason(err))
			status = 1
		}
	}
	return status
}

// stamp reads [[CC]YY]MMDDhhmm[.ss].
func stamp(text string, zone *time.Location) (time.Time, bool) {
	digits, seconds, _ := strings.Cut(text, ".")
	if seconds == "" {
		seconds = "00"
	}
	switch len(digits) {
	case 8:
		digits = strconv.Itoa(time.Now().Year()) + digits
	case 10:
		century := "20"
		if digits[0] >= '7' {
			century = "19"
		}
		digits = century + digits
	}
	when, err := time.ParseInLocation("20060102150405", digits+seconds, zone)
	return when, err == nil
}

func truncate(c *core.Ctx) int {
	options, names, ok := core.Options{Short: "cs:r:o", Long: "no-create/c size=/s reference=/r io-blocks/o"}.Parse(c)
	if !ok {
		return 1
	}
	size, reference, noCreate := "", "", false
	for _, option := range options {
		switch option.Name {
		case "s":
			size = option.Value
		case "r":
			reference = option.Value
		case "c":
			noCreate = true
		}
	}
	if size == "" && reference == "" {
		return c.Usage(1, "you must specify either ‘--size’ or ‘--reference’")
	}
	if len(names) == 0 {
		return c.Usage(1, "missing file operand")
	}
	status := 0
	for _, name := range names {
		info, err := core.Stat(c.Path(name))
		current := int64(0)
		if err == nil {
			current = info.Size()
		} else if noCreate {
			continue
		}
		target, problem := targetSize(c, size, reference, current)
		if problem != "" {
			return c.Fail(1, "%s", problem)
		}
		file, err := c.OpenFile(name, os.O_WRONLY|os.O_CREATE)
		if err == nil {
			if real, isFile := file.(*os.File); isFile {
				err = real.Truncate(target)
			}
			file.Close()
		}
		if err != nil {
			c.Errorf("cannot open '%s' for writing: %s", name, core.Reason(err))
			status = 1
		}
	}
	return status
}

func targetSize(c *core.Ctx, size, reference string, current int64) (int64, string) {
	base := current
	if reference != "" {
		info, err := core.Stat(c.Path(reference))
		if err != nil {
			return 0, "cannot stat '" + reference + "': " + core.Reason(err)
		}
		base = info.Size()
		if size == "" {
			return base, ""
		}
	}
	operator := byte(0)
	text := strings.TrimSpace(size)
	if text != "" && strings.IndexByte("+-<>/%", text[0]) >= 0 {
		operator, text = text[0], text[1:]
	}
	number, ok := core.ParseSize(text)
	if !ok {
		return 0, "Invalid number: ‘" + size + "’"
	}
	switch operator {
	case '+':
		return base + number, ""
	case '-':
		return max(0, base-number), ""
	case '<':
		return min(base, number), ""
	case '>':
		return max(base, number), ""
	case '/':
		return base / number * number, ""
	case '%':
		return (base + number - 1) / number * number, ""
	}
	return number, ""
}

func chmod(c *core.Ctx) int {
	recursive, verbose, quiet := false, false, false
	var operands []string
	for i, arg := range c.Args {
		switch arg {
		case "-R", "--recursive":
			recursive = true
		case "-v", "--verbose", "-c", "--changes":
			verbose = true
		case "-f", "--silent", "--quiet":
			quiet = true
		case "--":
			operands = append(operands, c.Args[i+1:]...)
		default:
			if strings.HasPrefix(arg, "--reference=") {
				info, err := core.Stat(c.Path(arg[12:]))
				if err != nil {
					return c.Fail(1, "failed to get attributes of '%s': %s", arg[12:], core.Reason(err))
				}
				operands = append([]string{strconv.FormatUint(uint64(info.Mode().Perm()), 8)}, operands...)
				continue
			}
			operands = append(operands, arg)
		}
		if arg == "--" {
			break
		}
	}
	if len(operands) < 2 {
		if len(operands) == 0 {
			return c.Usage(1, "missing operand")
		}
		return c.Usage(1, "missing operand after ‘%s’", operands[0])
	}
	mode := operands[0]
	if _, ok := core.ParseMode(mode, 0, false); !ok {
		return c.Usage(1, "invalid mode: ‘%s’", mode)
	}
	status := 0
	var change func(name string)
	change = func(name string) {
		full := strings.TrimRight(c.Path(name), "/")
		info, err := core.Stat(full)
		if err != nil {
			if !quiet {
				c.Errorf("cannot access '%s': %s", name, core.Reason(err))
			}
			status = 1
			return
		}
		next, _ := core.ParseMode(mode, core.Perm(full, info), info.IsDir())
		if real, err := core.RealPath(full); err == nil {
			core.SetMode(real, next)
		}
		if verbose {
			c.Out.WriteString("mode of '" + name + "' changed to " + octal(next) + " (" + letters(next) + ")\n")
		}
		if recursive && info.IsDir() {
			entries, _ := core.ReadDir(full)
			for _, entry := range entries {
				if entry.Type()&fs.ModeSymlink == 0 {
					change(strings.TrimRight(name, "/") + "/" + entry.Name())
				}
			}
		}
	}
	for _, name := range operands[1:] {
		change(name)
	}
	return status
}

func octal(mode fs.FileMode) string {
	text := strconv.FormatUint(uint64(mode&0o7777), 8)
	for len(text) < 4 {
		text = "0" + text
	}
	return text
}

func chown(c *core.Ctx) int {
	_, operands, ok := core.Options{Short: "Rvcfh", Long: "recursive/R verbose/v changes/c silent/f no-dereference/h reference="}.Parse(c)
	if !ok {
		return 1
	}
	if len(operands) == 0 {
		return c.Usage(1, "missing operand")
	}
	if len(operands) < 2 {
		return c.Usage(1, "missing operand after ‘%s’", operands[0])
	}
	status := 0
	for _, name := range operands[1:] {
		if _, err := core.Lstat(c.Path(name)); err != nil {
			c.Errorf("cannot access '%s': %s", name, core.Reason(err))
			status = 1
		}
	}
	return status
}
