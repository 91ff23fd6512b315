package shell

import (
	"bytes"
	"testing"

	"warmcell/toolbox/internal/core"
)

func run(t *testing.T, script string) string {
	t.Helper()
	var out bytes.Buffer
	c := &core.Ctx{Dir: t.TempDir(), Stdin: core.Null, Stdout: &out, Stderr: &out, Args: []string{"-c", script}}
	core.Invoke(core.Lookup("bash"), c)
	return out.String()
}

func TestScripts(t *testing.T) {
	for script, want := range map[string]string{
		`x="a b"; for w in $x "$x"; do echo "<$w>"; done`:                         "<a>\n<b>\n<a b>\n",
		`echo ${x:-d} ${x=e} $x; y=abcabc; echo ${y//b/X}`:                        "d e e\naXcaXc\n",
		`IFS=:; set -- a b; echo "$*"; f=x::y; for i in $f; do echo "[$i]"; done`: "a:b\n[x]\n[]\n[y]\n",
		`echo hi | { read l; echo "got $l"; }; echo $((7/2)) $((2**8))`:           "got hi\n3 256\n",
		`[[ abc == a* && 10 -gt 9 ]] && echo yes`:                                 "yes\n",
		`f() { local v=1; v+=2; echo $v; }; f; echo "${v-none}"`:                  "12\nnone\n",
	} {
		if got := run(t, script); got != want {
			t.Errorf("%s\ngot  %q\nwant %q", script, got, want)
		}
	}
}
