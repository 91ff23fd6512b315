"""The host's side of a live cage: what it says to the agent inside, and what it remembers of what that started.

It is given sockets and knows no backend. Nothing that comes from a guest is believed: frames are bounded, numbers are
looked up, and whoever does not keep to the protocol ends its own cage.
"""
