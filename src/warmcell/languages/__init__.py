"""From source text to something that can be started: argv and files, or a warm worker that runs the text."""
