// Command git is the part of Git that an agent reaches for in a sandbox: local repositories, no network, Git's own words.
package main

import (
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
)

const version = "2.39.0 (warmcell)"

// Git's exit statuses.
const (
	exitFailure = 1
	exitFatal   = 128
	exitUsage   = 129
)

// stop ends the command with a status; text has been printed already or goes to standard error.
type stop struct {
	code int
	text string
}

func fatal(format string, args ...any) {
	panic(stop{exitFatal, "fatal: " + fmt.Sprintf(format, args...)})
}

func fail(format string, args ...any) {
	panic(stop{exitFailure, "error: " + fmt.Sprintf(format, args...)})
}

func usage(format string, args ...any) {
	panic(stop{exitUsage, fmt.Sprintf(format, args...)})
}

func exit(code int) { panic(stop{code: code}) }

// must turns an unexpected error into Git's "fatal:".
func must(err error) {
	if err != nil {
		fatal("%v", err)
	}
}

var out = newBuffered(os.Stdout)

func newBuffered(w io.Writer) *buffered { return &buffered{w: w} }

// buffered is a writer that flushes at the end of the command and never fails half-way with a stack trace.
type buffered struct {
	w   io.Writer
	buf []byte
}

func (b *buffered) Write(p []byte) (int, error) {
	b.buf = append(b.buf, p...)
	if len(b.buf) > 1<<16 {
		b.flush()
	}
	return len(p), nil
}

func (b *buffered) flush() {
	b.w.Write(b.buf)
	b.buf = b.buf[:0]
}

func say(format string, args ...any) { fmt.Fprintf(out, format, args...) }

func warn(format string, args ...any) {
	out.flush()
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

type command struct {
	run     func(args []string)
	summary string
}

var commands map[string]command

func init() {
	commands = map[string]command{
		"add":          {cmdAdd, "Add file contents to the index"},
		"branch":       {cmdBranch, "List, create, or delete branches"},
		"cat-file":     {cmdCatFile, "Provide content or type and size information for repository objects"},
		"checkout":     {cmdCheckout, "Switch branches or restore working tree files"},
		"clone":        {cmdClone, "Clone a repository into a new directory (local paths only)"},
		"commit":       {cmdCommit, "Record changes to the repository"},
		"config":       {cmdConfig, "Get and set repository or global options"},
		"diff":         {cmdDiff, "Show changes between commits, commit and working tree, etc"},
		"fetch":        {cmdNetwork, "(no network in this sandbox)"},
		"hash-object":  {cmdHashObject, "Compute object ID and optionally create an object from a file"},
		"init":         {cmdInit, "Create an empty Git repository or reinitialize an existing one"},
		"log":          {cmdLog, "Show commit logs"},
		"ls-files":     {cmdLsFiles, "Show information about files in the index and the working tree"},
		"ls-tree":      {cmdLsTree, "List the contents of a tree object"},
		"merge":        {cmdMerge, "Join two or more development histories together"},
		"merge-base":   {cmdMergeBase, "Find as good common ancestors as possible for a merge"},
		"mv":           {cmdMv, "Move or rename a file, a directory, or a symlink"},
		"pull":         {cmdNetwork, "(no network in this sandbox)"},
		"push":         {cmdNetwork, "(no network in this sandbox)"},
		"remote":       {cmdRemote, "Manage set of tracked repositories"},
		"reset":        {cmdReset, "Reset current HEAD to the specified state"},
		"restore":      {cmdRestore, "Restore working tree files"},
		"rev-list":     {cmdRevList, "Lists commit objects in reverse chronological order"},
		"rev-parse":    {cmdRevParse, "Pick out and massage parameters"},
		"rm":           {cmdRm, "Remove files from the working tree and from the index"},
		"show":         {cmdShow, "Show various types of objects"},
		"stash":        {cmdStash, "Stash the changes in a dirty working directory away"},
		"status":       {cmdStatus, "Show the working tree status"},
		"switch":       {cmdSwitch, "Switch branches"},
		"symbolic-ref": {cmdSymbolicRef, "Read, modify and delete symbolic refs"},
		"tag":          {cmdTag, "Create, list, delete a tag object"},
	}
}

func runMain(args []string) (code int) {
	defer func() {
		if r := recover(); r != nil {
			s, isStop := r.(stop)
			if !isStop {
				out.flush()
				panic(r)
			}
			if s.text != "" {
				warn("%s", s.text)
			}
			code = s.code
		}
		out.flush()
	}()
	args = globalOptions(args)
	if len(args) == 0 {
		printHelp()
		return exitFailure
	}
	name, rest := args[0], args[1:]
	c, known := commands[name]
	if !known {
		warn("git: '%s' is not a git command. See 'git --help'.", name)
		return exitFailure
	}
	for _, arg := range rest {
		if arg == "--" {
			break
		}
		if arg == "--help" || (arg == "-h" && len(rest) == 1) {
			say("git %s: %s\n", name, c.summary)
			if arg == "-h" {
				return exitUsage
			}
			return 0
		}
	}
	c.run(rest)
	return 0
}

func globalOptions(args []string) []string {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		value := func() string {
			if len(args) < 2 {
				usage("no value given for %s", args[0])
			}
			v := args[1]
			args = args[1:]
			return v
		}
		switch arg := args[0]; {
		case arg == "-C":
			dir := value()
			if dir != "" {
				if err := os.Chdir(dir); err != nil {
					fatal("cannot change to '%s': No such file or directory", dir)
				}
			}
		case arg == "-c":
			setOverride(value())
		case arg == "--git-dir":
			gitDirOption = value()
		case strings.HasPrefix(arg, "--git-dir="):
			gitDirOption = arg[len("--git-dir="):]
		case arg == "--work-tree":
			workTreeOption = value()
		case strings.HasPrefix(arg, "--work-tree="):
			workTreeOption = arg[len("--work-tree="):]
		case arg == "--version" || arg == "-v":
			printVersion()
		case arg == "--help" || arg == "-h":
			printHelp()
			exit(0)
		case arg == "--no-pager" || arg == "-p" || arg == "--paginate" || arg == "--literal-pathspecs" || arg == "--no-optional-locks":
		default:
			usage("unknown option: %s\nusage: git [--version] [--help] [-C <path>] [-c <name>=<value>] <command> [<args>]", arg)
		}
		args = args[1:]
	}
	if len(args) > 0 && args[0] == "version" {
		printVersion()
	}
	if len(args) > 0 && args[0] == "help" {
		printHelp()
		exit(0)
	}
	return args
}

func printVersion() {
	say("git version %s\n", version)
	exit(0)
}

func printHelp() {
	say("usage: git [--version] [--help] [-C <path>] [-c <name>=<value>] [--no-pager]\n           [--git-dir=<path>] [--work-tree=<path>] <command> [<args>]\n\nLocal repositories only; there is no network in this sandbox. Commands:\n\n")
	names := make([]string, 0, len(commands))
	for name := range commands {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		say("   %-13s %s\n", name, commands[name].summary)
	}
}

func cmdNetwork(args []string) {
	r := openRepo()
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			continue
		}
		url := arg
		if configured, found := r.config.get("remote." + arg + ".url"); found {
			url = configured
		}
		refuseNetwork(url)
	}
	if url, found := r.config.get("remote.origin.url"); found {
		refuseNetwork(url)
	}
	fatal("no network in this sandbox: fetch, pull and push are not available")
}

func isNetworkURL(url string) bool {
	if strings.HasPrefix(url, "file://") {
		return false
	}
	if strings.Contains(url, "://") {
		return true
	}
	colon, slash := strings.Index(url, ":"), strings.Index(url, "/")
	return colon > 0 && (slash == -1 || colon < slash)
}

func refuseNetwork(url string) {
	if isNetworkURL(url) {
		fatal("unable to access '%s': no network in this sandbox", url)
	}
	fatal("'%s': fetch, pull and push are not available in this sandbox", url)
}
