// Package strftime formats times as the C library does.
package strftime

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Zone resolves a TZ value: empty and "UTC" are UTC, names come from the embedded database, "EST5EDT"-like offsets are understood.
func Zone(name string) *time.Location {
	name = strings.TrimPrefix(name, ":")
	switch name {
	case "", "UTC", "UTC0", "GMT", "GMT0", "Z":
		return time.UTC
	}
	if zone, err := time.LoadLocation(name); err == nil {
		return zone
	}
	return offsetZone(name)
}

// offsetZone reads POSIX "ABC-3:30" (hours west of Greenwich).
func offsetZone(name string) *time.Location {
	at := strings.IndexAny(name, "+-0123456789")
	if at < 3 {
		return time.UTC
	}
	label, rest := name[:at], name[at:]
	sign := -1
	if rest[0] == '-' {
		sign = 1
	}
	rest = strings.TrimLeft(rest, "+-")
	end := 0
	for end < len(rest) && (rest[end] >= '0' && rest[end] <= '9' || rest[end] == ':') {
		end++
	}
	hours, minutes, _ := strings.Cut(rest[:end], ":")
	h, _ := strconv.Atoi(hours)
	m, _ := strconv.Atoi(minutes)
	return time.FixedZone(strings.Trim(label, "<>"), sign*(h*3600+m*60))
}

// Format implements the conversions of GNU date, with its flags and widths.
func Format(layout string, when time.Time) string {
	var out strings.Builder
	for i := 0; i < len(layout); i++ {
		if layout[i] != '%' || i+1 == len(layout) {
			out.WriteByte(layout[i])
			continue
		}
		i++
		flags, width := "", 0
		for i < len(layout) && strings.IndexByte("-_0^#", layout[i]) >= 0 {
			flags += string(layout[i])
			i++
		}
		for i < len(layout) && layout[i] >= '0' && layout[i] <= '9' {
			width = width*10 + int(layout[i]-'0')
			i++
		}
		colons := 0
		for i < len(layout) && layout[i] == ':' {
			colons++
			i++
		}
		for i < len(layout)-1 && (layout[i] == 'E' || layout[i] == 'O') {
			i++
		}
		if i >= len(layout) {
			break
		}
		text, pad, size := convert(layout[i], colons, when)
		out.WriteString(adjust(text, flags, width, pad, size))
	}
	return out.String()
}

func adjust(text, flags string, width int, pad byte, size int) string {
	if width > 0 {
		size = width
	}
	for _, flag := range flags {
		switch flag {
		case '-':
			size = 0
			if pad != 0 {
				text = strings.TrimLeft(text, "0 ")
				if text == "" {
					text = "0"
				}
			}
		case '_':
			if pad == '0' {
				text = strings.TrimLeft(text, "0")
				if text == "" {
					text = "0"
				}
			}
			pad = ' '
		case '0':
			text = strings.TrimLeft(text, " ")
			pad = '0'
		case '^', '#':
			text = strings.ToUpper(text)
		}
	}
	if pad == 0 {
		pad = ' '
	}
	for len(text) < size {
		text = string(pad) + text
	}
	return text
}

// convert returns the text, its padding character (0 for text) and the default width.
func convert(verb byte, colons int, t time.Time) (string, byte, int) {
	number := func(value, size int) (string, byte, int) { return fmt.Sprintf("%0*d", size, value), '0', size }
	blank := func(value, size int) (string, byte, int) { return fmt.Sprintf("%*d", size, value), ' ', size }
	words := func(layout string) (string, byte, int) { return Format(layout, t), 0, 0 }
	hour12 := (t.Hour()+11)%12 + 1
	year, week := t.ISOWeek()
	switch verb {
	case 'Y':
		return strconv.Itoa(t.Year()), '0', 0
	case 'C':
		return number(t.Year()/100, 2)
	case 'y':
		return number(t.Year()%100, 2)
	case 'm':
		return number(int(t.Month()), 2)
	case 'd':
		return number(t.Day(), 2)
	case 'e':
		return blank(t.Day(), 2)
	case 'H':
		return number(t.Hour(), 2)
	case 'k':
		return blank(t.Hour(), 2)
	case 'I':
		return number(hour12, 2)
	case 'l':
		return blank(hour12, 2)
	case 'M':
		return number(t.Minute(), 2)
	case 'S':
		return number(t.Second(), 2)
	case 'N':
		return fmt.Sprintf("%09d", t.Nanosecond()), 0, 0
	case 'j':
		return number(t.YearDay(), 3)
	case 'u':
		return strconv.Itoa((int(t.Weekday())+6)%7 + 1), '0', 1
	case 'w':
		return strconv.Itoa(int(t.Weekday())), '0', 1
	case 'q':
		return strconv.Itoa((int(t.Month())-1)/3 + 1), '0', 1
	case 'V':
		return number(week, 2)
	case 'G':
		return strconv.Itoa(year), '0', 0
	case 'g':
		return number(year%100, 2)
	case 'U':
		return number((t.YearDay()+6-int(t.Weekday()))/7, 2)
	case 'W':
		return number((t.YearDay()+6-(int(t.Weekday())+6)%7)/7, 2)
	case 's':
		return strconv.FormatInt(t.Unix(), 10), '0', 0
	case 'a':
		return t.Format("Mon"), 0, 0
	case 'A':
		return t.Weekday().String(), 0, 0
	case 'b', 'h':
		return t.Format("Jan"), 0, 0
	case 'B':
		return t.Month().String(), 0, 0
	case 'p':
		return t.Format("PM"), 0, 0
	case 'P':
		return strings.ToLower(t.Format("PM")), 0, 0
	case 'Z':
		name, _ := t.Zone()
		return name, 0, 0
	case 'z':
		return zoneOffset(t, colons), 0, 0
	case 'D', 'x':
		return words("%m/%d/%y")
	case 'F':
		return words("%Y-%m-%d")
	case 'T', 'X':
		return words("%H:%M:%S")
	case 'R':
		return words("%H:%M")
	case 'r':
		return words("%I:%M:%S %p")
	case 'c':
		return words("%a %b %e %H:%M:%S %Y")
	case 'n':
		return "\n", 0, 0
	case 't':
		return "\t", 0, 0
	case '%':
		return "%", 0, 0
	}
	return "%" + string(verb), 0, 0
}

func zoneOffset(t time.Time, colons int) string {
	switch colons {
	case 1:
		return t.Format("-07:00")
	case 2:
		return t.Format("-07:00:00")
	}
	return t.Format("-0700")
}
