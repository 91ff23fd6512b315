package main

import (
	"bytes"
	"strings"
)

// splitLines keeps the line ends; the last line may have none.
func splitLines(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	lines := strings.SplitAfter(string(data), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func isBinary(data []byte) bool {
	return bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0
}

// lineDiff marks the lines removed from a and added in b: a shortest edit script (Myers), then groups of
// changed lines are moved to where Git would put them.
func lineDiff(a, b []string) (gone, come []bool) {
	ids := map[string]int{}
	number := func(lines []string) []int {
		out := make([]int, len(lines))
		for i, line := range lines {
			id, found := ids[line]
			if !found {
				id = len(ids)
				ids[line] = id
			}
			out[i] = id
		}
		return out
	}
	x, y := number(a), number(b)
	gone, come = make([]bool, len(a)), make([]bool, len(b))
	start := 0
	for start < len(x) && start < len(y) && x[start] == y[start] {
		start++
	}
	endX, endY := len(x), len(y)
	for endX > start && endY > start && x[endX-1] == y[endY-1] {
		endX--
		endY--
	}
	myers(x[start:endX], y[start:endY], gone[start:endX], come[start:endY])
	compact(a, x, gone, come)
	compact(b, y, come, gone)
	return gone, come
}

// myers is the linear-space variant: it finds the middle of a shortest path and works on the two halves.
func myers(x, y []int, gone, come []bool) {
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		x, y, gone, come = x[1:], y[1:], gone[1:], come[1:]
	}
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y, gone, come = x[:len(x)-1], y[:len(y)-1], gone[:len(x)-1], come[:len(y)-1]
	}
	if len(x) == 0 || len(y) == 0 {
		for i := range gone {
			gone[i] = true
		}
		for i := range come {
			come[i] = true
		}
		return
	}
	i, j := middle(x, y)
	myers(x[:i], y[:j], gone[:i], come[:j])
	myers(x[i:], y[j:], gone[i:], come[j:])
}

// middle runs the greedy search from both ends until the paths meet, and returns a point on a shortest path.
func middle(x, y []int) (int, int) {
	n, m := len(x), len(y)
	size := n + m + 3
	forward, backward := make([]int, 2*size+1), make([]int, 2*size+1)
	delta := n - m
	isOdd := delta%2 != 0
	for i := range forward {
		forward[i], backward[i] = -1, n+1
	}
	forward[size+1], backward[size+delta-1] = 0, n
	for d := 0; ; d++ {
		for k := d; k >= -d; k -= 2 {
			at := size + k
			i := forward[at-1] + 1
			if k == -d || (k != d && forward[at-1] < forward[at+1]) {
				i = forward[at+1]
			}
			j := i - k
			if i > n || j > m || i < 0 || j < 0 {
				forward[at] = i
				continue
			}
			for i < n && j < m && x[i] == y[j] {
				i, j = i+1, j+1
			}
			forward[at] = i
			if isOdd && k >= delta-(d-1) && k <= delta+(d-1) && backward[at] <= i {
				return i, j
			}
		}
		for k := d; k >= -d; k -= 2 {
			at := size + delta + k
			i := backward[at+1] - 1
			if k == d || (k != -d && backward[at-1] < backward[at+1]) {
				i = backward[at-1]
			}
			j := i - (delta + k)
			if i < 0 || j < 0 || i > n || j > m {
				backward[at] = i
				continue
			}
			for i > 0 && j > 0 && x[i-1] == y[j-1] {
				i, j = i-1, j-1
			}
			backward[at] = i
			if !isOdd && delta+k >= -d && delta+k <= d && forward[at] >= i {
				return i, j
			}
		}
	}
}

// compact slides each group of changed lines: first up, joining groups that touch, then down to the end or to where
// the other side has a change too; otherwise to the place that the indentation makes most readable.
func compact(lines []string, ids []int, changed, other []bool) {
	for i, o := 0, 0; i < len(lines); {
		if !changed[i] {
			for o < len(other) && other[o] {
				o++
			}
			i, o = i+1, o+1
			continue
		}
		start := i
		for i < len(lines) && changed[i] {
			i++
		}
		end := i
		start, end, o = slide(lines, ids, changed, other, start, end, o)
		_ = start
		i = end
		for o < len(other) && other[o] {
			o++
		}
	}
}

// slide moves the group [start,end); o is the place on the other side that corresponds to its start.
func slide(lines []string, ids []int, changed, other []bool, start, end, o int) (int, int, int) {
	up := func() bool {
		if start == 0 || ids[start-1] != ids[end-1] {
			return false
		}
		start, end = start-1, end-1
		changed[start], changed[end] = true, false
		for start > 0 && changed[start-1] {
			start--
		}
		o--
		for o > 0 && other[o-1] {
			o--
		}
		return true
	}
	down := func() bool {
		if end >= len(ids) || ids[start] != ids[end] {
			return false
		}
		changed[start], changed[end] = false, true
		start, end = start+1, end+1
		for end < len(ids) && changed[end] {
			end++
		}
		for o < len(other) && other[o] {
			o++
		}
		o++
		return true
	}
	matches := func() bool { return o < len(other) && other[o] }
	var earliest, matchEnd int
	for {
		size := end - start
		matchEnd = -1
		for up() {
		}
		earliest = end
		if matches() {
			matchEnd = end
		}
		for down() {
			if matches() {
				matchEnd = end
			}
		}
		if size == end-start {
			break
		}
	}
	switch {
	case end == earliest:
	case matchEnd != -1:
		for end > matchEnd && !matches() {
			if !up() {
				break
			}
		}
	default:
		best := bestSplit(lines, start, end, earliest)
		for end > best {
			if !up() {
				break
			}
		}
	}
	return start, end, o
}

// bestSplit is Git's indent heuristic: where the group ends best, between earliest and end.
func bestSplit(lines []string, start, end, earliest int) int {
	size := end - start
	best, bestScore := -1, splitScore{}
	low := max(earliest, end-size-1, end-100)
	for shift := low; shift <= end; shift++ {
		score := splitScore{}
		score.add(lines, shift)
		score.add(lines, shift-size)
		if best == -1 || score.compare(bestScore) <= 0 {
			best, bestScore = shift, score
		}
	}
	return best
}

type splitScore struct{ indent, penalty int }

func (s splitScore) compare(other splitScore) int {
	order := 0
	if s.indent > other.indent {
		order = 1
	} else if s.indent < other.indent {
		order = -1
	}
	return 60*order + (s.penalty - other.penalty)
}

func indentOf(line string) int {
	indent := 0
	for _, c := range line {
		switch c {
		case ' ':
			indent++
		case '\t':
			indent += 8 - indent%8
		case '\n', '\r', '\f', '\v':
		default:
			return min(indent, 200)
		}
	}
	return -1
}

func (s *splitScore) add(lines []string, split int) {
	isEnd, indent := split >= len(lines), -1
	if !isEnd {
		indent = indentOf(lines[split])
	}
	preBlank, preIndent := 0, -1
	for i := split - 1; i >= 0; i-- {
		if preIndent = indentOf(lines[i]); preIndent != -1 {
			break
		}
		if preBlank++; preBlank == 20 {
			preIndent = 0
			break
		}
	}
	postBlank, postIndent := 0, -1
	for i := split + 1; i < len(lines); i++ {
		if postIndent = indentOf(lines[i]); postIndent != -1 {
			break
		}
		if postBlank++; postBlank == 20 {
			postIndent = 0
			break
		}
	}
	if preIndent == -1 && preBlank == 0 {
		s.penalty++
	}
	if isEnd {
		s.penalty += 21
	}
	post := 0
	if indent == -1 {
		post = 1 + postBlank
	}
	total := preBlank + post
	s.penalty += -30*total + 6*post
	effective := indent
	if effective == -1 {
		effective = postIndent
	}
	isAnyBlank := total != 0
	s.indent += effective
	pick := func(withBlank, without int) {
		if isAnyBlank {
			s.penalty += withBlank
		} else {
			s.penalty += without
		}
	}
	switch {
	case effective == -1 || preIndent == -1 || effective == preIndent:
	case effective > preIndent:
		pick(10, -4)
	case postIndent != -1 && postIndent > effective:
		pick(17, 24)
	default:
		pick(17, 23)
	}
}
