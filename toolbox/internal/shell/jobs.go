package shell

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"

	"warmcell/toolbox/internal/core"
)

// job is a background command: a goroutine with its own subshell.
type job struct {
	id       int
	pid      int
	text     string
	shell    *Shell
	done     chan struct{}
	status   int
	hidden   bool // process substitutions do not show in "jobs"
	reported bool
	disowned bool
}

type jobTable struct {
	mutex   sync.Mutex
	list    []*job
	next    int
	outputs []*job // >(...) consumers of the current command
}

func newJobTable() *jobTable { return &jobTable{} }

// live finds any running subshell by its process number, for kill.
var live = struct {
	sync.Mutex
	jobs map[int]*job
}{jobs: map[int]*job{}}

func (t *jobTable) start(sub *Shell, text string, hidden bool) *job {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	started := &job{pid: sub.pid, text: text, shell: sub, done: make(chan struct{}), hidden: hidden}
	if !hidden {
		t.next++
		started.id = t.next
	}
	t.list = append(t.list, started)
	live.Lock()
	live.jobs[started.pid] = started
	live.Unlock()
	return started
}

func (j *job) run(fn func() int) {
	j.status = fn()
	live.Lock()
	delete(live.jobs, j.pid)
	live.Unlock()
	close(j.done)
}

func (j *job) finished() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

func (j *job) wait() { <-j.done }

func (s *Shell) background(st *syntax.Stmt) {
	sub := s.subshell()
	if s.fds[0] != nil && !redirectsInput(st) {
		sub.swap(0, borrowReader(core.Null))
	}
	copied := *st
	copied.Background, copied.Disown = false, false
	started := s.jobs.start(sub, commandText(&copied), false)
	s.lastBackground = started.pid
	go started.run(func() int {
		defer sub.close()
		return sub.guarded(func() { sub.stmt(&copied) })
	})
	s.status = 0
	s.pipeStatus = []int{0}
}

func redirectsInput(st *syntax.Stmt) bool {
	for _, redir := range st.Redirs {
		if redir.Op == syntax.RdrIn || redir.Op == syntax.DplIn {
			return true
		}
	}
	return false
}

func (s *Shell) coproc(cmd *syntax.CoprocClause) {
	name := "COPROC"
	if cmd.Name != nil {
		name = s.textOf(cmd.Name)
	}
	toReader, toWriter := core.NewPipe(s.ctx)
	fromReader, fromWriter := core.NewPipe(s.ctx)
	sub := s.subshell()
	sub.swap(0, newDescriptor(newInput(toReader), nil, func() { toReader.Close() }))
	sub.swap(1, newDescriptor(nil, fromWriter, func() { fromWriter.Close() }))
	started := s.jobs.start(sub, "coproc", false)
	go started.run(func() int { return sub.stage(cmd.Stmt) })
	read, write := 63, 60
	s.fds[read] = newDescriptor(newInput(fromReader), nil, func() { fromReader.Close() })
	s.fds[write] = newDescriptor(nil, toWriter, func() { toWriter.Close() })
	v := s.ensure(name)
	v.setList([]string{strconv.Itoa(read), strconv.Itoa(write)})
	s.set(name+"_PID", strconv.Itoa(started.pid))
	s.lastBackground = started.pid
	s.status = 0
}

// awaitJob waits for a job, waking up when a trapped signal arrives.
func (s *Shell) awaitJob(j *job) int {
	select {
	case <-j.done:
	case <-s.ctx.Done():
		panic(&core.Death{Code: 143})
	}
	return j.status
}

func (s *Shell) findJob(spec string) *job {
	s.jobs.mutex.Lock()
	defer s.jobs.mutex.Unlock()
	if rest, ok := strings.CutPrefix(spec, "%"); ok {
		return s.jobs.bySpec(rest)
	}
	pid, err := strconv.Atoi(spec)
	if err != nil {
		return nil
	}
	for _, j := range s.jobs.list {
		if j.pid == pid {
			return j
		}
	}
	return nil
}

func (t *jobTable) bySpec(spec string) *job {
	var visible []*job
	for _, j := range t.list {
		if !j.hidden {
			visible = append(visible, j)
		}
	}
	switch {
	case len(visible) == 0:
		return nil
	case spec == "" || spec == "+" || spec == "%":
		return visible[len(visible)-1]
	case spec == "-":
		return visible[max(0, len(visible)-2)]
	}
	id, err := strconv.Atoi(spec)
	for _, j := range visible {
		if err == nil && j.id == id || err != nil && strings.HasPrefix(j.text, spec) {
			return j
		}
	}
	return nil
}

func waitBuiltin(s *Shell, argv []string) int {
	next, variable := false, ""
	args := argv[1:]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-" {
		switch args[0] {
		case "-n":
			next = true
		case "-p":
			if len(args) > 1 {
				variable, args = args[1], args[1:]
			}
		case "-f":
		case "--":
		default:
			s.errorf("wait: %s: invalid option", args[0])
			return 2
		}
		args = args[1:]
	}
	if next {
		return s.waitNext(args, variable)
	}
	if len(args) == 0 {
		for _, j := range s.jobs.snapshot() {
			s.awaitJob(j)
		}
		s.jobs.forgetFinished()
		return 0
	}
	status := 0
	for _, spec := range args {
		j := s.findJob(spec)
		if j == nil {
			if strings.HasPrefix(spec, "%") {
				s.errorf("wait: %s: no such job", spec)
			} else if _, err := strconv.Atoi(spec); err != nil {
				s.errorf("wait: `%s': not a pid or valid job spec", spec)
				return 1
			} else {
				s.errorf("wait: pid %s is not a child of this shell", spec)
			}
			status = 127
			continue
		}
		status = s.awaitJob(j)
		j.reported = true
		if variable != "" {
			s.set(variable, strconv.Itoa(j.pid))
		}
	}
	return status
}

func (t *jobTable) snapshot() []*job {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return append([]*job(nil), t.list...)
}

func (t *jobTable) forgetFinished() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.list = nil
	t.next = 0
}

// waitNext is "wait -n": the first job to end that was not reported yet.
func (s *Shell) waitNext(specs []string, variable string) int {
	var candidates []*job
	if len(specs) == 0 {
		for _, j := range s.jobs.snapshot() {
			if !j.reported && !j.hidden {
				candidates = append(candidates, j)
			}
		}
	}
	for _, spec := range specs {
		if j := s.findJob(spec); j != nil {
			candidates = append(candidates, j)
		}
	}
	if len(candidates) == 0 {
		return 127
	}
	ended := make(chan *job, len(candidates))
	for _, j := range candidates {
		if j.finished() {
			ended <- j
			continue
		}
		go func() { j.wait(); ended <- j }()
	}
	first := <-ended
	first.reported = true
	if variable != "" {
		s.set(variable, strconv.Itoa(first.pid))
	}
	return first.status
}

func jobsBuiltin(s *Shell, argv []string) int {
	onlyPIDs := len(argv) > 1 && argv[1] == "-p"
	long := len(argv) > 1 && argv[1] == "-l"
	runningOnly := len(argv) > 1 && argv[1] == "-r"
	visible := s.jobs.snapshot()
	for i, j := range visible {
		if j.hidden || j.disowned || j.reported || runningOnly && j.finished() {
			continue
		}
		if onlyPIDs {
			fmt.Fprintln(s.writer(1), j.pid)
			continue
		}
		mark, state, tail := " ", "Running", " &"
		if i == len(visible)-1 {
			mark = "+"
		} else if i == len(visible)-2 {
			mark = "-"
		}
		if j.finished() {
			state, tail = "Done", ""
			if j.status != 0 {
				state = "Exit " + strconv.Itoa(j.status)
			}
			j.reported = true
		}
		pid := ""
		if long {
			pid = strconv.Itoa(j.pid) + " "
		}
		fmt.Fprintf(s.writer(1), "[%d]%s  %s%-24s%s%s\n", j.id, mark, pid, state, j.text, tail)
	}
	return 0
}

func foregroundBuiltin(s *Shell, argv []string) int {
	spec := "%+"
	if len(argv) > 1 {
		spec = argv[1]
	}
	j := s.findJob(spec)
	if j == nil {
		s.errorf("%s: no job control", argv[0])
		return 1
	}
	if argv[0] == "bg" {
		return 0
	}
	io.WriteString(s.writer(1), j.text+"\n")
	return s.awaitJob(j)
}

func disownBuiltin(s *Shell, argv []string) int {
	for _, j := range s.jobs.snapshot() {
		j.disowned = true
	}
	return 0
}
