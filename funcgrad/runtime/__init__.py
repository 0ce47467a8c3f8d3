"""Programs: what they are keyed by, where they are kept, and how a call runs."""
