// Package network holds curl, which reaches the network only through the host.
package network

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path"
	"sort"
	"strconv"
	"strings"
	"time"

	"warmcell/toolbox/internal/core"
	"warmcell/toolbox/internal/host"
)

func init() {
	core.Register(&core.Command{Name: "curl", Summary: "Transfer a URL through the sandbox's network policy.",
		Usage: "curl [-sSfLIiGOv] [-X METHOD] [-H HEADER]... [-d DATA]... [--data-binary DATA] [--data-urlencode DATA] [--json DATA] [-F NAME=VALUE]... [-u USER:PASS] [-A AGENT] [-e REFERER] [-o FILE] [-D FILE] [-m SECONDS] [-w FORMAT] URL...", Run: curl})
}

type transfer struct {
	c                                                          *core.Ctx
	method, output, user, writeOut, dumpHeaders                string
	headers                                                    []string
	data                                                       []string
	form                                                       []string
	hasData, json, head, include, silent, showErrors, failHTTP bool
	location, remoteName, get, verbose, createDirs             bool
	timeout                                                    float64
	urls                                                       []string
}

const curlShort = "X:H:d:o:OLIisSfu:m:w:kGA:e:vD:F:T:b:x:#gN46"
const curlLong = "request=/X header=/H data=/d data-raw= data-ascii=/d data-binary= data-urlencode= json= output=/o remote-name/O location/L head/I include/i silent/s show-error/S fail/f user=/u max-time=/m connect-timeout= write-out=/w insecure/k get/G user-agent=/A referer=/e verbose/v dump-header=/D form=/F cookie=/b url= compressed retry= create-dirs fail-with-body proxy=/x globoff/g no-buffer/N no-progress-meter http1.1 http2 proto= tlsv1.2 retry-delay= retry-connrefused max-redirs= request-target= progress-bar/# ipv4/4 ipv6/6"

func curl(c *core.Ctx) int {
	options, operands, ok := core.Options{Short: curlShort, Long: curlLong}.Parse(c)
	if !ok {
		return 2
	}
	t := &transfer{c: c, urls: operands}
	for _, option := range options {
		if code := t.set(option); code != 0 {
			return code
		}
	}
	if len(t.urls) == 0 {
		fmt.Fprintln(c.Stderr, "curl: (2) no URL specified\ncurl: try 'curl --help' for more information")
		return 2
	}
	code := 0
	for _, target := range t.urls {
		if result := t.fetch(target); result != 0 {
			code = result
		}
	}
	return code
}

func (t *transfer) set(option core.Option) int {
	switch option.Name {
	case "X":
		t.method = option.Value
	case "H":
		t.headers = append(t.headers, option.Value)
	case "d", "data-raw", "data-binary", "data-urlencode", "json":
		return t.addData(option.Name, option.Value)
	case "F":
		t.form = append(t.form, option.Value)
	case "o":
		t.output = option.Value
	case "O":
		t.remoteName = true
	case "L":
		t.location = true
	case "I":
		t.head = true
	case "i":
		t.include = true
	case "s":
		t.silent = true
	case "S":
		t.showErrors = true
	case "f", "fail-with-body":
		t.failHTTP = true
	case "u":
		t.user = option.Value
	case "m":
		t.timeout, _ = strconv.ParseFloat(option.Value, 64)
	case "w":
		t.writeOut = option.Value
	case "G":
		t.get = true
	case "A":
		t.headers = append(t.headers, "User-Agent: "+option.Value)
	case "e":
		t.headers = append(t.headers, "Referer: "+option.Value)
	case "b":
		t.headers = append(t.headers, "Cookie: "+option.Value)
	case "D":
		t.dumpHeaders = option.Value
	case "v":
		t.verbose = true
	case "url":
		t.urls = append(t.urls, option.Value)
	case "create-dirs":
		t.createDirs = true
	case "k":
		fmt.Fprintln(t.c.Stderr, "curl: (2) option -k: certificate checks cannot be switched off in the sandbox")
		return 2
	case "x":
		fmt.Fprintln(t.c.Stderr, "curl: (2) option -x: proxies are not available in the sandbox")
		return 2
	case "T":
		data, err := t.readFile(option.Value)
		if err != nil {
			return t.fail(26, "Can't open '%s'!", option.Value)
		}
		t.data, t.hasData = append(t.data, string(data)), true
		if t.method == "" {
			t.method = "PUT"
		}
	}
	return 0
}

func (t *transfer) readFile(name string) ([]byte, error) {
	reader, err := t.c.Open(name)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}

func (t *transfer) addData(kind, value string) int {
	t.hasData = true
	if kind == "data-urlencode" {
		if name, text, ok := strings.Cut(value, "="); ok && name != "" {
			value = name + "=" + url.QueryEscape(text)
		} else {
			value = url.QueryEscape(strings.TrimPrefix(value, "="))
		}
	} else if strings.HasPrefix(value, "@") && kind != "data-raw" {
		data, err := t.readFile(value[1:])
		if err != nil {
			return t.fail(26, "Failed to open %s", value[1:])
		}
		value = string(data)
		if kind == "d" {
			value = strings.NewReplacer("\r", "", "\n", "").Replace(value)
		}
	}
	t.json = t.json || kind == "json"
	t.data = append(t.data, value)
	return 0
}

func (t *transfer) fail(code int, format string, args ...any) int {
	if !t.silent || t.showErrors {
		t.c.Out.Flush()
		fmt.Fprintf(t.c.Stderr, "curl: (%d) %s\n", code, fmt.Sprintf(format, args...))
	}
	return code
}

func (t *transfer) request(target string) host.FetchRequest {
	request := host.FetchRequest{URL: target, Method: t.method, Headers: map[string]string{}, Timeout: t.timeout, FollowRedirects: t.location}
	joiner := "&"
	if t.json {
		joiner = ""
		request.Headers["Content-Type"], request.Headers["Accept"] = "application/json", "application/json"
	}
	body := strings.Join(t.data, joiner)
	if t.hasData && t.get {
		separator := "?"
		if strings.Contains(target, "?") {
			separator = "&"
		}
		request.URL += separator + body
		body = ""
	} else if t.hasData && !t.json {
		request.Headers["Content-Type"] = "application/x-www-form-urlencoded"
	}
	if len(t.form) > 0 {
		boundary := fmt.Sprintf("------------------------%016x", core.Random64())
		request.Headers["Content-Type"] = "multipart/form-data; boundary=" + boundary
		body = t.multipart(boundary)
	}
	if t.user != "" {
		request.Headers["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(t.user))
	}
	for _, line := range t.headers {
		name, value, _ := strings.Cut(line, ":")
		for known := range request.Headers {
			if strings.EqualFold(known, name) {
				delete(request.Headers, known)
			}
		}
		if value = strings.TrimSpace(value); value != "" {
			request.Headers[name] = value
		}
	}
	if request.Method == "" {
		switch {
		case t.head:
			request.Method = "HEAD"
		case t.hasData && !t.get || len(t.form) > 0:
			request.Method = "POST"
		default:
			request.Method = "GET"
		}
	}
	request.Body = base64.StdEncoding.EncodeToString([]byte(body))
	return request
}

func (t *transfer) multipart(boundary string) string {
	var out strings.Builder
	for _, item := range t.form {
		name, value, _ := strings.Cut(item, "=")
		out.WriteString("--" + boundary + "\r\nContent-Disposition: form-data; name=\"" + name + "\"")
		if strings.HasPrefix(value, "@") || strings.HasPrefix(value, "<") {
			file, _, _ := strings.Cut(value[1:], ";")
			data, err := t.readFile(file)
			if err == nil && value[0] == '@' {
				out.WriteString("; filename=\"" + path.Base(file) + "\"\r\nContent-Type: application/octet-stream")
			}
			value = string(data)
		}
		out.WriteString("\r\n\r\n" + value + "\r\n")
	}
	return out.String() + "--" + boundary + "--\r\n"
}

var errorCodes = map[string]int{"fetch.dns": 6, "fetch.connect": 7, "fetch.refused": 7, "fetch.timeout": 28, "fetch.too_large": 63, "fetch.tls": 35, "fetch.url": 3, "fetch.scheme": 1, "fetch.redirects": 47}

func (t *transfer) fetch(target string) int {
	if !strings.Contains(target, "://") {
		target = "http://" + target
	}
	parsed, err := url.Parse(target)
	if err != nil || parsed.Host == "" {
		return t.fail(3, "URL rejected: Malformed input to a URL function")
	}
	if parsed.Scheme != "http" && parsed.Scheme != "https" {
		return t.fail(1, "Protocol \"%s\" not supported", parsed.Scheme)
	}
	request := t.request(target)
	raw, _ := json.Marshal(request)
	start := time.Now()
	answer, code := host.CallFetch(raw)
	var response host.FetchResponse
	if err := json.Unmarshal(answer, &response); err != nil {
		return t.fail(7, "the sandbox's host gave no answer")
	}
	if code != 0 || response.Error != nil {
		message, kind := "request failed", ""
		if response.Error != nil {
			message, kind = response.Error.Message, response.Error.Code
		}
		exit := errorCodes[kind]
		if exit == 0 {
			exit = 7
		}
		return t.fail(exit, "%s", message)
	}
	return t.deliver(request, &response, time.Since(start))
}

func (t *transfer) deliver(request host.FetchRequest, response *host.FetchResponse, took time.Duration) int {
	body, _ := base64.StdEncoding.DecodeString(response.Body)
	headers := headerText(response)
	if t.verbose {
		fmt.Fprintf(t.c.Stderr, "> %s %s\n%s", request.Method, request.URL, "< "+strings.ReplaceAll(strings.TrimRight(headers, "\r\n"), "\r\n", "\n< ")+"\n")
	}
	if t.dumpHeaders != "" {
		if file, err := t.c.Create(t.dumpHeaders); err == nil {
			io.WriteString(file, headers)
			file.Close()
		}
	}
	failed := t.failHTTP && response.Status >= 400
	var sink io.Writer = t.c.Out
	name := t.output
	if t.remoteName {
		if parsed, err := url.Parse(request.URL); err == nil {
			name = path.Base(parsed.Path)
		}
		if name == "/" || name == "." {
			return t.fail(23, "Remote file name has no length")
		}
	}
	if name != "" && name != "-" && !failed {
		if t.createDirs {
			core.MkdirAll(path.Dir(t.c.Path(name)))
		}
		file, err := t.c.Create(name)
		if err != nil {
			return t.fail(23, "Failure writing output to destination: %s", core.Reason(err))
		}
		defer file.Close()
		sink = file
	}
	if (t.include || t.head) && !failed {
		io.WriteString(sink, headers)
	}
	if !t.head && !failed {
		sink.Write(body)
	}
	if t.writeOut != "" {
		t.c.Out.WriteString(t.expand(response, len(body), took))
	}
	if failed {
		return t.fail(22, "The requested URL returned error: %d", response.Status)
	}
	return 0
}

func headerText(response *host.FetchResponse) string {
	names := make([]string, 0, len(response.Headers))
	for name := range response.Headers {
		names = append(names, name)
	}
	sort.Strings(names)
	out := fmt.Sprintf("HTTP/1.1 %d %s\r\n", response.Status, reasonPhrase(response.Status))
	for _, name := range names {
		out += name + ": " + response.Headers[name] + "\r\n"
	}
	return out + "\r\n"
}

func reasonPhrase(status int) string {
	return map[int]string{200: "OK", 201: "Created", 204: "No Content", 301: "Moved Permanently", 302: "Found", 304: "Not Modified", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable"}[status]
}

func (t *transfer) expand(response *host.FetchResponse, size int, took time.Duration) string {
	text := t.writeOut
	if strings.HasPrefix(text, "@") {
		if data, err := t.readFile(text[1:]); err == nil {
			text = string(data)
		}
	}
	contentType := ""
	for name, value := range response.Headers {
		if strings.EqualFold(name, "content-type") {
			contentType = value
		}
	}
	seconds := fmt.Sprintf("%.6f", took.Seconds())
	return strings.NewReplacer("%{http_code}", fmt.Sprintf("%03d", response.Status), "%{response_code}", fmt.Sprintf("%03d", response.Status), "%{size_download}", strconv.Itoa(size), "%{url_effective}", response.URL,
		"%{content_type}", contentType, "%{time_total}", seconds, "%{num_redirects}", "0", "%{exitcode}", "0", `\n`, "\n", `\t`, "\t", `\r`, "\r", "%%", "%").Replace(text)
}
