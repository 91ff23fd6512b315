"""What fetches and the proxy share: admission, name lookup, dialling, HTTP exchange."""
