"""The parent's end of the stream to a worker: what it sends, what it lets in, and what it keeps."""
