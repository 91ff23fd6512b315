"""The zygote: a warm interpreter from which guests are forked."""
