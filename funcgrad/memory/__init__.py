"""Which memory a program takes as it goes on: its schedule, what is alive, what is written over, and where it lies."""
