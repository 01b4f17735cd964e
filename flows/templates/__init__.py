"""What `trace new` writes, with `example` for the name."""
