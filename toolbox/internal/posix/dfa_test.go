package posix

import (
	"math/rand"
	"regexp"
	"strings"
	"testing"
)

// randomPattern builds an expression of all kinds of pieces, so that the two engines meet each of them in each other.
func randomPattern(chance *rand.Rand, depth int) string {
	atoms := []string{"a", "b", "ab", ".", "[a-c]", "[^a]", "é", "[é-ü]", `\b`, `\B`, "^", "$", `\A`, `\z`, `\w`, `\W`, `\d`, " ", "x?", "(?i)K", "s", `\n`, ""}
	if depth == 0 {
		return atoms[chance.Intn(len(atoms))]
	}
	part := func() string { return randomPattern(chance, depth-1) }
	switch chance.Intn(6) {
	case 0:
		return "(?:" + part() + "|" + part() + ")"
	case 1:
		return "(?:" + part() + ")" + []string{"*", "+", "?", "{2}", "{1,3}"}[chance.Intn(5)]
	case 2:
		return "(" + part() + ")"
	}
	return part() + part()
}

func randomLine(chance *rand.Rand) string {
	var out strings.Builder
	for range chance.Intn(14) {
		out.WriteString([]string{"a", "b", "c", "x", " ", "_", "1", "é", "ü", "K", "k", "\u212a", "ſ", "s", "\n", "\xff", "\xc3"}[chance.Intn(17)])
	}
	return out.String()
}

func TestStatesAgreeWithGo(t *testing.T) {
	chance := rand.New(rand.NewSource(3))
	for range 3000 {
		pattern := []string{"(?s)", "(?m)", "(?i)", ""}[chance.Intn(4)] + randomPattern(chance, 1+chance.Intn(3))
		reference, err := regexp.Compile(pattern)
		if err != nil {
			continue
		}
		states := newDFA(pattern)
		for range 20 {
			line := randomLine(chance)
			got, isKnown := states.match([]byte(line))
			if want := reference.MatchString(line); !isKnown || got != want {
				t.Fatalf("%q on %q: %v (known %v), not %v", pattern, line, got, isKnown, want)
			}
		}
	}
}

func TestTextThatNeverRepeatsIsGivenUp(t *testing.T) {
	// Each state remembers where in the last 20 characters an "a" was: there are a million of them.
	states := newDFA("a.{20}x")
	chance := rand.New(rand.NewSource(4))
	line := make([]byte, 200_000)
	for i := range line {
		line[i] = "ab"[chance.Intn(2)]
	}
	if _, isKnown := states.match(line); isKnown {
		t.Error("it should have said that it does not know")
	}
	if len(states.states) > mostStates {
		t.Errorf("%d states are kept", len(states.states))
	}
}

func TestMatchAgreesWithTheEngineBelow(t *testing.T) {
	chance := rand.New(rand.NewSource(5))
	exotic := strings.NewReplacer("k", "\u212a", "s", "ſ")
	for _, pattern := range []string{"disk", "K", "needle", "a|b", "ask me", "é", "x[0-9]+s", "strasse"} {
		for _, fold := range []bool{false, true} {
			regex, err := Compile(pattern, Options{Extended: true, IgnoreCase: fold})
			if err != nil {
				t.Fatal(err)
			}
			for range 200 {
				parts := []string{"", pattern, strings.ToUpper(pattern), exotic.Replace(pattern), pattern[:len(pattern)-1]}
				line := randomLine(chance) + parts[chance.Intn(len(parts))] + randomLine(chance)
				if got, want := regex.Match([]byte(line)), regex.fast.MatchString(line); got != want {
					t.Fatalf("%q (fold %v) on %q: %v, not %v", pattern, fold, line, got, want)
				}
			}
		}
	}
	folded, _ := Compile("disk", Options{IgnoreCase: true})
	if !folded.Match([]byte("DI\u017f\u212a")) {
		t.Error("the long s and the Kelvin sign are cases of s and k")
	}
}
