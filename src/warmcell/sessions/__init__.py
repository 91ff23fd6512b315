"""The host's side of a live cage: the channel to its agent, its processes, ports and sessions.

It works on sockets and knows no backend. Nothing from a guest is trusted: frames are bounded, numbers are looked up,
and a violation of the protocol ends the guest's own cage.
"""
