// Package host talks to the embedder: network requests for curl, and the interpreters that are modules of their own.
package host

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"

	"warmcell/toolbox/internal/core"
)

// Disabled is the host's answer when a capability is off; the response says how to enable it.
const Disabled = -2

// commands that live in other WASM modules.
var commands = map[string]bool{"node": true, "nodejs": true, "python": true, "python3": true, "git": true}

// IsCommand tells whether the host runs this command for us.
func IsCommand(name string) bool { return commands[name] }

// Commands lists the names that the host runs.
func Commands() []string { return []string{"git", "node", "nodejs", "python", "python3"} }

// Error is the failure part of a response.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type execRequest struct {
	Argv  []string          `json:"argv"`
	Cwd   string            `json:"cwd"`
	Env   map[string]string `json:"env"`
	Stdin string            `json:"stdin"`
}

type execResponse struct {
	ExitCode int    `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	Error    *Error `json:"error"`
}

// Run passes a command to the host with all of its standard input.
func Run(c *core.Ctx, argv []string) int {
	c.Out = core.NewOut(c.Stdout)
	request := execRequest{Argv: argv, Cwd: c.Dir, Env: map[string]string{}}
	for _, entry := range c.Env {
		if at := bytes.IndexByte([]byte(entry), '='); at > 0 {
			request.Env[entry[:at]] = entry[at+1:]
		}
	}
	if wantsStdin(argv) {
		data, err := io.ReadAll(c.Stdin)
		if err == nil {
			request.Stdin = base64.StdEncoding.EncodeToString(data)
		}
	}
	raw, err := json.Marshal(request)
	if err != nil {
		return 126
	}
	answer, code := callExec(raw)
	var response execResponse
	if err := json.Unmarshal(answer, &response); err != nil {
		fmt.Fprintf(c.Stderr, "%s: command not found\n", argv[0])
		return 127
	}
	if code != 0 || response.Error != nil {
		message := "command not found"
		if response.Error != nil && response.Error.Message != "" {
			message = response.Error.Message
		}
		fmt.Fprintf(c.Stderr, "%s: %s\n", argv[0], message)
		return 127
	}
	stdout, _ := base64.StdEncoding.DecodeString(response.Stdout)
	stderr, _ := base64.StdEncoding.DecodeString(response.Stderr)
	c.Out.Write(stdout)
	c.Out.Flush()
	c.Stderr.Write(stderr)
	return response.ExitCode
}

// wantsStdin spares "python3 -c ..." from draining a stream that the next command of a loop may need; an interpreter that is
// given code or a script gets standard input only when it is a pipe of this shell, which the embedder cannot tell apart.
func wantsStdin(argv []string) bool {
	return argv[0] != "git"
}
