package text

import (
	"fmt"
	"strings"
)

// edit replaces a[a0:a1] by b[b0:b1].
type edit struct{ a0, a1, b0, b1 int }

// editScript is Myers' algorithm in linear space, after common ends are cut off.
func editScript(a, b []string) []edit {
	ids := map[string]int{}
	number := func(lines []string) []int {
		out := make([]int, len(lines))
		for i, line := range lines {
			id, ok := ids[line]
			if !ok {
				id = len(ids)
				ids[line] = id
			}
			out[i] = id
		}
		return out
	}
	m := &myers{a: number(a), b: number(b)}
	m.delA, m.insB = make([]bool, len(a)), make([]bool, len(b))
	size := len(a) + len(b) + 3
	m.forward, m.backward = make([]int, 2*size), make([]int, 2*size)
	m.solve(0, len(a), 0, len(b))
	m.slide(m.delA, m.a)
	m.slide(m.insB, m.b)
	return m.edits()
}

type myers struct {
	a, b              []int
	delA, insB        []bool
	forward, backward []int
}

func (m *myers) solve(a0, a1, b0, b1 int) {
	for a0 < a1 && b0 < b1 && m.a[a0] == m.b[b0] {
		a0, b0 = a0+1, b0+1
	}
	for a0 < a1 && b0 < b1 && m.a[a1-1] == m.b[b1-1] {
		a1, b1 = a1-1, b1-1
	}
	switch {
	case a0 == a1:
		for i := b0; i < b1; i++ {
			m.insB[i] = true
		}
	case b0 == b1:
		for i := a0; i < a1; i++ {
			m.delA[i] = true
		}
	default:
		x, y := m.middle(a0, a1, b0, b1)
		m.solve(a0, x, b0, y)
		m.solve(x, a1, y, b1)
	}
}

// middle finds a point on an optimal path by searching from both ends.
func (m *myers) middle(a0, a1, b0, b1 int) (int, int) {
	n, w := a1-a0, b1-b0
	delta := n - w
	offset := len(m.forward) / 2
	m.forward[offset+1], m.backward[offset+1] = 0, 0
	for d := 0; ; d++ {
		for k := -d; k <= d; k += 2 {
			x := 0
			if k == -d || k != d && m.forward[offset+k-1] < m.forward[offset+k+1] {
				x = m.forward[offset+k+1]
			} else {
				x = m.forward[offset+k-1] + 1
			}
			y := x - k
			startX, startY := x, y
			for x < n && y < w && y >= 0 && m.a[a0+x] == m.b[b0+y] {
				x, y = x+1, y+1
			}
			m.forward[offset+k] = x
			back := delta - k
			if delta%2 != 0 && back >= -(d-1) && back <= d-1 && x+m.backward[offset+back] >= n {
				if startX == 0 && startY == 0 && x == 0 {
					return a0 + x, b0 + y
				}
				return a0 + startX, b0 + startY
			}
		}
		for k := -d; k <= d; k += 2 {
			x := 0
			if k == -d || k != d && m.backward[offset+k-1] < m.backward[offset+k+1] {
				x = m.backward[offset+k+1]
			} else {
				x = m.backward[offset+k-1] + 1
			}
			y := x - k
			for x < n && y < w && y >= 0 && m.a[a1-1-x] == m.b[b1-1-y] {
				x, y = x+1, y+1
			}
			m.backward[offset+k] = x
			front := delta - k
			if delta%2 == 0 && front >= -d && front <= d && x+m.forward[offset+front] >= n {
				return a1 - x, b1 - y
			}
		}
	}
}

// slide moves a run of changes down as far as it goes, where GNU diff reports it.
func (m *myers) slide(changed []bool, ids []int) {
	for i := 0; i < len(changed); i++ {
		if !changed[i] {
			continue
		}
		end := i
		for end < len(changed) && changed[end] {
			end++
		}
		start := i
		for end < len(changed) && ids[start] == ids[end] {
			changed[start], changed[end] = false, true
			start, end = start+1, end+1
			for end < len(changed) && changed[end] {
				end++
			}
		}
		i = end
	}
}

func (m *myers) edits() []edit {
	var out []edit
	i, j := 0, 0
	for i < len(m.a) || j < len(m.b) {
		if i < len(m.a) && !m.delA[i] && j < len(m.b) && !m.insB[j] {
			i, j = i+1, j+1
			continue
		}
		e := edit{i, i, j, j}
		for e.a1 < len(m.a) && m.delA[e.a1] {
			e.a1++
		}
		for e.b1 < len(m.b) && m.insB[e.b1] {
			e.b1++
		}
		if e.a1 == e.a0 && e.b1 == e.b0 {
			i, j = i+1, j+1
			continue
		}
		out = append(out, e)
		i, j = e.a1, e.b1
	}
	return out
}

func lineRange(start, end int) string {
	if end-start <= 1 {
		return fmt.Sprint(max(end, start))
	}
	return fmt.Sprintf("%d,%d", start+1, end)
}

func (d *differ) normal(a, b []string, edits []edit) {
	for _, e := range edits {
		letter := "c"
		if e.a0 == e.a1 {
			letter = "a"
		} else if e.b0 == e.b1 {
			letter = "d"
		}
		fmt.Fprintf(d.c.Out, "%s%s%s\n", lineRange(e.a0, e.a1), letter, lineRange(e.b0, e.b1))
		for _, line := range a[e.a0:e.a1] {
			d.line("< ", line)
		}
		if letter == "c" {
			d.c.Out.WriteString("---\n")
		}
		for _, line := range b[e.b0:e.b1] {
			d.line("> ", line)
		}
	}
}

func (d *differ) ed(b []string, edits []edit) {
	for i := len(edits) - 1; i >= 0; i-- {
		e := edits[i]
		switch {
		case e.a0 == e.a1:
			fmt.Fprintf(d.c.Out, "%da\n", e.a0)
		case e.b0 == e.b1:
			fmt.Fprintf(d.c.Out, "%sd\n", lineRange(e.a0, e.a1))
			continue
		default:
			fmt.Fprintf(d.c.Out, "%sc\n", lineRange(e.a0, e.a1))
		}
		d.c.Out.WriteString(strings.Join(b[e.b0:e.b1], "") + ".\n")
	}
}

// hunks groups edits whose context touches.
func (d *differ) hunks(edits []edit) [][]edit {
	var groups [][]edit
	for _, e := range edits {
		if n := len(groups); n > 0 {
			last := groups[n-1][len(groups[n-1])-1]
			if e.a0-last.a1 <= 2*d.context {
				groups[n-1] = append(groups[n-1], e)
				continue
			}
		}
		groups = append(groups, []edit{e})
	}
	return groups
}

func unifiedRange(start, end int) string {
	switch end - start {
	case 0:
		return fmt.Sprintf("%d,0", start)
	case 1:
		return fmt.Sprint(start + 1)
	}
	return fmt.Sprintf("%d,%d", start+1, end-start)
}

func (d *differ) unified(a, b []string, edits []edit) {
	for _, group := range d.hunks(edits) {
		first, last := group[0], group[len(group)-1]
		a0, a1 := max(0, first.a0-d.context), min(len(a), last.a1+d.context)
		b0, b1 := first.b0-(first.a0-a0), last.b1+(a1-last.a1)
		fmt.Fprintf(d.c.Out, "@@ -%s +%s @@\n", unifiedRange(a0, a1), unifiedRange(b0, b1))
		at := a0
		for _, e := range group {
			for ; at < e.a0; at++ {
				d.line(" ", a[at])
			}
			for ; at < e.a1; at++ {
				d.line("-", a[at])
			}
			for _, line := range b[e.b0:e.b1] {
				d.line("+", line)
			}
		}
		for ; at < a1; at++ {
			d.line(" ", a[at])
		}
	}
}

func (d *differ) contextual(a, b []string, edits []edit) {
	for _, group := range d.hunks(edits) {
		first, last := group[0], group[len(group)-1]
		a0, a1 := max(0, first.a0-d.context), min(len(a), last.a1+d.context)
		b0, b1 := first.b0-(first.a0-a0), last.b1+(a1-last.a1)
		fmt.Fprintf(d.c.Out, "***************\n*** %s ****\n", lineRange(a0, a1))
		d.half(a, a0, a1, group, true)
		fmt.Fprintf(d.c.Out, "--- %s ----\n", lineRange(b0, b1))
		d.half(b, b0, b1, group, false)
	}
}

func (d *differ) half(lines []string, from, to int, group []edit, isLeft bool) {
	any := false
	for _, e := range group {
		any = any || isLeft && e.a1 > e.a0 || !isLeft && e.b1 > e.b0
	}
	if !any {
		return
	}
	for i := from; i < to; i++ {
		mark := "  "
		for _, e := range group {
			low, high, other := e.a0, e.a1, e.b1 > e.b0
			sign := "- "
			if !isLeft {
				low, high, other, sign = e.b0, e.b1, e.a1 > e.a0, "+ "
			}
			if i >= low && i < high {
				mark = sign
				if other {
					mark = "! "
				}
			}
		}
		d.line(mark, lines[i])
	}
}

func (d *differ) sideBySide(a, b []string, edits []edit) {
	half := (d.width-3)/2 - 1
	show := func(left, mark, right string) {
		left, right = strings.TrimRight(left, "\n"), strings.TrimRight(right, "\n")
		if len(left) > half {
			left = left[:half]
		}
		if len(right) > half {
			right = right[:half]
		}
		d.c.Out.WriteString(strings.TrimRight(fmt.Sprintf("%-*s %s %s", half, left, mark, right), " ") + "\n")
	}
	at, other := 0, 0
	for _, e := range append(edits, edit{len(a), len(a), len(b), len(b)}) {
		for ; at < e.a0; at, other = at+1, other+1 {
			show(a[at], " ", b[other])
		}
		for at < e.a1 || other < e.b1 {
			switch {
			case at < e.a1 && other < e.b1:
				show(a[at], "|", b[other])
				at, other = at+1, other+1
			case at < e.a1:
				show(a[at], "<", "")
				at++
			default:
				show("", ">", b[other])
				other++
			}
		}
	}
}
