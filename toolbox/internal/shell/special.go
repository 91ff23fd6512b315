package shell

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"warmcell/toolbox/internal/core"
)

const bashVersion = "5.2.15(1)-release"

func text(value string) *variable { return &variable{text: value, isSet: true} }

func list(values []string) *variable {
	v := &variable{}
	v.setList(values)
	return v
}

func (s *Shell) now() time.Time { return time.Now() }

// special computes the parameters that are not stored; nil for every other name.
func (s *Shell) special(name string) *variable {
	if len(name) == 1 {
		return s.specialSingle(name[0])
	}
	if name[0] >= '1' && name[0] <= '9' {
		n, err := strconv.Atoi(name)
		if err == nil {
			return s.positional(n)
		}
	}
	switch name {
	case "RANDOM":
		return text(strconv.Itoa(s.nextRandom()))
	case "SRANDOM":
		return text(strconv.FormatUint(core.Random64()>>32, 10))
	case "SECONDS":
		return text(strconv.FormatInt(s.secondsBase+int64(s.now().Sub(s.secondsFrom)/time.Second), 10))
	case "EPOCHSECONDS":
		return text(strconv.FormatInt(s.now().Unix(), 10))
	case "EPOCHREALTIME":
		micros := strconv.FormatInt(s.now().UnixMicro(), 10)
		return text(micros[:len(micros)-6] + "." + micros[len(micros)-6:])
	case "LINENO":
		return text(strconv.Itoa(s.line))
	case "BASHPID":
		return text(strconv.Itoa(s.pid))
	case "PPID":
		return text("1")
	case "UID", "EUID":
		return text(core.UserID)
	case "BASH_SUBSHELL":
		return text(strconv.Itoa(s.depth))
	case "BASH_COMMAND":
		return text(s.command)
	case "SHELLOPTS":
		return text(strings.Join(s.enabledOptions(), ":"))
	case "PIPESTATUS":
		values := make([]string, len(s.pipeStatus))
		for i, code := range s.pipeStatus {
			values[i] = strconv.Itoa(code)
		}
		return list(values)
	case "FUNCNAME":
		return s.frameVariable(func(f frame) string { return f.name })
	case "BASH_SOURCE":
		v := s.frameVariable(func(f frame) string { return f.source })
		if v == emptyList && s.script != "" {
			return list([]string{s.script})
		}
		return v
	case "BASH_LINENO":
		return s.frameVariable(func(f frame) string { return strconv.Itoa(f.line) })
	case "DIRSTACK":
		return list(append([]string{s.dir}, s.dirStack...))
	case "GROUPS":
		return list([]string{core.UserID})
	case "BASH_VERSINFO":
		return list([]string{"5", "2", "15", "1", "release", "wasm32-unknown-wasi"})
	}
	return nil
}

var emptyList = &variable{kind: indexed}

func (s *Shell) frameVariable(pick func(frame) string) *variable {
	if len(s.frames) == 0 {
		return emptyList
	}
	values := make([]string, 0, len(s.frames)+1)
	for i := len(s.frames) - 1; i >= 0; i-- {
		values = append(values, pick(s.frames[i]))
	}
	if s.script != "" {
		values = append(values, pick(frame{name: "main", source: s.script}))
	}
	return list(values)
}

func (s *Shell) specialSingle(name byte) *variable {
	switch name {
	case '#':
		return text(strconv.Itoa(len(s.params)))
	case '?':
		return text(strconv.Itoa(s.status))
	case '$':
		return text(strconv.Itoa(s.rootPID))
	case '!':
		if s.lastBackground == 0 {
			return &variable{}
		}
		return text(strconv.Itoa(s.lastBackground))
	case '-':
		return text(s.optionLetters())
	case '_':
		return text(s.lastArgument)
	case '@', '*':
		v := list(s.params)
		v.isSet = len(s.params) > 0
		return v
	case '0':
		return text(s.argv0)
	}
	if name >= '1' && name <= '9' {
		return s.positional(int(name - '0'))
	}
	return nil
}

func (s *Shell) positional(n int) *variable {
	if n <= len(s.params) {
		return text(s.params[n-1])
	}
	return &variable{}
}

// nextRandom follows bash's own generator once RANDOM was seeded, so that scripts with a seed repeat.
func (s *Shell) nextRandom() int {
	if !s.seeded {
		return int(core.Random64() & 0x7fff)
	}
	for {
		previous := s.random
		if s.random == 0 {
			s.random = 123459876
		}
		high, low := int32(s.random)/127773, int32(s.random)%127773
		next := 16807*low - 2836*high
		if next < 0 {
			next += 0x7fffffff
		}
		s.random = uint32(next)
		value := int((s.random>>16)^(s.random&0xffff)) & 0x7fff
		if s.random != previous {
			return value
		}
	}
}

// shuffle gives a generator seeded anew in each run.
func shuffle() *rand.Rand { return rand.New(rand.NewPCG(core.Random64(), core.Random64())) }
