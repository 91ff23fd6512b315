"""The MCP server: one sandbox per client, with its tools and files, destroyed when the client disconnects.

Built on the official SDK (`warmcell[mcp]`), which is imported only here.
"""
