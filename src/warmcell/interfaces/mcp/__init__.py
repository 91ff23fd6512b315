"""The door for MCP clients: one sandbox for each, its tools and its files, gone when the client goes.

Built on the official SDK (`warmcell[mcp]`), which is imported only here.
"""
