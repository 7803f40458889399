"""Who is in the next batch and when it leaves. No clock, no thread, no socket."""
