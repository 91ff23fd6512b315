package shell

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync"

	"warmcell/toolbox/internal/core"
)

var signalNames = []string{"EXIT", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
	"STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS"}

// signalNumber accepts 15, TERM, SIGTERM and lower case; -1 when unknown.
func signalNumber(name string) int {
	if number, err := strconv.Atoi(name); err == nil {
		if number >= 0 && number < len(signalNames) {
			return number
		}
		return -1
	}
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	for i, known := range signalNames {
		if known == name {
			return i
		}
	}
	return -1
}

func trapName(spec string) string {
	switch upper := strings.ToUpper(spec); upper {
	case "ERR", "DEBUG", "RETURN":
		return upper
	}
	number := signalNumber(spec)
	if number < 0 {
		return ""
	}
	return signalNames[number]
}

// pending signals per shell, delivered between commands.
var signals = struct {
	sync.Mutex
	queued map[int][]int
	fatal  map[int]int
}{queued: map[int][]int{}, fatal: map[int]int{}}

func trapBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 || args[0] == "-p" {
		return s.printTraps(args)
	}
	if args[0] == "-l" {
		return killBuiltin(s, []string{"kill", "-l"})
	}
	if strings.HasPrefix(args[0], "-") && args[0] != "-" {
		s.errorf("trap: %s: invalid option", args[0])
		fmt.Fprintln(s.writer(2), "trap: usage: trap [-lp] [[arg] signal_spec ...]")
		return 2
	}
	action, specs := args[0], args[1:]
	if len(specs) == 0 {
		if trapName(action) == "" {
			fmt.Fprintln(s.writer(2), "trap: usage: trap [-lp] [[arg] signal_spec ...]")
			return 2
		}
		action, specs = "-", args
	} else if number, err := strconv.Atoi(action); err == nil && number >= 0 {
		action, specs = "-", args
	}
	status := 0
	for _, spec := range specs {
		name := trapName(spec)
		switch {
		case name == "":
			s.errorf("trap: %s: invalid signal specification", spec)
			status = 1
		case action == "-":
			delete(s.traps, name)
		default:
			s.traps[name] = action
		}
	}
	return status
}

func (s *Shell) printTraps(args []string) int {
	traps := s.traps
	if s.depth > 0 && s.shownTraps != nil && len(traps) == 0 {
		traps = s.shownTraps
	}
	names := sortedKeys(traps)
	sort.Slice(names, func(i, j int) bool { return trapRank(names[i]) < trapRank(names[j]) })
	wanted := map[string]bool{}
	for _, spec := range args[min(1, len(args)):] {
		wanted[trapName(spec)] = true
	}
	for _, name := range names {
		if len(wanted) > 0 && !wanted[name] {
			continue
		}
		shown := name
		if number := signalNumber(name); number > 0 {
			shown = "SIG" + name
		}
		s.print("trap -- ", "'"+strings.ReplaceAll(traps[name], "'", `'\''`)+"'", " ", shown, "\n")
	}
	return 0
}

func trapRank(name string) int {
	if number := signalNumber(name); number >= 0 {
		return number
	}
	return 100 + strings.Index("DEBUG ERR RETURN", name)
}

// runTrap runs the action of a pseudo-signal and keeps $?.
func (s *Shell) runTrap(name string) {
	action := s.traps[name]
	if action == "" || s.inTrap[name] {
		return
	}
	s.inTrap[name] = true
	status, line, pipes := s.status, s.line, s.pipeStatus
	s.sourceDepth++
	s.nested++
	s.runSource(action, "trap")
	s.nested--
	s.sourceDepth--
	s.inTrap[name] = false
	if s.flow != exiting && s.flow != returning {
		s.status = status
	}
	s.line, s.pipeStatus = line, pipes
}

func (s *Shell) runDebugTrap() {
	if s.traps["DEBUG"] != "" && !s.inTrap["ERR"] && (len(s.frames) == 0 || s.opts.functrace) {
		s.runTrap("DEBUG")
	}
}

func (s *Shell) runExitTrap() {
	action := s.traps["EXIT"]
	if action == "" {
		return
	}
	delete(s.traps, "EXIT")
	status := s.status
	s.flow = running
	s.sourceDepth++
	s.runSource(action, "trap")
	s.sourceDepth--
	if s.flow != exiting {
		s.status = status
	}
}

// runPendingTraps delivers queued signals that have a trap.
func (s *Shell) runPendingTraps() {
	if len(signals.queued) == 0 {
		return
	}
	signals.Lock()
	queued := signals.queued[s.pid]
	delete(signals.queued, s.pid)
	signals.Unlock()
	for _, number := range queued {
		s.runTrap(signalNames[number])
	}
}

// signal sends a signal to this shell: a trap runs later, else the shell dies.
func (s *Shell) signal(number int) {
	if number == 0 {
		return
	}
	action, trapped := s.traps[signalNames[number]]
	switch {
	case trapped && number != 9:
		if action != "" {
			signals.Lock()
			signals.queued[s.pid] = append(signals.queued[s.pid], number)
			signals.Unlock()
		}
	case number == 17 || number == 18 || number == 23 || number == 28:
	default:
		signals.Lock()
		signals.fatal[s.pid] = 128 + number
		signals.Unlock()
		s.cancel()
	}
}

func (s *Shell) killedBy() (int, bool) {
	signals.Lock()
	defer signals.Unlock()
	code, ok := signals.fatal[s.pid]
	return code, ok
}

func killBuiltin(s *Shell, argv []string) int {
	args := argv[1:]
	number := 15
	if len(args) == 0 {
		s.errorf("kill: usage: kill [-s sigspec | -n signum | -sigspec] pid | jobspec ... or kill -l [sigspec]")
		return 2
	}
	switch first := args[0]; {
	case first == "-l" || first == "-L":
		return s.listSignals(args[1:])
	case (first == "-s" || first == "-n") && len(args) > 1:
		number, args = signalNumber(args[1]), args[2:]
	case first == "--":
		args = args[1:]
	case strings.HasPrefix(first, "-") && len(first) > 1:
		if number = signalNumber(first[1:]); number < 0 {
			s.errorf("kill: %s: invalid signal specification", first[1:])
			return 1
		}
		args = args[1:]
	}
	if number < 0 {
		s.errorf("kill: invalid signal specification")
		return 1
	}
	status := 0
	for _, spec := range args {
		if !s.killOne(spec, number) {
			status = 1
		}
	}
	s.runPendingTraps()
	if s.ctx.Err() != nil {
		panic(&core.Death{Code: 143})
	}
	return status
}

func (s *Shell) listSignals(args []string) int {
	if len(args) == 0 {
		for i := 1; i < len(signalNames); i++ {
			separator := "\t"
			if i%5 == 0 || i == len(signalNames)-1 {
				separator = "\n"
			}
			s.print(fmt.Sprintf("%2d) SIG%s%s", i, signalNames[i], separator))
		}
		return 0
	}
	for _, arg := range args {
		if code, err := strconv.Atoi(arg); err == nil {
			if code > 128 {
				code -= 128
			}
			if code > 0 && code < len(signalNames) {
				s.print(signalNames[code], "\n")
				continue
			}
		} else if number := signalNumber(arg); number >= 0 {
			s.print(strconv.Itoa(number), "\n")
			continue
		}
		s.errorf("kill: %s: invalid signal specification", arg)
		return 1
	}
	return 0
}

func (s *Shell) killOne(spec string, number int) bool {
	if spec == strconv.Itoa(s.pid) || spec == strconv.Itoa(s.rootPID) || spec == "0" {
		s.signal(number)
		return true
	}
	if j := s.findJob(spec); j != nil {
		if j.finished() {
			s.errorf("kill: (%d) - No such process", j.pid)
			return false
		}
		j.shell.signal(number)
		return true
	}
	pid, err := strconv.Atoi(spec)
	if err != nil {
		s.errorf("kill: %s: arguments must be process or job IDs", spec)
		return false
	}
	live.Lock()
	j := live.jobs[pid]
	live.Unlock()
	if j == nil {
		s.errorf("kill: (%d) - No such process", pid)
		return false
	}
	j.shell.signal(number)
	return true
}
