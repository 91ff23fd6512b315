package host

// FetchRequest is a request of curl to the host.
type FetchRequest struct {
	URL             string            `json:"url"`
	Method          string            `json:"method"`
	Headers         map[string]string `json:"headers"`
	Body            string            `json:"body"`
	Timeout         float64           `json:"timeout,omitempty"`
	FollowRedirects bool              `json:"follow_redirects"`
}

// FetchResponse is the host's answer.
type FetchResponse struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	URL     string            `json:"url"`
	Error   *Error            `json:"error"`
}
