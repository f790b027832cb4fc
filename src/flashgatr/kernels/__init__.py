"""Fast versions of operations, each beside its plain reference and tested against it."""
