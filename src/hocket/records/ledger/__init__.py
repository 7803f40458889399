"""The crash-safe table of trials, attempts and episodes.

Read `ledger.py` first: it is what an engine talks to. `view.py` reads a ledger, also while
another process writes it; `writer.py` is the thread that makes finished episodes durable;
`segments.py` keeps the files of rows that count with the episodes; `schema.py` is the file itself.
"""

from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.segments import RowRecorder, Segment
from hocket.records.ledger.view import Failure, LedgerView
from hocket.records.ledger.writer import LedgerConfig

__all__ = ["Failure", "Ledger", "LedgerConfig", "LedgerView", "RowRecorder", "Segment"]
