"""A policy over OpenPI's protocol, batched across connections; and a gateway before other servers.

Read `server.py` first: connections. `backend.py` answers requests with a policy of this process,
through `batching.py`; `gateway.py` with other servers.
"""
