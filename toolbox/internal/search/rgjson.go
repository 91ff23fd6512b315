package search

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// jsonReport writes what rg --json does: one object per line, "begin" and "end" around the matches of each file that has
// any, and a summary. Options that only change how lines look (-o, -r, --trim) change nothing here.
type jsonReport struct {
	g       *grepper
	born    time.Time
	started time.Time // when the search of the file at hand began
	file    jsonStats
	total   jsonStats
}

type jsonStats struct {
	elapsed                        time.Duration
	searched, printed              int
	searches, lines, matches, hits int
}

func (s *jsonStats) add(other jsonStats) {
	s.elapsed += other.elapsed
	s.searched += other.searched
	s.printed += other.printed
	s.searches += other.searches
	s.hits += other.hits
	s.lines += other.lines
	s.matches += other.matches
}

func newJSONReport(g *grepper) *jsonReport { return &jsonReport{g: g, born: time.Now()} }

func (r *jsonReport) write(text string) {
	r.file.printed += len(text) + 1
	r.g.c.Out.WriteString(text + "\n")
}

// line reports a match, or a line around one.
func (r *jsonReport) line(s *scanState, line []byte, isMatch bool, number, offset int) {
	if r.file.printed == 0 {
		r.write(`{"type":"begin","data":{"path":` + jsonText([]byte(s.name)) + `}}`)
	}
	kind := "context"
	spans := r.spans(line, isMatch)
	if isMatch {
		kind = "match"
		r.file.lines++
		r.file.matches += len(spans)
	}
	found := make([]string, len(spans))
	for i, span := range spans {
		found[i] = fmt.Sprintf(`{"match":%s,"start":%d,"end":%d}`, jsonText(line[span[0]:span[1]]), span[0], span[1])
	}
	// Lines of the history came before another line, so they had an end.
	whole := line
	if s.isTerminated || number < s.line {
		whole = append(append(make([]byte, 0, len(line)+1), line...), r.g.delimiter)
	}
	r.write(fmt.Sprintf(`{"type":"%s","data":{"path":%s,"lines":%s,"line_number":%d,"absolute_offset":%d,"submatches":[%s]}}`,
		kind, jsonText([]byte(s.name)), jsonText(whole), number, offset, strings.Join(found, ",")))
}

// spans: an inverted search selects lines without matches, so that only the lines around them can have some.
func (r *jsonReport) spans(line []byte, isMatch bool) [][]int {
	if isMatch == r.g.invert {
		return nil
	}
	return r.g.spans(line)
}

func (r *jsonReport) end(s *scanState) {
	if r.file.printed == 0 {
		return
	}
	r.file.elapsed, r.file.searched = time.Since(r.started), s.offset
	r.file.searches, r.file.hits = 1, 1
	zeroAt := "null"
	if s.binary {
		zeroAt, r.file.searched = strconv.Itoa(s.zeroAt), s.zeroAt
	}
	r.total.add(r.file)
	f := r.file
	r.write(fmt.Sprintf(`{"type":"end","data":{"path":%s,"binary_offset":%s,"stats":{"elapsed":%s,"searches":%d,"searches_with_match":%d,"bytes_searched":%d,"bytes_printed":%d,"matched_lines":%d,"matches":%d}}}`,
		jsonText([]byte(s.name)), zeroAt, jsonDuration(`{"secs":%[1]d,"nanos":%[2]d,"human":"%[3]s"}`, f.elapsed), f.searches, f.hits, f.searched, f.printed, f.lines, f.matches))
	r.file = jsonStats{}
}

func (r *jsonReport) summary() {
	const layout = `{"human":"%[3]s","nanos":%[2]d,"secs":%[1]d}`
	t := r.total
	r.write(fmt.Sprintf(`{"data":{"elapsed_total":%s,"stats":{"bytes_printed":%d,"bytes_searched":%d,"elapsed":%s,"matched_lines":%d,"matches":%d,"searches":%d,"searches_with_match":%d}},"type":"summary"}`,
		jsonDuration(layout, time.Since(r.born)), t.printed, t.searched, jsonDuration(layout, t.elapsed), t.lines, t.matches, t.searches, t.hits))
}

func jsonDuration(layout string, elapsed time.Duration) string {
	return fmt.Sprintf(layout, elapsed/time.Second, elapsed%time.Second, fmt.Sprintf("%.6fs", elapsed.Seconds()))
}

// jsonText is text where it can be, base64 where the bytes are not UTF-8.
func jsonText(data []byte) string {
	if !utf8.Valid(data) {
		return `{"bytes":"` + base64.StdEncoding.EncodeToString(data) + `"}`
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(string(data)) != nil { // a string always can be encoded
		return `{"text":""}`
	}
	return `{"text":` + strings.TrimSuffix(out.String(), "\n") + `}`
}
