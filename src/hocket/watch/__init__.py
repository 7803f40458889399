"""A page in the browser of runs that go on or have ended, made of what their folders hold.

It is another process than the run's, which never hears of it: a slow browser or a crash here costs
the run nothing. Of a run folder it writes two things only, `live/wanted` and `labels.jsonl`. Read
`server.py` first; `run_view.py` is what a page knows of a run, and what has changed since.
"""
