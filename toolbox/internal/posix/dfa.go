package posix

import (
	"encoding/binary"
	"regexp/syntax"
	"slices"
	"unicode/utf8"
)

// dfa decides whether a text contains a match, in one step per byte. Its states are sets of places in the program, made
// when they are first met. Where a match lies is the business of Go's own engine.
type dfa struct {
	program *syntax.Prog
	states  map[string]*dfaState
	start   *dfaState
	resets  int
	seen    []uint32 // for each instruction the round in which it was last reached
	round   uint32
}

type dfaState struct {
	places   []uint32       // not yet followed through steps that read nothing: those depend on the next character
	previous rune           // stands for all characters that look the same to ^, $ and \b
	next     [256]*dfaState // by byte; what is not known yet, and what begins a longer character, is unknown
	others   map[rune]*dfaState
	atEnd    *bool // whether a text that ends here matches
}

const (
	mostInstructions = 2000
	mostStates       = 1000 // a state takes two kilobytes
	mostResets       = 20
)

// newDFA returns nil for programs that are too large.
func newDFA(expression string) *dfa {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil || len(program.Inst) > mostInstructions {
		return nil
	}
	d := &dfa{program: program, seen: make([]uint32, len(program.Inst))}
	d.forget()
	return d
}

// forget drops all states; the current one stays in use, but no other leads to it.
func (d *dfa) forget() {
	d.states = map[string]*dfaState{}
	d.start = d.state([]uint32{uint32(d.program.Start)}, -1)
}

// match reports a match, or that it gives up: patterns with too many states are left to the other engine.
func (d *dfa) match(text []byte) (isMatch, isKnown bool) {
	at := d.start
	for i := 0; i < len(text); {
		if i+stride <= len(text) {
			if next := at.stride((*[stride]byte)(text[i:])); next != unknown {
				at = next
				i += stride
				if at == found {
					break
				}
				continue
			}
		}
		if next := at.next[text[i]]; next != unknown {
			at = next
			i++
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		at = d.next(at, r)
		i += size
	}
	if at == found {
		return true, true
	}
	if d.resets >= mostResets {
		return false, false
	}
	if at.atEnd == nil {
		_, ends := d.follow(at, -1)
		at.atEnd = &ends
	}
	return *at.atEnd, true
}

// In WebAssembly made by Go a jump backwards costs more than a step, so several are made at once. The two states that
// nothing leaves make looking at each of them unnecessary.
const stride = 8

var found, unknown = absorbing(), absorbing()

func absorbing() *dfaState {
	made := &dfaState{}
	for i := range made.next {
		made.next[i] = made
	}
	return made
}

func (s *dfaState) stride(text *[stride]byte) *dfaState {
	return s.next[text[0]].next[text[1]].next[text[2]].next[text[3]].next[text[4]].next[text[5]].next[text[6]].next[text[7]]
}

func (d *dfa) next(at *dfaState, r rune) *dfaState {
	if r < utf8.RuneSelf {
		if at.next[r] == unknown {
			at.next[r] = d.step(at, r)
		}
		return at.next[r]
	}
	next := at.others[r]
	if next == nil {
		next = d.step(at, r)
		at.others[r] = next
	}
	return next
}

func (d *dfa) step(from *dfaState, r rune) *dfaState {
	places, isMatch := d.follow(from, r)
	if isMatch {
		return found
	}
	var next []uint32
	for _, place := range places {
		if instruction := &d.program.Inst[place]; reads(instruction, r) && !slices.Contains(next, instruction.Out) {
			next = append(next, instruction.Out)
		}
	}
	if start := uint32(d.program.Start); !slices.Contains(next, start) { // a match may begin anywhere
		next = append(next, start)
	}
	slices.Sort(next)
	return d.state(next, representative(r))
}

func reads(instruction *syntax.Inst, r rune) bool {
	switch instruction.Op {
	case syntax.InstRuneAny:
		return true
	case syntax.InstRuneAnyNotNL:
		return r != '\n'
	}
	return instruction.MatchRune(r)
}

func representative(r rune) rune {
	switch {
	case r == '\n':
		return '\n'
	case syntax.IsWordChar(r):
		return 'a'
	}
	return ' '
}

// follow returns the reading instructions that can be reached without reading, given what comes next, and whether the
// end of the expression is among them.
func (d *dfa) follow(from *dfaState, next rune) (reading []uint32, isMatch bool) {
	around := syntax.EmptyOpContext(from.previous, next)
	d.round++
	todo := slices.Clone(from.places)
	for len(todo) > 0 {
		place := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if d.seen[place] == d.round {
			continue
		}
		d.seen[place] = d.round
		switch instruction := &d.program.Inst[place]; instruction.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			todo = append(todo, instruction.Out, instruction.Arg)
		case syntax.InstCapture, syntax.InstNop:
			todo = append(todo, instruction.Out)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(instruction.Arg)&^around == 0 {
				todo = append(todo, instruction.Out)
			}
		case syntax.InstMatch:
			return nil, true
		case syntax.InstFail:
		default:
			reading = append(reading, place)
		}
	}
	return reading, false
}

func (d *dfa) state(places []uint32, previous rune) *dfaState {
	key := binary.LittleEndian.AppendUint32(nil, uint32(previous))
	for _, place := range places {
		key = binary.LittleEndian.AppendUint32(key, place)
	}
	if known := d.states[string(key)]; known != nil {
		return known
	}
	if len(d.states) >= mostStates {
		d.resets++
		d.forget()
	}
	made := &dfaState{next: unknown.next, places: places, previous: previous, others: map[rune]*dfaState{}}
	d.states[string(key)] = made
	return made
}
