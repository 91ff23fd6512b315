package shell

import (
	"sort"
	"strings"
)

type options struct {
	allexport, braceexpand, errexit, errtrace, functrace, hashall, interactiveComments, keyword, monitor, noclobber, noexec, noglob   bool
	nounset, pipefail, posix, privileged, physical, verbose, xtrace, onecmd, notify, histexpand, history, ignoreeof, nolog, vi, emacs bool
}

type optionEntry struct {
	letter byte
	name   string
	field  func(*options) *bool
}

var optionTable = []optionEntry{
	{'a', "allexport", func(o *options) *bool { return &o.allexport }},
	{'B', "braceexpand", func(o *options) *bool { return &o.braceexpand }},
	{0, "emacs", func(o *options) *bool { return &o.emacs }},
	{'e', "errexit", func(o *options) *bool { return &o.errexit }},
	{'E', "errtrace", func(o *options) *bool { return &o.errtrace }},
	{'T', "functrace", func(o *options) *bool { return &o.functrace }},
	{'h', "hashall", func(o *options) *bool { return &o.hashall }},
	{'H', "histexpand", func(o *options) *bool { return &o.histexpand }},
	{0, "history", func(o *options) *bool { return &o.history }},
	{0, "ignoreeof", func(o *options) *bool { return &o.ignoreeof }},
	{0, "interactive-comments", func(o *options) *bool { return &o.interactiveComments }},
	{'k', "keyword", func(o *options) *bool { return &o.keyword }},
	{'m', "monitor", func(o *options) *bool { return &o.monitor }},
	{'C', "noclobber", func(o *options) *bool { return &o.noclobber }},
	{'n', "noexec", func(o *options) *bool { return &o.noexec }},
	{'f', "noglob", func(o *options) *bool { return &o.noglob }},
	{0, "nolog", func(o *options) *bool { return &o.nolog }},
	{'b', "notify", func(o *options) *bool { return &o.notify }},
	{'u', "nounset", func(o *options) *bool { return &o.nounset }},
	{'t', "onecmd", func(o *options) *bool { return &o.onecmd }},
	{'P', "physical", func(o *options) *bool { return &o.physical }},
	{0, "pipefail", func(o *options) *bool { return &o.pipefail }},
	{0, "posix", func(o *options) *bool { return &o.posix }},
	{'p', "privileged", func(o *options) *bool { return &o.privileged }},
	{'v', "verbose", func(o *options) *bool { return &o.verbose }},
	{0, "vi", func(o *options) *bool { return &o.vi }},
	{'x', "xtrace", func(o *options) *bool { return &o.xtrace }},
}

func (s *Shell) optionByLetter(letter byte) *bool {
	for _, entry := range optionTable {
		if entry.letter == letter && letter != 0 {
			return entry.field(&s.opts)
		}
	}
	return nil
}

func (s *Shell) optionByName(name string) *bool {
	for _, entry := range optionTable {
		if entry.name == name {
			return entry.field(&s.opts)
		}
	}
	return nil
}

func (s *Shell) optionLetters() string {
	var letters []byte
	for _, entry := range optionTable {
		if entry.letter != 0 && *entry.field(&s.opts) {
			letters = append(letters, entry.letter)
		}
	}
	sort.Slice(letters, func(i, j int) bool {
		return lowerFirst(letters[i]) < lowerFirst(letters[j])
	})
	return string(letters)
}

func lowerFirst(b byte) int {
	if b >= 'a' {
		return int(b)
	}
	return int(b) + 256
}

func (s *Shell) enabledOptions() []string {
	var names []string
	for _, entry := range optionTable {
		if *entry.field(&s.opts) {
			names = append(names, entry.name)
		}
	}
	return names
}

var shoptNames = strings.Fields(`assoc_expand_once autocd cdable_vars cdspell checkhash checkjobs checkwinsize cmdhist compat31 compat32 compat40
compat41 compat42 compat43 compat44 complete_fullquote direxpand dirspell dotglob execfail expand_aliases extdebug extglob extquote failglob
force_fignore globasciiranges globskipdots globstar gnu_errfmt histappend histreedit histverify hostcomplete huponexit inherit_errexit interactive_comments
lastpipe lithist localvar_inherit localvar_unset login_shell mailwarn no_empty_cmd_completion nocaseglob nocasematch noexpand_translation nullglob
patsub_replacement progcomp progcomp_alias promptvars restricted_shell shift_verbose sourcepath varredir_close xpg_echo`)

func isShoptName(name string) bool {
	for _, known := range shoptNames {
		if known == name {
			return true
		}
	}
	return false
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
