package bytescan

import (
	"bytes"
	"math/rand"
	"testing"
)

func randomText(chance *rand.Rand, alphabet string, most int) []byte {
	text := make([]byte, chance.Intn(most+1))
	for i := range text {
		text[i] = alphabet[chance.Intn(len(alphabet))]
	}
	return text
}

func TestCountAgreesWithBytes(t *testing.T) {
	chance := rand.New(rand.NewSource(1))
	for range 3000 {
		data := randomText(chance, "a\n\x00\x80\xff\x01\x8a\n", 70)
		for _, wanted := range []byte{'\n', 0, 0x80, 0xff} {
			if got, want := Count(data, wanted), bytes.Count(data, []byte{wanted}); got != want {
				t.Fatalf("%q in %q: %d, not %d", wanted, data, got, want)
			}
		}
	}
}

func TestIndexAgreesWithBytes(t *testing.T) {
	chance := rand.New(rand.NewSource(2))
	for range 20000 {
		alphabet := []string{"ab", "aB\x00\x80 ", "abcdefghijklmnop"}[chance.Intn(3)]
		data, text := randomText(chance, alphabet, 60), randomText(chance, alphabet, 5)
		if len(text) == 0 {
			continue
		}
		if got, want := NewFinder(text, false).Index(data), bytes.Index(data, text); got != want {
			t.Fatalf("%q in %q: %d, not %d", text, data, got, want)
		}
		if got, want := NewFinder(text, true).Index(data), bytes.Index(bytes.ToLower(data), bytes.ToLower(text)); got != want && isASCII(data) {
			t.Fatalf("%q in %q, any case: %d, not %d", text, data, got, want)
		}
	}
}

func isASCII(data []byte) bool {
	for _, b := range data {
		if b >= 0x80 {
			return false
		}
	}
	return true
}

func TestFoldedSearchKnowsLettersFromTheirNeighbours(t *testing.T) {
	for _, one := range []struct {
		text, data string
		want       int
	}{{"@", "`@", 1}, {"`", "@`", 1}, {"[x", "{x[X", 2}, {"needle", "xxxxxxxxxxxxxxxNEEDLE", 15}} {
		if got := NewFinder([]byte(one.text), true).Index([]byte(one.data)); got != one.want {
			t.Errorf("%q in %q: %d, not %d", one.text, one.data, got, one.want)
		}
	}
}
