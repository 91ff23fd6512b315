"""One request for the host or for a guest's `fetch()`: judged hop by hop, bounded, decoded."""
