// Package search holds the commands that look for things: grep, rg, find, xargs.
package search

import (
	"io"
	"strconv"
	"strings"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/posix"
)

func init() {
	const usage = " [-EFGPivwxcnlLoqsrRhHabzZuT] [-e PATTERN]... [-f FILE] [-m N] [-A N] [-B N] [-C N] [--include=GLOB] [--exclude=GLOB] [--exclude-dir=GLOB] [--color] PATTERN [file...]"
	for _, name := range []string{"grep", "egrep", "fgrep"} {
		core.Register(&core.Command{Name: name, Summary: "Print lines that match patterns.", Usage: name + usage, Run: grep})
	}
}

// options of grep and rg after parsing.
type grepper struct {
	c                                                 *core.Ctx
	matchers                                          []*posix.Regex
	invert, count, list, listOther, only, quiet       bool
	lineNumbers, byteOffsets, noMessages, names, text bool
	noBinary, initialTab, nulNames, color, column     bool
	countMatches, trim, heading, replaceSet           bool
	before, after, limit                              int
	delimiter                                         byte
	label, replace                                    string
	groupSeparator                                    string
	include, exclude, excludeDirs                     []string
	recursive, followLinks                            bool
	matchedAny, listedAny, failed                     bool
	isRipgrep, printedAny, passesAll                  bool
	emptyPattern                                      bool
	json                                              *jsonReport
}

func newGrepper(c *core.Ctx) *grepper {
	return &grepper{c: c, limit: -1, delimiter: '\n', label: "(standard input)", groupSeparator: "--"}
}

const grepShort = "EFGPivwxcnlLoqsrRhHabzZTe:f:m:A:B:C:d:D:UuyI"
const grepLong = "extended-regexp/E fixed-strings/F basic-regexp/G perl-regexp/P ignore-case/i no-ignore-case/I- invert-match/v word-regexp/w line-regexp/x count/c line-number/n files-with-matches/l files-without-match/L only-matching/o quiet/q silent/q no-messages/s recursive/r dereference-recursive/R no-filename/h with-filename/H text/a byte-offset/b null-data/z null/Z initial-tab/T regexp=/e file=/f max-count=/m after-context=/A before-context=/B context=/C color? colour?/color include= exclude= exclude-dir= exclude-from= label= line-buffered binary-files= directories=/d devices=/D group-separator= no-group-separator binary/U"

func grep(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: grepShort, Long: grepLong, Digit: true}.Parse(c)
	if !ok {
		return 2
	}
	g := newGrepper(c)
	dialect := posix.Options{Extended: c.Name == "egrep", Fixed: c.Name == "fgrep"}
	var patterns []string
	havePatterns, showNames := false, 0
	for _, option := range options {
		switch option.Name {
		case "E":
			dialect.Extended, dialect.Fixed, dialect.Perl = true, false, false
		case "F":
			dialect.Extended, dialect.Fixed, dialect.Perl = false, true, false
		case "G":
			dialect.Extended, dialect.Fixed, dialect.Perl = false, false, false
		case "P":
			dialect.Extended, dialect.Fixed, dialect.Perl = false, false, true
		case "i", "y":
			dialect.IgnoreCase = true
		case "I-":
			dialect.IgnoreCase = false
		case "w":
			dialect.WholeWord = true
		case "x":
			dialect.WholeLine = true
		case "e":
			havePatterns = true
			patterns = append(patterns, strings.Split(option.Value, "\n")...)
		case "f":
			havePatterns = true
			lines, err := patternFile(c, option.Value)
			if err != nil {
				return c.Fail(2, "%s: %s", option.Value, core.Reason(err))
			}
			patterns = append(patterns, lines...)
		case "h":
			showNames = -1
		case "H":
			showNames = 1
		default:
			if problem := g.set(option); problem != "" {
				return c.Fail(2, "%s", problem)
			}
		}
	}
	if !havePatterns {
		if len(operands) == 0 {
			c.Out.Flush()
			io.WriteString(c.Stderr, "Usage: "+c.Name+" [OPTION]... PATTERNS [FILE]...\nTry '"+c.Name+" --help' for more information.\n")
			return 2
		}
		patterns, operands = strings.Split(operands[0], "\n"), operands[1:]
	}
	if problem := g.compile(patterns, dialect); problem != "" {
		return c.Fail(2, "%s", problem)
	}
	if len(patterns) == 0 && !g.invert && !g.listOther {
		return 1 // nothing can match: GNU's does not even open the files
	}
	if len(operands) == 0 {
		operands = []string{"-"}
		if g.recursive {
			operands = []string{"."}
			g.names = true
			return g.run([]string{""}, showNames)
		}
	}
	g.names = len(operands) > 1 || g.recursive && g.isDirectory(operands[0])
	return g.run(operands, showNames)
}

func (g *grepper) isDirectory(name string) bool {
	info, err := core.Stat(g.c.Path(name))
	return err == nil && info.IsDir()
}

func (g *grepper) run(operands []string, showNames int) int {
	if showNames != 0 {
		g.names = showNames > 0
	}
	for _, name := range operands {
		g.operand(name)
		if g.quiet && g.matchedAny {
			return 0
		}
	}
	if g.failed {
		if g.matchedAny && g.quiet {
			return 0
		}
		return 2
	}
	if g.matchedAny {
		return 0
	}
	return 1
}

func patternFile(c *core.Ctx, name string) ([]string, error) {
	reader, err := c.Open(name)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	data, err := io.ReadAll(reader)
	if err != nil || len(data) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n"), nil
}

func (g *grepper) set(option core.Option) string {
	number, err := strconv.Atoi(option.Value)
	switch option.Name {
	case "A", "B", "C", "#":
		if err != nil || number < 0 {
			return option.Value + ": invalid context length argument"
		}
		if option.Name != "B" {
			g.after = number
		}
		if option.Name != "A" {
			g.before = number
		}
	case "m":
		if err != nil {
			return "invalid max count"
		}
		g.limit = number
	case "v":
		g.invert = true
	case "c":
		g.count = true
	case "n":
		g.lineNumbers = true
	case "l":
		g.list, g.listOther = true, false
	case "L":
		g.listOther, g.list = true, false
	case "o":
		g.only = true
	case "q":
		g.quiet = true
	case "s":
		g.noMessages = true
	case "r":
		g.recursive = true
	case "R":
		g.recursive, g.followLinks = true, true
	case "d":
		g.recursive = option.Value == "recurse"
	case "a":
		g.text = true
	case "I":
		g.noBinary = true
	case "b":
		g.byteOffsets = true
	case "z":
		g.delimiter = 0
	case "Z":
		g.nulNames = true
	case "T":
		g.initialTab = true
	case "color":
		g.color = option.Value == "always"
	case "include":
		g.include = append(g.include, option.Value)
	case "exclude":
		g.exclude = append(g.exclude, option.Value)
	case "exclude-dir":
		g.excludeDirs = append(g.excludeDirs, option.Value)
	case "label":
		g.label = option.Value
	case "binary-files":
		g.text = option.Value == "text"
		g.noBinary = option.Value == "without-match"
	case "group-separator":
		g.groupSeparator = option.Value
	case "no-group-separator":
		g.groupSeparator = "\x00none"
	}
	return ""
}

// compile makes one expression per pattern; several plain ones become one alternation.
func (g *grepper) compile(patterns []string, dialect posix.Options) string {
	for _, pattern := range patterns {
		if pattern == "" && !dialect.WholeLine && !dialect.WholeWord {
			g.emptyPattern = true
		}
		compiled, err := posix.Compile(pattern, dialect)
		if err != nil {
			return err.Error()
		}
		g.matchers = append(g.matchers, compiled)
	}
	return ""
}

func (g *grepper) matches(line []byte) bool {
	if g.emptyPattern {
		return true
	}
	for _, matcher := range g.matchers {
		if matcher.Match(line) {
			return true
		}
	}
	return false
}

// spans returns all matches of a line in order, without overlaps.
func (g *grepper) spans(line []byte) [][]int {
	if len(g.matchers) == 1 {
		return g.matchers[0].FindAll(line, -1)
	}
	var out [][]int
	pos := 0
	for pos <= len(line) {
		var best []int
		for _, matcher := range g.matchers {
			found := matcher.FindIndex(line, pos)
			if found != nil && (best == nil || found[0] < best[0] || found[0] == best[0] && found[1] > best[1]) {
				best = found
			}
		}
		if best == nil {
			break
		}
		out = append(out, best)
		pos = best[1]
		if best[1] == best[0] {
			pos++
		}
	}
	return out
}
