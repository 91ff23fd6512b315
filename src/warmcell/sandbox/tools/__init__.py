"""Tools for models over one sandbox: their names, arguments and answers."""
