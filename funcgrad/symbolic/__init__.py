"""Sizes that vary: integers with a name, what is known of them, and what is assumed."""
