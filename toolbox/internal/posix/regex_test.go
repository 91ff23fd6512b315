package posix

import "testing"

func TestDialects(t *testing.T) {
	for _, one := range []struct {
		source, text string
		options      Options
		want         bool
	}{
		{`a\{2\}b*`, "xaab", Options{}, true},
		{`*a`, "*a", Options{}, true},
		{`a+`, "a+", Options{}, true},
		{`a+`, "aaa", Options{Extended: true}, true},
		{`a{,2}$`, "baa", Options{Extended: true}, true},
		{`[]a]`, "]", Options{}, true},
		{`[\n]`, "n", Options{}, true},
		{`\(.\)\1`, "hello", Options{}, true},
		{`\(.\)\1`, "helo", Options{}, false},
		{`foo`, "foobar", Options{WholeLine: true}, false},
		{`fo*`, "foo-bar", Options{WholeWord: true}, true},
		{`(?<=a)b`, "ab", Options{Perl: true}, true},
		{`a.c`, "a.c", Options{Fixed: true}, true},
		{`a.c`, "abc", Options{Fixed: true}, false},
	} {
		regex, err := Compile(one.source, one.options)
		if err != nil {
			t.Errorf("%s: %v", one.source, err)
			continue
		}
		if got := regex.Match([]byte(one.text)); got != one.want {
			t.Errorf("%q on %q: %v", one.source, one.text, got)
		}
	}
}

func TestLeftmostLongest(t *testing.T) {
	regex, err := Compile(`a|ab`, Options{Extended: true})
	if err != nil {
		t.Fatal(err)
	}
	if match := regex.FindIndex([]byte("xab"), 0); match[0] != 1 || match[1] != 3 {
		t.Errorf("got %v", match)
	}
}
