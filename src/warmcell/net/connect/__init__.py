"""The one road out that fetches and the proxy share: admitted, resolved once, dialled, spoken to in HTTP."""
