"""What this host can enforce, and what a run costs on it: both found out by trying."""
