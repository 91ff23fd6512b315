package core

// Who every command runs as: the same user that a guest of the process cage sees.
const (
	UserName = "sandbox"
	UserID   = "1000"
)
