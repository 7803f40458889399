"""One plan and one ledger, an engine on every machine.

Read `leasing/leases.py` first: it decides who runs what, and whose episode counts, without a clock
or a socket. `driver.py` hears sites and owns the ledger; `server.py` is the loop and the sockets
around it; `site/` is an ordinary engine that is fed with leases; `commands.py` and `ray.py` start
sites.
"""
