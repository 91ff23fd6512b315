// Package clock understands dates as people write them for date -d and touch -d.
package clock

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

var layouts = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05.999999999 -0700", "2006-01-02 15:04:05 -0700", "2006-01-02 15:04:05.999999999",
	"2006-01-02 15:04:05 MST", "2006-01-02 15:04:05", "2006-01-02 15:04 MST", "2006-01-02 15:04", "2006-01-02", "2006/01/02 15:04:05", "2006/01/02", "01/02/2006 15:04:05", "01/02/2006", "1/2/2006", "01/02/06",
	"20060102 15:04:05", "20060102T150405", "20060102", "2 Jan 2006 15:04:05", "2 Jan 2006 15:04", "2 Jan 2006", "02-Jan-2006", "Jan 2 2006 15:04:05", "Jan 2 2006", "Jan 2, 2006", "January 2, 2006", "January 2 2006", "2 January 2006",
	"January 2, 2006 15:04:05", "Mon, 02 Jan 2006 15:04:05 -0700", "Mon, 2 Jan 2006 15:04:05 -0700", "Mon, 02 Jan 2006 15:04:05 MST", "Mon Jan 2 15:04:05 MST 2006", "Mon Jan _2 15:04:05 MST 2006", "Mon Jan 2 15:04:05 2006", "Mon, 02 Jan 2006",
	"Mon 2 Jan 2006", "15:04:05", "15:04", "3:04pm", "3:04 PM", "3pm",
}

// Parse reads absolute dates, "@seconds", and relative items such as "yesterday", "2 days ago", "next monday", "+1 week".
func Parse(text string, now time.Time) (time.Time, bool) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "@") {
		return epoch(text[1:])
	}
	zone := now.Location()
	if rest, name, ok := cutZone(text); ok {
		text, zone = rest, name
		now = now.In(zone)
	}
	if when, ok := absolute(text, now, zone); ok {
		return when, true
	}
	fields := strings.Fields(strings.ToLower(text))
	for n := len(fields) - 1; n > 0; n-- {
		head := strings.Join(strings.Fields(text)[:n], " ")
		if when, ok := absolute(head, now, zone); ok {
			return relative(fields[n:], when)
		}
	}
	when, ok := relative(fields, now)
	return when, ok
}

func cutZone(text string) (string, *time.Location, bool) {
	for _, suffix := range []string{" UTC", " GMT", " Z"} {
		if strings.HasSuffix(text, suffix) {
			return strings.TrimSuffix(text, suffix), time.UTC, true
		}
	}
	return text, nil, false
}

func epoch(text string) (time.Time, bool) {
	whole, fraction, _ := strings.Cut(text, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	nanos, _ := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	return time.Unix(seconds, nanos), true
}

func absolute(text string, now time.Time, zone *time.Location) (time.Time, bool) {
	for _, layout := range layouts {
		when, err := time.ParseInLocation(layout, text, zone)
		if err != nil {
			continue
		}
		if !strings.Contains(layout, "06") {
			when = time.Date(now.Year(), now.Month(), now.Day(), when.Hour(), when.Minute(), when.Second(), 0, zone)
		}
		return when, true
	}
	return time.Time{}, false
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

func weekday(word string) (int, bool) {
	if len(word) < 3 {
		return 0, false
	}
	for i, name := range weekdays {
		if strings.HasPrefix(word, name) && strings.HasPrefix(strings.ToLower(time.Weekday(i).String()), word) {
			return i, true
		}
	}
	return 0, false
}

var signedUnit = regexp.MustCompile(`^([+-]?\d+)([a-z]*)$`)

func relative(words []string, when time.Time) (time.Time, bool) {
	if len(words) == 0 {
		return when, false
	}
	amount, pending := 1, false
	for i := 0; i < len(words); i++ {
		word := strings.Trim(words[i], ",")
		switch word {
		case "now", "today":
			continue
		case "yesterday":
			when = when.AddDate(0, 0, -1)
			continue
		case "tomorrow":
			when = when.AddDate(0, 0, 1)
			continue
		case "midnight":
			when = time.Date(when.Year(), when.Month(), when.Day(), 0, 0, 0, 0, when.Location())
			continue
		case "noon":
			when = time.Date(when.Year(), when.Month(), when.Day(), 12, 0, 0, 0, when.Location())
			continue
		case "next", "last", "this":
			amount, pending = map[string]int{"next": 1, "last": -1, "this": 0}[word], true
			continue
		case "+", "-":
			if i+1 < len(words) {
				words[i+1] = word + words[i+1]
				continue
			}
			return when, false
		case "at", "and", "of", "ago":
			continue
		}
		if match := signedUnit.FindStringSubmatch(word); match != nil {
			amount, _ = strconv.Atoi(match[1])
			pending = true
			if match[2] == "" {
				continue
			}
			word = match[2]
		}
		count := amount
		if !pending {
			count = 1
		}
		for _, later := range words[i+1:] {
			if later == "ago" {
				count = -count
				break
			}
			if signedUnit.MatchString(later) {
				break
			}
		}
		if day, ok := weekday(word); ok {
			when = nextWeekday(when, day, amount, pending)
			pending, amount = false, 1
			continue
		}
		moved, ok := shift(when, word, count)
		if !ok {
			if clock, found := absolute(word, when, when.Location()); found {
				when = clock
				continue
			}
			return when, false
		}
		when, pending, amount = moved, false, 1
	}
	return when, !pending
}

func nextWeekday(when time.Time, day, amount int, pending bool) time.Time {
	midnight := time.Date(when.Year(), when.Month(), when.Day(), 0, 0, 0, 0, when.Location())
	ahead := (day - int(when.Weekday()) + 7) % 7
	switch {
	case pending && amount < 0:
		if ahead == 0 {
			return midnight.AddDate(0, 0, -7)
		}
		return midnight.AddDate(0, 0, ahead-7)
	case pending && amount > 0 && ahead == 0:
		ahead = 7
	}
	return midnight.AddDate(0, 0, ahead)
}

func shift(when time.Time, unit string, count int) (time.Time, bool) {
	switch strings.TrimSuffix(unit, "s") {
	case "sec", "second":
		return when.Add(time.Duration(count) * time.Second), true
	case "min", "minute":
		return when.Add(time.Duration(count) * time.Minute), true
	case "hour":
		return when.Add(time.Duration(count) * time.Hour), true
	case "day":
		return when.AddDate(0, 0, count), true
	case "week":
		return when.AddDate(0, 0, 7*count), true
	case "fortnight":
		return when.AddDate(0, 0, 14*count), true
	case "month":
		return when.AddDate(0, count, 0), true
	case "year":
		return when.AddDate(count, 0, 0), true
	}
	return when, false
}
