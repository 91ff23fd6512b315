package core

// The user that every command runs as: the same as in the process cage.
const (
	UserName = "sandbox"
	UserID   = "1000"
)
