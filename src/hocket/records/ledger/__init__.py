"""The crash-safe table of trials, attempts and episodes.

Read `ledger.py` first: it is what an engine talks to. `view.py` reads a ledger, also while
another process writes it; `writer.py` is the thread that makes finished episodes durable, and keeps
the files of rows that count with them; `schema.py` is the file itself.
"""
