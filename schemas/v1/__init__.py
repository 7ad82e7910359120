"""Version 1 of the wire contract: `wire.proto` and the code generated from it."""
