"""Who runs which trial, until when, and whose episode counts. No clock, no socket."""
