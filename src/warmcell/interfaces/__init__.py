"""Entry points: parse, call, render. No decisions about isolation are made here."""
