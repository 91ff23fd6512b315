"""Tools for models over one sandbox: what they are called, what they take, what they answer."""
