"""Shared by fetches and the proxy: admission, name lookup, dialling, HTTP exchange."""
