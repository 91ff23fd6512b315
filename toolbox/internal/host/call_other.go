//go:build !wasip1

package host

func callExec([]byte) ([]byte, int32) {
	return []byte(`{"error":{"code":"command_not_found","message":"command not found"}}`), Disabled
}

// CallFetch answers that there is no host: native builds are for tests only.
func CallFetch([]byte) ([]byte, int32) {
	return []byte(`{"error":{"code":"fetch.disabled","message":"networking is disabled"}}`), Disabled
}
