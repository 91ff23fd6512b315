// Package posix gives basic, extended and Perl regular expressions with GNU extensions, on top of Go's engine; expressions with
// back-references or look-around go to a backtracking engine.
package posix

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2"

	"warmcell/toolbox/internal/bytescan"
)

// Options choose the dialect.
type Options struct {
	Extended   bool
	Perl       bool
	Fixed      bool
	IgnoreCase bool
	Multiline  bool // ^ and $ match at line breaks
	WholeLine  bool
	WholeWord  bool
	Escapes    bool // \n and \t mean newline and tab, also in brackets (sed)
	NoDotNL    bool // "." does not match a newline
}

// Regex is a compiled expression.
type Regex struct {
	fast      *regexp.Regexp
	positions *regexp.Regexp // leftmost-longest
	slow      *regexp2.Regexp
	required  *bytescan.Finder // every match contains this text
	isLiteral bool             // the whole expression is that text
	wholeWord bool
	groups    int
	states    *dfa
	asked     int // how often Match ran the engine: states pay when there are many lines
}

const timesUntilStatesPay = 16

// Compile translates and compiles.
func Compile(source string, o Options) (*Regex, error) {
	if o.Fixed && !o.IgnoreCase && !o.WholeLine && !o.WholeWord {
		r := &Regex{fast: regexp.MustCompile(regexp.QuoteMeta(source))}
		r.require(source, false)
		r.isLiteral = true
		return r, nil
	}
	translated, backrefs, err := translate(source, o)
	if err != nil {
		return nil, err
	}
	flags := "s"
	if o.NoDotNL {
		flags = ""
	}
	if o.IgnoreCase {
		flags += "i"
	}
	if o.Multiline {
		flags += "m"
	}
	if o.WholeLine {
		translated = "^(?:" + translated + ")$"
	}
	if flags != "" {
		flags = "(?" + flags + ")"
	}
	r := &Regex{wholeWord: o.WholeWord && !o.WholeLine}
	if !backrefs {
		if compiled, err := regexp.Compile(flags + translated); err == nil {
			r.setFast(compiled, o)
			return r, nil
		} else if !o.Perl {
			return nil, clarify(err)
		}
	}
	return r, r.setSlow(translated, o)
}

func (r *Regex) setFast(compiled *regexp.Regexp, o Options) {
	r.fast = compiled
	r.groups = compiled.NumSubexp()
	r.positions = compiled
	if !o.Perl && !o.Fixed && strings.ContainsAny(compiled.String(), "|?{*") {
		longest := compiled.Copy()
		longest.Longest()
		r.positions = longest
	}
	parsed, err := syntax.Parse(compiled.String(), syntax.Perl)
	if err != nil {
		return
	}
	text, folded := requiredLiteral(parsed)
	r.require(text, folded)
	r.isLiteral = parsed.Op == syntax.OpLiteral && !r.wholeWord && len(text) == len(string(parsed.Rune))
}

func (r *Regex) require(text string, folded bool) {
	if text != "" {
		r.required = bytescan.NewFinder([]byte(text), folded)
	}
}

// requiredLiteral finds the longest text that every match must contain, in any case of its letters if folded.
func requiredLiteral(re *syntax.Regexp) (text string, folded bool) {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return string(re.Rune), false
		}
		return longestFoldable(re.Rune), true
	case syntax.OpCapture, syntax.OpPlus:
		return requiredLiteral(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return requiredLiteral(re.Sub[0])
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if other, isOtherFolded := requiredLiteral(sub); len(other) > len(text) {
				text, folded = other, isOtherFolded
			}
		}
	}
	return text, folded
}

// longestFoldable is the longest part of which only ASCII characters are other cases: K and S have one more each, the
// Kelvin sign and the long s.
func longestFoldable(text []rune) string {
	best, start := "", 0
	for i := 0; i <= len(text); i++ {
		if i < len(text) && text[i] < utf8.RuneSelf && !strings.ContainsRune("KkSs", text[i]) {
			continue
		}
		if part := string(text[start:i]); len(part) > len(best) {
			best = part
		}
		start = i + 1
	}
	return best
}

func (r *Regex) setSlow(translated string, o Options) error {
	options := regexp2.RegexOptions(0)
	if o.IgnoreCase {
		options |= regexp2.IgnoreCase
	}
	if o.Multiline {
		options |= regexp2.Multiline
	}
	if !o.NoDotNL {
		options |= regexp2.Singleline
	}
	if at := strings.Index(translated, `\K`); at >= 0 && o.Perl {
		translated = "(?<=" + translated[:at] + ")" + translated[at+2:]
	}
	if !o.Multiline {
		translated = dollarToEnd(translated)
	}
	compiled, err := regexp2.Compile(translated, options)
	if err != nil {
		return errors.New("Invalid regular expression")
	}
	r.slow = compiled
	r.groups = len(compiled.GetGroupNumbers()) - 1
	return nil
}

// In regexp2 "$" also matches before a final newline; POSIX has no such rule.
func dollarToEnd(source string) string {
	var out strings.Builder
	inClass := false
	for i := 0; i < len(source); i++ {
		switch c := source[i]; {
		case c == '\\' && i+1 < len(source):
			out.WriteByte(c)
			i++
			out.WriteByte(source[i])
			continue
		case c == '[':
			inClass = true
		case c == ']':
			inClass = false
		case c == '$' && !inClass:
			out.WriteString(`\z`)
			continue
		}
		out.WriteByte(source[i])
	}
	return out.String()
}

func clarify(err error) error {
	var problem *syntax.Error
	if !errors.As(err, &problem) {
		return err
	}
	switch problem.Code {
	case syntax.ErrMissingBracket:
		return errors.New("Unmatched [, [^, [:, [., or [=")
	case syntax.ErrMissingParen:
		return errors.New("Unmatched ( or \\(")
	case syntax.ErrUnexpectedParen:
		return errors.New("Unmatched ) or \\)")
	case syntax.ErrInvalidCharRange:
		return errors.New("Invalid range end")
	case syntax.ErrInvalidRepeatSize:
		return errors.New("Regular expression too big")
	case syntax.ErrInvalidRepeatOp, syntax.ErrMissingRepeatArgument:
		return errors.New("Invalid preceding regular expression")
	case syntax.ErrTrailingBackslash:
		return errors.New("Trailing backslash")
	}
	return errors.New("Invalid regular expression")
}

// Groups returns the number of sub-expressions.
func (r *Regex) Groups() int { return r.groups }

// Literal looks for the text when the expression is nothing but text; else nil.
func (r *Regex) Literal() *bytescan.Finder {
	if r.isLiteral {
		return r.required
	}
	return nil
}

// Required looks for text that every match contains; nil when there is none.
func (r *Regex) Required() *bytescan.Finder { return r.required }

// Match tells whether text contains a match.
func (r *Regex) Match(text []byte) bool {
	if r.wholeWord {
		return r.FindIndex(text, 0) != nil
	}
	if r.required != nil && r.states == nil { // with states, looking twice would only take longer
		hasText := r.required.Index(text) >= 0
		if r.isLiteral || !hasText {
			return hasText
		}
	}
	return r.matchEngine(text)
}

func (r *Regex) matchEngine(text []byte) bool {
	if r.slow != nil {
		matched, err := r.slow.MatchString(string(text))
		return err == nil && matched
	}
	if r.asked++; r.asked == timesUntilStatesPay {
		r.states = newDFA(r.fast.String())
	}
	if r.states != nil {
		if isMatch, isKnown := r.states.match(text); isKnown {
			return isMatch
		}
		r.states = nil
	}
	return r.fast.Match(text)
}

// FindIndex returns the first match at or after an offset, as pairs of offsets like regexp.FindSubmatchIndex.
func (r *Regex) FindIndex(text []byte, from int) []int {
	if !r.wholeWord && from == 0 {
		return r.first(text)
	}
	for _, match := range r.FindAll(text, -1) {
		if match[0] >= from {
			return match
		}
	}
	return nil
}

func (r *Regex) first(text []byte) []int {
	if r.slow != nil {
		all := r.slowAll(text, 1)
		if len(all) == 0 {
			return nil
		}
		return all[0]
	}
	if r.positions == nil {
		return r.fast.FindSubmatchIndex(text)
	}
	return r.positions.FindSubmatchIndex(text)
}

// FindAll returns up to n successive matches (n < 0: all).
func (r *Regex) FindAll(text []byte, n int) [][]int {
	if r.wholeWord {
		return r.words(text, n)
	}
	if r.slow != nil {
		return r.slowAll(text, n)
	}
	if r.positions == nil {
		return r.fast.FindAllSubmatchIndex(text, n)
	}
	return r.positions.FindAllSubmatchIndex(text, n)
}

func isWordByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= utf8.RuneSelf
}

// words keeps matches that stand alone as words; a longer match that does not is retried shorter and further on, as grep -w does.
func (r *Regex) words(text []byte, n int) [][]int {
	bare := *r
	bare.wholeWord = false
	var out [][]int
	for pos := 0; pos <= len(text) && (n < 0 || len(out) < n); {
		match := bare.first(text[pos:])
		if match == nil {
			break
		}
		for i := range match {
			if match[i] >= 0 {
				match[i] += pos
			}
		}
		start, end := match[0], match[1]
		before := start == 0 || !isWordByte(text[start-1])
		after := end == len(text) || !isWordByte(text[end])
		if before && after && end > start {
			out = append(out, match)
			pos = end
			continue
		}
		if shorter := bare.shorterWord(text, start, end, before); shorter > start {
			out = append(out, []int{start, shorter})
			pos = shorter
			continue
		}
		pos = start + 1
	}
	return out
}

func (r *Regex) shorterWord(text []byte, start, end int, before bool) int {
	if !before {
		return -1
	}
	for stop := end - 1; stop > start; stop-- {
		if isWordByte(text[stop]) {
			continue
		}
		if match := r.first(text[start:stop]); match != nil && match[0] == 0 && match[1] == stop-start {
			return stop
		}
	}
	return -1
}

func (r *Regex) slowAll(text []byte, n int) [][]int {
	runes := []rune(string(text))
	offsets := make([]int, 0, len(runes)+1)
	for i := range string(text) {
		offsets = append(offsets, i)
	}
	offsets = append(offsets, len(text))
	var out [][]int
	match, err := r.slow.FindRunesMatch(runes)
	previousEnd := -1
	for err == nil && match != nil && (n < 0 || len(out) < n) {
		start, end := match.Index, match.Index+match.Length
		if !(start == end && start == previousEnd) {
			out = append(out, groupOffsets(match, offsets))
		}
		previousEnd = end
		match, err = r.slow.FindNextMatch(match)
	}
	return out
}

func groupOffsets(match *regexp2.Match, offsets []int) []int {
	groups := match.Groups()
	result := make([]int, 0, len(groups)*2)
	for _, group := range groups {
		if len(group.Captures) == 0 {
			result = append(result, -1, -1)
			continue
		}
		result = append(result, offsets[group.Index], offsets[group.Index+group.Length])
	}
	return result
}
