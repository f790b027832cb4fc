"""The tables of docs/results.md: the paper's beside ours, from recorded results only."""
